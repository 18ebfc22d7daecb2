"""A baseline: how calls and waits are distributed over a minute, their entropy and divergence from the peers'.

After DistAD (arXiv 2202.13898: distributions of traces and a one-class model) and runtime entropy (arXiv 2110.06629:
entropy of shares of time and calls). Both instrument the program; here the distributions are of readings of the probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.config import Config
from detector.methods.baselines.continuity import Candidates, candidate_finding, in_thresholds, outlier, standardized
from detector.methods.baselines.frames import Frame, Frames
from detector.methods.baselines.samples import Samples, empty
from detector.methods.contract import Method
from detector.model.verdict import Finding
from detector.stats.arrays import Floats
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks

CALLS_AND_WAITS = (
    *("nccl.host_blocked_seconds_total", "nccl.active_ratio", "nccl.send_pending_ratio", "nccl.operations_total"),
    *("cuda.synchronize_seconds_total", "cuda.launches_total", "cuda.gc_seconds_total"),
    *("process.cpu_wait_seconds_total", "process.disk_wait_seconds_total"),
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """As Minder's where they mean the same."""

    window: int = 60
    """Samples in a distribution."""
    bins: int = 16
    every: int = 5
    """Steps from one judgement to the next."""
    nu: float = 0.05
    """Of the samples that the one-class model may leave outside."""
    train_s: float = 180.0
    """Seen before the one-class model is fitted, and again after each ..."""
    retrain_s: float = 600.0
    """... so long."""
    training_samples: int = 2000
    threshold: float = 3.0
    reach: float = 0.9
    """Among n machines the threshold is at most this share of the highest score there can be, the root of n - 1."""
    continuity_s: float = 120.0
    share: float = 0.9


@dataclass(slots=True)
class Memory:
    """What is remembered of one task: the last samples, what the model learns from, the model and candidates."""

    samples: Samples
    seen: list[Floats] = field(default_factory=list)
    """Features [machine, feature]."""
    model: Any = None
    learned: int = 0
    candidates: Candidates = field(default_factory=Candidates)
    standing: list[Finding] = field(default_factory=list)


@dataclass(slots=True)
class Distribution(Method):
    """The method and its memory; it names one machine a task, and no device."""

    config: Config
    parameters: Parameters = field(default_factory=Parameters)
    frames: Frames = field(default_factory=Frames)
    memory: dict[str, Memory] = field(default_factory=dict)

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new and name the machine that the one-class model has left outside for long enough."""
        return self.frames.judge(now, rows, tasks, self._judge)

    def _judge(self, frame: Frame, now: int) -> list[Finding]:
        p = self.parameters
        metrics = tuple(key for key in CALLS_AND_WAITS if key in frame.metrics)
        if not metrics:
            return []
        memory = self.memory.get(frame.task)
        if memory is None or (memory.samples.machines, memory.samples.metrics) != (frame.machines, metrics):
            memory = self.memory[frame.task] = Memory(empty(frame.machines, metrics, p.window))
        memory.samples.add(frame.values[[frame.metrics.index(key) for key in metrics]])
        if memory.samples.steps >= p.window and memory.samples.steps % p.every == 0:
            memory.standing = self._found(memory, frame.task, now)
        return memory.standing

    def _found(self, memory: Memory, task: str, now: int) -> list[Finding]:
        p, step_s = self.parameters, self.frames.step_s()
        found = features(memory.samples.windows(), p.bins)
        self._learn(memory, found, step_s)
        if memory.model is None:
            return []
        far: Floats = -memory.model.decision_function(found)
        score = in_thresholds(standardized(far), p.threshold, p.reach)
        worst = outlier(score)
        steps = max(3, round(p.continuity_s / step_s / p.every))
        memory.candidates.note(worst if far[worst] > 0 else -1, steps)
        who = memory.candidates.lasting(p.share)
        if who < 0:
            return []
        names = [f"{kind} of {key}" for kind in ("entropy", "divergence") for key in memory.samples.metrics]
        most = int(np.abs(found[who] - np.median(found, axis=0)).argmax())
        machine, key = memory.samples.machines[who], memory.samples.metrics[most % len(memory.samples.metrics)]
        message = f"{machine} distributes calls and waits unlike its {len(far) - 1} peers, most of all by {names[most]}"
        return candidate_finding("distribution", task, machine, key, float(score[who]), message, now, p.continuity_s)

    def _learn(self, memory: Memory, found: Floats, step_s: float) -> None:
        p, steps = self.parameters, memory.samples.steps
        most = max(2, p.training_samples // len(found))
        memory.seen = [*memory.seen[1 - most :], found]
        wait = p.retrain_s if memory.model else p.train_s
        if steps - memory.learned >= max(wait / step_s, 2 * p.window):
            from sklearn.svm import OneClassSVM

            memory.learned = steps
            memory.model = OneClassSVM(nu=p.nu, gamma="scale").fit(np.concatenate(memory.seen))


def features(windows: Floats, bins: int) -> Floats:
    """[machine, 2 × metric]: entropy of each metric's distribution, then its divergence from the others'.

    `windows` are [metric, machine, sample] between 0 and 1. Both results are between 0 and 1: entropy in units of
    log(bins), Jensen-Shannon divergence in bits.
    """
    metrics, machines, samples = windows.shape
    place = np.clip((windows * bins).astype(np.int64), 0, bins - 1)
    cell = (np.arange(metrics * machines)[:, None] * bins + place.reshape(metrics * machines, samples)).ravel()
    count = np.bincount(cell, minlength=metrics * machines * bins).reshape(metrics, machines, bins)
    own = count / samples
    others = (own.sum(1, keepdims=True) - own) / max(1, machines - 1)
    entropy = _entropy(own) / np.log(bins)
    divergence = (_entropy((own + others) / 2) - (_entropy(own) + _entropy(others)) / 2) / np.log(2)
    return np.concatenate([entropy, divergence]).T


def _entropy(shares: Floats) -> Floats:
    """Over the last axis, in nats."""
    safe = np.where(shares > 0, shares, 1.0)
    out: Floats = -(safe * np.log(safe)).sum(-1)
    return out
