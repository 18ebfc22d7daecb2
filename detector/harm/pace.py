"""Pace: how fast each task goes, by all readings of its members that rise and fall with the work done."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.harm.before_after import SIDE, fell_at
from detector.harm.rhythm import rhythm, trailing_mean
from detector.methods.peers.state import Panel
from detector.stats.arrays import Bools, Ints, grown, runs
from store.schema.time import SECOND

Floats = NDArray[np.floating[Any]]
SIGNALS = (
    "nccl.operations_total",
    "nccl.bytes_total",
    "cuda.launches_total",
    "gpu.tensor_active_ratio",
    "gpu.dram_active_ratio",
    "gpu.sm_occupancy_ratio",
    "gpu.fp16_active_ratio",
    "gpu.fp32_active_ratio",
    "gpu.power_watts",
    "gpu.nvlink_transmit_bytes_total",
    "gpu.pcie_transmit_bytes_total",
    "gpu.pcie_receive_bytes_total",
    "rdma.transmit_bytes_total",
    "rdma.receive_bytes_total",
)
"""What a member does in proportion to the task's iterations: a device that waits does less of each."""
BLOCK_NS = 5 * SECOND
SPAN_NS = 900 * SECOND
_OPERATIONS, _POWER = "nccl.operations_total", "gpu.power_watts"
_PAUSED = -0.7
"""The logarithm of half the usual pace."""
_STOPS = float(np.log(0.8))
"""Of a block in which the task stopped before its end."""
STANDS = float(np.log(0.3))
"""Of its usual pace: below that a task stands, and is not just slow."""
_SELDOM = 0.1
_STOOD, _SETTLES = 6, 12
"""Blocks of time for which a task stood that was restarted, and those in which it warms up then."""
PAUSES = 1.5
"""Times the longest pause so far that a task stands, for more than a checkpoint: that is as long as the one before."""
_CHECKPOINT_NS = 120 * SECOND
_HIGH = 0.8
"""Of a task that began a while ago, the pace in the fastest of so many blocks is of the time since then."""
_FADE = 0.5 ** (BLOCK_NS / (1800 * SECOND))
"""How slowly a task's usual pace is forgotten while it stands."""
_LEAST = np.log(0.05)
"""Below 5 % of the usual pace a task stands; how far below says nothing more."""


