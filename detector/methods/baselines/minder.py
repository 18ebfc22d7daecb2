"""Minder as published (NSDI'25, arXiv 2411.01791), for comparison: denoised windows, pairwise distances, continuity.

The paper denoises by one LSTM variational autoencoder a metric, trained beforehand on healthy data: here by the nets
of a file that `peerwatch train-minder` writes, or, without a file, by principal components of what the method has
seen so far. What the paper does not say is a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.methods.baselines.autoencoder import Autoencoder, components
from detector.methods.baselines.continuity import Candidates, candidate_finding, in_thresholds, outlier
from detector.methods.baselines.distances import scores
from detector.methods.baselines.frames import Frame, Frames
from detector.methods.baselines.minder_model import HIDDEN, WINDOW, MinderModel, ModelError
from detector.methods.baselines.samples import Samples, empty
from detector.methods.contract import Method
from detector.model.text import comparison
from detector.model.verdict import Finding
from detector.stats.arrays import Floats
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks

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


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of the paper where it has them; the last four are its ablations."""

    share: float = 0.9
    """Of the windows within the time of continuity that must have the same candidate."""
    threshold: float = 3.0
    """Standard deviations over machines; the paper's value is not known."""
    reach: float = 0.9
    """Among n machines the threshold is at most this share of the highest score there can be, the root of n - 1."""
    train_s: float = 120.0
    """Without a model: seen before the nets are fitted, and again after each ..."""
    retrain_s: float = 600.0
    """... so long."""
    fewest: int = 60
    """With coarse steps each of the two is at least so many of them."""
    training_windows: int = 4000
    continuity_s: float = 240.0
    """0: one window is enough."""
    raw: bool = False
    """Windows as they are read, without a net."""
    layout: str = "apart"
    """`apart`: one metric after the other; `concatenated`: all windows side by side; `integrated`: one net for all."""
    distance: str = "euclidean"


VARIANTS: Mapping[str, Parameters] = {
    "minder": Parameters(),
    "minder-raw": Parameters(raw=True),
    "minder-concatenated": Parameters(layout="concatenated"),
    "minder-integrated": Parameters(layout="integrated"),
    "minder-manhattan": Parameters(distance="manhattan"),
    "minder-chebyshev": Parameters(distance="chebyshev"),
    "minder-no-continuity": Parameters(continuity_s=0.0),
}
"""The method and the ablations of its paper, by the names that `peerwatch evaluate --methods` knows."""


@dataclass(slots=True)
class Memory:
    """What is remembered of one task: the last samples, windows to learn from, nets and candidates."""

    samples: Samples
    seen: list[Floats] = field(default_factory=list)
    """Windows [metric, machine, sample] to learn from."""
    nets: Autoencoder | None = None
    candidates: dict[int, Candidates] = field(default_factory=dict)
    learned: int = 0


