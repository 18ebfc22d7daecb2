"""Minder as published (NSDI'25, arXiv 2411.01791), for comparison: denoised windows, pairwise distances, continuity.

The paper denoises by one variational autoencoder a metric, trained beforehand; here scikit-learn's principal components
or its perceptron learn from what the method has seen so far. What the paper does not say is a parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.config import Config
from detector.methods.baselines.continuity import Streak
from detector.methods.baselines.frames import Frame, Frames
from detector.model.text import comparison
from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Floats
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import SECOND

PRIORITY = (
    "rdma.pfc_transmit_frames_total",
    "host.cpu_utilization_ratio",
    "gpu.duty_cycle_ratio",
    "gpu.power_watts",
    "gpu.graphics_active_ratio",
    "gpu.tensor_active_ratio",
    "gpu.nvlink_transmit_bytes_total",
)
"""The paper's metrics in the paper's order; where a recording has none of them, all of its own in theirs."""
_BLOCK = 1 << 22  # pairs of machines that are looked at at a time


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of the paper where it has them."""

    window: int = 8
    """Samples in a window; the stride is 1."""
    continuity_s: float = 240.0
    share: float = 0.9
    """Of the windows within that time that must have the same candidate."""
    threshold: float = 3.0
    """Standard deviations over machines; the paper's value is not known."""
    reach: float = 0.9
    """Among n machines the threshold is at most this share of the highest score there can be, the root of n - 1."""
    denoiser: str = "components"
    """`components` (linear) or `perceptron` (an autoencoder)."""
    latent: int = 4
    """The paper's hidden size."""
    train_s: float = 120.0
    """Seen before the denoiser is trained, and again after each ..."""
    retrain_s: float = 600.0
    """... so long."""
    fewest: int = 60
    """With coarse steps each of the two is at least so many of them."""
    training_windows: int = 4000


@dataclass(slots=True)
class Memory:
    """What is remembered of one task: the last windows, samples to train on, denoisers and candidates."""

    machines: tuple[str, ...]
    metrics: tuple[str, ...]
    ring: Floats
    """[sample, metric, machine], oldest first."""
    least: Floats
    most: Floats
    """[metric, 1]: bounds seen so far, for Min-Max normalisation."""
    seen: list[Floats] = field(default_factory=list)
    """Windows [metric, machine, sample] to train on."""
    denoisers: dict[int, Any] = field(default_factory=dict)
    streaks: dict[int, Streak] = field(default_factory=dict)
    steps: int = 0
    trained: int = 0