@dataclass(slots=True)
class Pace:
    """The last minutes of each task: medians over its members, a row each block of time."""

    tasks: list[str] = field(default_factory=list)
    times: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[block], Unix ns."""
    values: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, len(SIGNALS)), np.float32))
    """[block, task, signal], NaN where unknown."""
    level: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, len(SIGNALS)), np.float32))
    """[task, signal]: the usual pace, 0 where unknown. It follows the last minutes unless the task stands in most."""
    total: NDArray[np.float32] = field(default_factory=lambda: np.zeros((2, 0, len(SIGNALS)), np.float32))
    """[sum and count, task, signal] of the readings of the block that is not over."""
    pauses: dict[str, int] = field(default_factory=dict)
    """By task, for how long (ns) it paused at most, also before what is remembered."""
    ended: dict[str, list[int]] = field(default_factory=dict)
    """By task, the blocks (Unix ns) in which its processes had ended, of those that are remembered."""
    _logs: dict[str, Floats] = field(default_factory=dict)
    """What was computed since the last block."""
    _rhythms: dict[str, int] = field(default_factory=dict)
    """The same: over how many blocks the pace is averaged."""
    _shares: dict[str, Floats] = field(default_factory=dict)
    """The same: what was averaged, [block, signal], as shares of the usual pace."""

    def due(self, now: int) -> bool:
        """Whether a block is over at `now` (Unix ns)."""
        return not len(self.times) or now - int(self.times[-1]) >= BLOCK_NS

    def step_ns(self) -> int:
        """Time from one block to the next: readings may be rarer than blocks."""
        return int(np.median(np.diff(self.times))) if len(self.times) > 1 else 0

    def add(self, panels: Mapping[str, Panel]) -> None:
        """Add what all tasks do at this moment to the block that is not over."""
        there = dict.fromkeys(name for panel in panels.values() for name in panel.tasks)
        self.tasks += [name for name in there if name not in self.tasks]
        self._make_room()
        if len(self.tasks) > len(there):
            self.evict(there)
        new = np.full((len(self.tasks), len(SIGNALS)), np.nan, np.float32)
        for at, signal in enumerate(SIGNALS):
            table, _, metric = signal.partition(".")
            panel = panels.get(table)
            if panel is not None and (row := panel.row_of(metric)) is not None:
                _fill(new[:, at], panel, row, self.tasks)
        self.total += np.stack([np.nan_to_num(new), ~np.isnan(new)])

    def _make_room(self) -> None:
        """For new tasks, which may be asked about before their first block of time is over."""
        if new := len(self.tasks) - self.values.shape[1]:
            unknown = np.full((len(self.times), new, len(SIGNALS)), np.nan, np.float32)
            self.values = np.concatenate([self.values, unknown], axis=1)
            self.level = grown(self.level, (len(self.tasks), len(SIGNALS)), 0.0)
            self.total = grown(self.total, (2, len(self.tasks), len(SIGNALS)), 0.0)

    def end(self, now: int) -> None:
        """End the block of time at `now` (Unix ns)."""
        total, count = self.total
        new = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
        self.total = np.zeros_like(self.total)
        self._logs.clear()
        recent = self.times > now - SPAN_NS
        self.times = np.append(self.times[recent], now)
        self.values = np.concatenate([self.values[recent], new[None]])
        self._follow()

    def _follow(self) -> None:
        """Move the usual pace to the median of the time in which a task ran; while it only stands, down slowly."""
        before = self.level
        order = np.sort(self.values, axis=0)  # what is unknown is last
        place = (_HIGH * np.maximum((~np.isnan(order)).sum(0) - 1, 0)).astype(np.int64)
        high = np.fmax(before, np.take_along_axis(order, place[None], axis=0)[0])  # since it began, if it just did
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of signals that are not read
            ran = np.where(self.values > np.exp(STANDS) * high, self.values, np.nan)
            recent = np.nan_to_num(np.nanmedian(ran, axis=0))
        self.level = np.where(recent < before / 2, before * _FADE, recent).astype(np.float32)

    def logs(self, task: str) -> Floats:
        """[block, signal]: logarithms of the pace over its median, signals that are known and move only."""
        if task not in self._logs:
            self._logs[task] = self._logs_of(task)
        return self._logs[task]

    def is_known_without(self, task: str, metric: str) -> bool:
        """Whether other readings than this one show the pace: operations, or two that rise and fall with the work."""
        if task not in self.tasks or not len(self.values):
            return False
        known = (~np.isnan(self.values[:, self.tasks.index(task)])).mean(0) > 0.5
        others = {name for name, there in zip(SIGNALS, known.tolist(), strict=True) if there} - {metric, _POWER}
        return _OPERATIONS in others or len(others) > 1

    def paused(self, task: str, below: float = _PAUSED) -> NDArray[np.bool_]:
        """[block]: whether the task stood, or nearly, by most of its signals; it did not where none is known.

        `below` is the logarithm of the share of its usual pace that it had then at most.
        """
        logs = self.logs(task)
        known = ~np.isnan(logs).all(1)
        out = np.zeros(len(logs), bool)
        if known.any():
            out[known] = np.nanmedian(logs[known], axis=1) < below
        return out

    def unsettled(self, task: str) -> Bools:
        """[block]: whether the task stood, or began to run again less than a minute ago after it stood for long."""
        stands = self.paused(task, STANDS)
        out = stands.copy()
        for begin, end in runs(stands):
            if end - begin >= _STOOD:
                out[end : end + _SETTLES] = True
        return out

    def stands_since(self, task: str) -> int | None:
        """Since when (Unix ns) the task stands, or nearly; None: it goes on. Averaging makes it seem later.

        It stopped within the block before if that shows less than its usual pace and no average of several does.
        """
        paused = self.paused(task)
        if not paused[-1:].any():
            return None
        begin = len(paused) - int(np.argmin(np.append(paused[::-1], False)))
        if not self.delay(task):
            begin -= int(self.paused(task, _STOPS)[begin - 1 : begin].any())
        return int(self.times[begin]) - self.delay(task)

    def stood_before(self, task: str, time: int) -> bool:
        """Whether the task had half of its usual pace in the block before `time` (Unix ns), and seldom before that."""
        self.logs(task)
        before = self.times <= time
        shares = self._shares.get(task, np.zeros((len(before), 0)))[before]
        known = shares[~np.isnan(shares).all(1)]
        if len(known) < 2 * _STOOD:
            return False
        low = np.nanmedian(known, axis=1) < np.exp(_PAUSED)
        return bool(low[-1]) and float(low[:-_STOOD].mean()) < _SELDOM

    def delay(self, task: str) -> int:
        """By how much (ns) averaging makes what happens to the pace seem later."""
        return self.rhythm_ns(task) // (2 * BLOCK_NS) * BLOCK_NS

    def rhythm_ns(self, task: str) -> int:
        """Over how long (ns) the pace is averaged: an iteration, where it shows in the readings."""
        self.logs(task)
        return self._rhythms.get(task, 1) * BLOCK_NS

    def iteration(self, task: str) -> int:
        """The same in blocks."""
        return self.rhythm_ns(task) // BLOCK_NS

    def longest_pause(self, task: str, before: int, restarts: bool = True) -> int:
        """For how long (ns) the task stood at most, at one time, earlier than `before` (Unix ns).

        Not before it first moved: what it takes to begin is no pause. A restart is one only with `restarts`.
        """
        earlier = self.times <= before
        stands, known = self.paused(task)[earlier], ~np.isnan(self.logs(task)[earlier]).all(1)
        stands &= np.logical_or.accumulate(known & ~stands)
        ended = np.isin(self.times[earlier], [] if restarts else self.ended.get(task, []))
        longest = max((end - start for start, end in runs(stands) if not ended[start:end].any()), default=0)
        return max(longest * self.step_ns(), self.pauses.get(task, 0))

    def note_ended(self, task: str) -> None:
        """Remember that the processes of a task had ended in the latest block."""
        oldest, latest = int(self.times[0]), int(self.times[-1])
        self.ended[task] = [at for at in self.ended.get(task, []) if at >= oldest] + [latest]

    def ended_since(self, task: str, since: int) -> bool:
        """Whether they had ended at some time after `since` (Unix ns)."""
        return max(self.ended.get(task, []), default=since) > since

    def paused_for(self, task: str, length: int) -> None:
        """Remember that the task paused for so long (ns), as for a checkpoint; no more than two minutes of it."""
        self.pauses[task] = max(self.pauses.get(task, 0), min(length, _CHECKPOINT_NS))

    def fell_at(self, task: str, time: int) -> bool:
        """Whether the largest fall of the pace that is remembered is at this time (Unix ns), give or take 15 s.

        Over a minute before and after; what a pause takes is left out.
        """
        logs, moves = self.logs(task), ~self.paused(task, STANDS)
        known = moves & ~np.isnan(logs).all(1)
        if known.sum() < 2 * SIDE or time - int(self.times[0]) < 2 * SIDE * BLOCK_NS:
            return False
        return fell_at(np.nanmedian(logs[known], axis=1), self.times[known], time + self.delay(task), BLOCK_NS)

    def evict(self, tasks: Iterable[str]) -> None:
        """Forget all tasks but these."""
        names = frozenset(tasks)
        left = [at for at, name in enumerate(self.tasks) if name in names]
        self.values, self.tasks = self.values[:, left], [self.tasks[at] for at in left]
        self.level, self.total = self.level[left], self.total[:, left]
        self.pauses = {task: length for task, length in self.pauses.items() if task in names}
        self.ended = {task: blocks for task, blocks in self.ended.items() if task in names}
        self._logs.clear()

    def _logs_of(self, task: str) -> Floats:
        if task not in self.tasks or not len(self.times):
            return np.zeros((len(self.times), 0))
        values = self.values[:, self.tasks.index(task)]
        known = (~np.isnan(values)).mean(0) > 0.5
        values = values[:, known]
        usual = self.level[self.tasks.index(task), known]
        share = np.maximum(values[:, usual > 0], 0) / usual[usual > 0]
        self._rhythms[task], self._shares[task] = 1, share
        with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of blocks in which nothing is known
            if share.size:
                self._rhythms[task] = rhythm(share)
            logs = np.log(trailing_mean(share, self._rhythms[task]))
            if self._rhythms[task] > 1:  # the median of what swings is not its mean
                logs -= np.clip(np.nanmedian(logs, axis=0), STANDS, -STANDS)
        moving: Floats = np.clip(logs, _LEAST, 1.0)
        return moving


def beside(blocks: Bools) -> Bools:
    """[block]: these and those next to them."""
    wide = np.r_[False, blocks, False]
    near: Bools = wide[:-2] | wide[1:-1] | wide[2:]
    return near


def _fill(out: NDArray[np.float32], panel: Panel, metric: int, tasks: list[str]) -> None:
    """The mean of each task's peer groups."""
    for task, name in enumerate(panel.tasks):
        mine = [group for group, (of, _) in enumerate(panel.group_labels) if of == task]
        found = panel.center[metric, mine]
        found = found[~np.isnan(found)]
        if len(found):
            out[tasks.index(name)] = found.mean()