@dataclass(slots=True)
class Minder(Method):
    """The method and its memory; it names one machine a task, and no device."""

    config: Config
    parameters: Parameters = field(default_factory=Parameters)
    model: MinderModel | None = None
    frames: Frames = field(default_factory=Frames)
    memory: dict[str, Memory] = field(default_factory=dict)

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new and name the lasting candidate of the first metric that has one."""
        return self.frames.judge(now, rows, tasks, self._judge)

    def _judge(self, frame: Frame, now: int) -> list[Finding]:
        p, memory = self.parameters, self._remember(frame)
        if memory.samples.steps < WINDOW or not memory.samples.metrics:
            return []
        step_s, windows = self.frames.step_s(), memory.samples.windows()
        views = self._views(memory, windows, step_s)
        steps = max(3, round(p.continuity_s / step_s)) if p.continuity_s else 1
        found: list[Finding] = []
        for number, points in enumerate(views):
            score = in_thresholds(scores(points, p.distance), p.threshold, p.reach)
            candidates = memory.candidates.setdefault(number, Candidates())
            candidates.note(outlier(score), steps)
            who = candidates.lasting(p.share)
            if who >= 0 and not found:
                metric = number if p.layout == "apart" else _most_telling(windows, who)
                found = self._found(memory.samples, (metric, who, float(score[who])), now, frame.task)
        return found

    def _remember(self, frame: Frame) -> Memory:
        """Add the frame's sample of the metrics that count; another fleet or other metrics begin again."""
        order = self.model.metrics if self.model else PRIORITY
        metrics = tuple(key for key in order if key in frame.metrics)
        if self.model and not _tables(order) & _tables(frame.metrics):
            raise ModelError(
                f"the model knows none of the tables {', '.join(sorted(_tables(frame.metrics)))}: it is of "
                f"{', '.join(order)}; train one on recordings like these (peerwatch train-minder)"
            )
        if not metrics and not self.model:
            metrics = frame.metrics
        memory = self.memory.get(frame.task)
        if memory is None or (memory.samples.machines, memory.samples.metrics) != (frame.machines, metrics):
            memory = self.memory[frame.task] = Memory(empty(frame.machines, metrics, WINDOW))
        memory.samples.add(frame.values[[frame.metrics.index(key) for key in metrics]])
        return memory

    def _views(self, memory: Memory, windows: Floats, step_s: float) -> list[Floats]:
        """Points [machine, coordinate], each to be compared by itself; none before anything is learned."""
        p = self.parameters
        if p.layout == "integrated" and not p.raw:
            nets, given = self._joint(memory, windows, step_s), _beside(self._padded(memory, windows))[None]
            return [nets.denoised(given)[0]] if nets else []
        if not p.raw:
            each = self._each(memory, windows, step_s)
            if each is None:
                return []
            windows = each.denoised(windows)
        return list(windows) if p.layout == "apart" else [_beside(windows)]

    def _each(self, memory: Memory, windows: Floats, step_s: float) -> Autoencoder | None:
        if self.model:
            return self.model.each.of([self.model.metrics.index(key) for key in memory.samples.metrics])
        return self._learned(memory, windows, step_s)

    def _joint(self, memory: Memory, windows: Floats, step_s: float) -> Autoencoder | None:
        return self.model.joint if self.model else self._learned(memory, _beside(windows)[None], step_s)

    def _padded(self, memory: Memory, windows: Floats) -> Floats:
        """Windows of all metrics that the joint net knows; those that are not read here are the same for all."""
        if not self.model:
            return windows
        out = np.zeros((len(self.model.metrics), *windows.shape[1:]))
        out[[self.model.metrics.index(key) for key in memory.samples.metrics]] = windows
        return out

    def _learned(self, memory: Memory, windows: Floats, step_s: float) -> Autoencoder | None:
        """Nets of what this task has shown so far, fitted again from time to time; windows [net, machine, input]."""
        p, steps = self.parameters, memory.samples.steps
        most = max(2, p.training_windows // windows.shape[1])
        if steps % WINDOW == 0:
            memory.seen = [*memory.seen[-most:], windows]
        wait = p.retrain_s if memory.nets else p.train_s
        if steps - memory.learned >= max(wait / step_s, p.fewest) and len(memory.seen) >= 2:
            memory.learned = steps
            memory.nets = components(np.concatenate(memory.seen, axis=1)[:, -p.training_windows :], HIDDEN)
        return memory.nets

    def _found(self, samples: Samples, cell: tuple[int, int, float], now: int, task: str) -> list[Finding]:
        metric, who, score = cell
        machine, key = samples.machines[who], samples.metrics[metric]
        now_are = samples.ring[-1, metric]
        theirs = float(np.median(np.delete(now_are, who)))
        message = comparison(machine, key, float(now_are[who]), theirs, len(now_are) - 1)
        return candidate_finding("minder", task, machine, key, score, message, now, self.parameters.continuity_s)


def _beside(windows: Floats) -> Floats:
    """[machine, input]: windows [metric, machine, sample] of all metrics side by side."""
    return windows.transpose(1, 0, 2).reshape(windows.shape[1], -1)


def _most_telling(windows: Floats, who: int) -> int:
    """The metric in which this machine stands out most; windows are [metric, machine, sample]."""
    return int(np.argmax([scores(points)[who] for points in windows]))


def _tables(metrics: Iterable[str]) -> set[str]:
    return {key.split(".")[0] for key in metrics}
