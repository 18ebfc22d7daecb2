"""A baseline: the Mahalanobis distance of each machine's residuals over all metrics at once, and continuity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.methods.baselines.continuity import Candidates, candidate_finding, in_thresholds, outlier, standardized
from detector.methods.baselines.frames import Frame, Frames
from detector.methods.contract import Method
from detector.model.verdict import Finding
from detector.stats.arrays import Floats
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Parameters:
    """The covariance forgets; the threshold is over machines, as in Minder, so that the two can be compared."""

    memory_s: float = 300.0
    warm_s: float = 120.0
    """No machine is judged before the covariance has seen this much."""
    fewest: int = 60
    """With coarse steps the two are at least so many of them."""
    ridge: float = 1e-3
    """Added to the correlation matrix, so that metrics that move as one do not make it singular."""
    least: float = 0.01
    """Of a metric's level: the least deviation it is taken to have, also where it never moved."""
    threshold: float = 3.0
    reach: float = 0.9
    """Among n machines the threshold is at most this share of the highest score there can be, the root of n - 1."""
    continuity_s: float = 240.0
    share: float = 0.9


@dataclass(slots=True)
class Memory:
    """What is remembered of one task."""

    machines: tuple[str, ...]
    metrics: tuple[str, ...]
    covariance: Floats
    steps: int = 0
    candidates: Candidates = field(default_factory=Candidates)


@dataclass(slots=True)
class Mahalanobis(Method):
    """The method and its memory; it names one machine a task, and the metric that says most."""

    config: Config
    parameters: Parameters = field(default_factory=Parameters)
    frames: Frames = field(default_factory=Frames)
    memory: dict[str, Memory] = field(default_factory=dict)

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Read new rows; the findings on machines that have been farthest from their peers for long enough."""
        return self.frames.judge(now, rows, tasks, self._judge)

    def _judge(self, frame: Frame, now: int) -> list[Finding]:
        p, step_s = self.parameters, self.frames.step_s()
        memory = self.memory.get(frame.task)
        if memory is None or (memory.machines, memory.metrics) != (frame.machines, frame.metrics):
            size = len(frame.metrics)
            memory = self.memory[frame.task] = Memory(frame.machines, frame.metrics, np.zeros((size, size)))
        known = ~np.isnan(frame.values).all(1)
        residual: Floats = np.zeros(frame.values.shape)
        residual[known] = frame.values[known] - np.nanmedian(frame.values[known], axis=1, keepdims=True)
        residual[np.isnan(residual)] = 0.0
        memory.steps += 1
        rate = max(1 / memory.steps, 1 / max(p.memory_s / step_s, p.fewest))
        level = np.abs(np.nan_to_num(frame.values).mean(1))
        far, part = _distances(memory.covariance, residual, p.least * np.maximum(level, 0.1), p.ridge)
        # From the farthest machine nothing is learned, or a fault would soon be what is usual.
        rest = np.delete(residual, int(far.argmax()), axis=1)
        memory.covariance += rate * (rest @ rest.T / rest.shape[1] - memory.covariance)
        if memory.steps < max(p.warm_s / step_s, p.fewest):
            return []
        score = in_thresholds(standardized(far), p.threshold, p.reach)
        memory.candidates.note(outlier(score), max(3, round(p.continuity_s / step_s)))
        who = memory.candidates.lasting(p.share)
        if who < 0:
            return []
        machine, key = frame.machines[who], frame.metrics[int(part[:, who].argmax())]
        message = f"{machine} is farthest from its {len(far) - 1} peers over all metrics, most of all by {key}"
        found = machine, key, float(score[who]), message
        return candidate_finding("mahalanobis", frame.task, *found, now, p.continuity_s)


def _distances(covariance: Floats, residual: Floats, least: Floats, ridge: float) -> tuple[Floats, Floats]:
    """[machine]: Mahalanobis distances of residuals [metric, machine]; and what each metric adds to them."""
    size = np.maximum(np.sqrt(np.diag(covariance)), least)
    scaled = residual / size[:, None]
    correlation = covariance / np.outer(size, size)
    np.fill_diagonal(correlation, 1.0)
    part: Floats = scaled * np.linalg.solve(correlation + ridge * np.eye(len(size)), scaled)
    return np.sqrt(np.maximum(part.sum(0), 0.0)), part