@dataclass(slots=True)
class Minder:
    """The method and its memory; it names one machine a task, and no device."""

    config: Config
    parameters: Parameters = field(default_factory=Parameters)
    frames: Frames = field(default_factory=Frames)
    memory: dict[str, Memory] = field(default_factory=dict)

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new and say whom the first metric that has a lasting candidate convicts."""
        return self.frames.judge(now, rows, tasks, self._judge)

    def _judge(self, frame: Frame, now: int) -> list[Finding]:
        chosen = [frame.metrics.index(key) for key in PRIORITY if key in frame.metrics] or range(len(frame.metrics))
        metrics, values = tuple(frame.metrics[at] for at in chosen), frame.values[list(chosen)]
        memory = self._remember(frame, metrics, values)
        p, step_s = self.parameters, self.frames.step_s()
        if memory.steps < p.window:
            return []
        scale = np.where(memory.most > memory.least, memory.most - memory.least, 1.0)
        windows = ((memory.ring - memory.least) / scale).transpose(1, 2, 0)
        self._train(memory, windows, step_s)
        if not memory.denoisers:
            return []
        steps = max(3, round(p.continuity_s / step_s))
        found: list[Finding] = []
        for metric, denoiser in memory.denoisers.items():
            score = scores(_latent(denoiser, windows[metric]))
            worst = int(score.argmax())
            limit = min(p.threshold, p.reach * (len(score) - 1) ** 0.5)
            streak = memory.streaks.setdefault(metric, Streak())
            streak.note(worst if score[worst] > limit else -1, steps)
            who = streak.lasting(p.share)
            if who >= 0 and not found:
                found = [self._finding(memory, (metric, who, float(score[who])), now, frame.task)]
        return found

    def _remember(self, frame: Frame, metrics: tuple[str, ...], values: Floats) -> Memory:
        """Add a sample; what is missing is the nearest before it, or what the others have."""
        memory = self.memory.get(frame.task)
        if memory is None or (memory.machines, memory.metrics) != (frame.machines, metrics):
            ends = np.full((len(metrics), 1), np.inf)
            ring = np.zeros((self.parameters.window, *values.shape))
            memory = self.memory[frame.task] = Memory(frame.machines, metrics, ring, ends, -ends)
        if memory.steps:
            values = np.where(np.isnan(values), memory.ring[-1], values)
        known = ~np.isnan(values).all(1)
        fill = np.zeros(len(values))
        fill[known] = np.nanmedian(values[known], axis=1)
        values = np.where(np.isnan(values), fill[:, None], values)
        memory.ring = np.concatenate([memory.ring[1:], values[None]])
        memory.least = np.minimum(memory.least, values.min(1, keepdims=True))
        memory.most = np.maximum(memory.most, values.max(1, keepdims=True))
        memory.steps += 1
        return memory

    def _train(self, memory: Memory, windows: Floats, step_s: float) -> None:
        p = self.parameters
        machines = windows.shape[1]
        keep = max(2, p.training_windows // machines)
        if memory.steps % p.window == 0:
            memory.seen = [*memory.seen[-keep:], windows]
        wait = p.retrain_s if memory.denoisers else p.train_s
        if memory.steps - memory.trained < max(wait / step_s, p.fewest) or len(memory.seen) < 2:
            return
        memory.trained = memory.steps
        for metric in range(len(memory.metrics)):
            samples = np.concatenate([seen[metric] for seen in memory.seen])[-p.training_windows :]
            memory.denoisers[metric] = _fitted(samples, p)

    def _finding(self, memory: Memory, cell: tuple[int, int, float], now: int, task: str) -> Finding:
        metric, who, score = cell
        machine, key = memory.machines[who], memory.metrics[metric]
        now_are = memory.ring[-1, metric]
        theirs = float(np.median(np.delete(now_are, who)))
        message = comparison(machine, key, float(now_are[who]), theirs, len(now_are) - 1)
        since = now - int(self.parameters.continuity_s * SECOND)
        return Finding(Verdict(now, task, machine, None, "minder", key, score, since, "crit", message), False, 1.0)


def _fitted(samples: Floats, p: Parameters) -> Any:
    """A denoiser that has learned from windows [sample of training, sample of window]; None where nothing moves."""
    if not samples.std() > 0:
        return None
    if p.denoiser == "components":
        from sklearn.decomposition import PCA

        return PCA(min(p.latent, *samples.shape), svd_solver="full").fit(samples)
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopping early is part of the denoising
        model = MLPRegressor(hidden_layer_sizes=(p.latent,), activation="tanh", max_iter=60, random_state=0)
        return model.fit(samples, samples)


def _latent(denoiser: Any, windows: Floats) -> Floats:
    """Denoised windows, [machine, coordinate]; components keep distances, so their coordinates will do."""
    if denoiser is None:
        return np.zeros((len(windows), 1))
    done: Floats = denoiser.transform(windows) if hasattr(denoiser, "transform") else denoiser.predict(windows)
    return done


def scores(points: Floats) -> Floats:
    """[machine]: each one's sum of distances to all others, in standard deviations over machines."""
    total = distance_sums(points)
    spread = total.std()
    zero: Floats = np.zeros(len(total))
    return (total - total.mean()) / spread if spread > 1e-9 * max(1.0, float(total.mean())) else zero


def distance_sums(points: Floats) -> Floats:
    """Sum of Euclidean distances from each point [machine, coordinate] to all others; in one dimension by a sort."""
    count = len(points)
    if points.shape[1] == 1:
        order = np.argsort(points[:, 0])
        line = points[order, 0]
        before = np.concatenate([[0.0], np.cumsum(line)[:-1]])
        rank = np.arange(count)
        sums = np.empty(count)
        sums[order] = line * rank - before + (line.sum() - before - line) - line * (count - 1 - rank)
        return sums
    square = (points**2).sum(1)
    sums = np.empty(count)
    rows = max(1, _BLOCK // count)
    for at in range(0, count, rows):
        part = slice(at, at + rows)
        far = square[part, None] + square[None] - 2 * points[part] @ points.T
        sums[part] = np.sqrt(np.maximum(far, 0.0)).sum(1)
    return sums
