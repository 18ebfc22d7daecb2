"""Irregular iterations of a task: since when it is slower, when it was, and spikes. It names no cause.

After Holmes (NSDI'25): an iteration is irregular that takes delta times the mean of its window; it comes as a spike, as
a fluctuation, or lasts. What lasts has an onset, the change point; its delta is 1.04, the least that Holmes
distinguishes. For a single iteration it is 1.1, or five robust standard deviations of the task's own, if larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from detector.attribution.features import IRREGULAR_RATIO
from detector.stats.arrays import Floats, Ints
from detector.timeseries.rows import Rows, rows_of
from detector.topology.parallelism import Task
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

Kind = Literal["spike", "fluctuation", "slow", "was slow"]
SPIKE, SIGMAS = 1.1, 5.0
LOOK_NS = 3600 * SECOND
_SURE = 6.0
"""Standard errors between two levels: a split is sought among hundreds of places."""
_LEAST = 5
"""Iterations that make a level; fewer are a spike."""
_OFTEN = 3
"""So many spikes are a fluctuation."""
_BINS = 1800
_MOST_ROWS, _LOOKS, _GLANCE_NS = 3_000_000, 120, 3 * SECOND // 2
_NORMAL = 1.4826
_COLUMNS = ("pid", "iteration_seconds")


@dataclass(frozen=True, slots=True)
class IterationAnomaly:
    """One irregularity; times in Unix ns, seconds of an iteration. `until` is None where it lasts."""

    kind: Kind
    since: int
    until: int | None
    before: float
    """Seconds of an iteration when all is regular: the mean of the level that it is measured against."""
    after: float
    """While irregular: the mean of what lasts, the longest of what comes and goes."""
    times: int
    """How often: of spikes."""


def iterations(rows: Rows, task: Task, width_ns: int) -> tuple[Ints, Floats]:
    """Times (Unix ns, ends of bins) and seconds of an iteration: the median over the task's processes, where known."""
    seconds, pid = rows.number("iteration_seconds"), rows.number("pid")
    known = np.flatnonzero(np.isfinite(seconds) & np.isfinite(pid) & (seconds > 0))
    names = {name: place for place, (name, *_) in enumerate(rows.idents)}
    of_name = np.array([names[name] for name, *_ in rows.idents], np.int64)
    wanted = np.array([(names[name], number) for name, number in task.processes if name in names] or [(-1, -1)])
    who = of_name[rows.ident[known]] * 2**32 + pid[known].astype(np.int64)
    known = known[np.isin(who, wanted[:, 0] * 2**32 + wanted[:, 1])]
    bins, seconds = rows.time[known] // width_ns, seconds[known]
    order = np.lexsort((seconds, bins))
    place, first, count = np.unique(bins[order], return_index=True, return_counts=True)
    middle = seconds[order][first + (count - 1) // 2]
    return (place + 1) * width_ns, middle


def irregular(time: Ints, seconds: Floats) -> tuple[IterationAnomaly, ...]:
    """What is irregular in readings of how long iterations take, [reading] in order of time: what lasts comes first."""
    if len(time) < 2 * _LEAST:
        return ()
    smooth = _without_spikes(time, seconds)
    edges = [0, *sorted(_binary_segmentation(_Series(time, smooth, _noise(seconds)), 0, len(time))), len(time)]
    level = np.array([float(np.median(smooth[a:b])) for a, b in pairwise(edges)])
    usual = np.repeat(level, np.diff(edges))
    ratio = seconds / usual
    high = ratio > 1 + max(SPIKE - 1, SIGMAS * _spread(ratio))
    found = [*_lasting(time, edges, level), *_passing(time, seconds, usual, high)]
    return tuple(sorted(found, key=lambda one: (one.kind != "slow", one.since)))


def _without_spikes(time: Ints, seconds: Floats) -> Floats:
    """Running medians over three iterations at least: one that is long is no level."""
    step = float(np.median(np.diff(time))) / SECOND
    half = int(np.clip(1.5 * float(np.median(seconds)) / step + 1, 1, len(time) // 4))
    padded = np.pad(seconds, half, mode="edge")
    middle: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=-1)
    return middle


def _spread(values: Floats) -> float:
    """A robust standard deviation."""
    return _NORMAL * float(np.median(np.abs(values - np.median(values))))


def _noise(seconds: Floats) -> float:
    """A robust standard deviation of iterations, from one to the next: readings repeat what the last one took."""
    steps = np.diff(seconds)
    steps = steps[steps != 0]
    return _NORMAL * float(np.median(np.abs(steps))) / 2**0.5 if len(steps) else 0.0


@dataclass(frozen=True, slots=True)
class _Series:
    time: Ints
    seconds: Floats
    """Without spikes."""
    noise: float


def _binary_segmentation(series: _Series, begin: int, end: int) -> Iterator[int]:
    """Places where the level changes, by halving at the split of least squares while the sides differ for certain."""
    mine = series.seconds[begin:end]
    count = len(mine)
    if count < 2:
        return
    left = np.arange(1, count)
    total = np.cumsum(mine)
    apart = total[:-1] / left - (total[-1] - total[:-1]) / (count - left)
    at = begin + 1 + int(np.argmax(apart**2 * left * (count - left)))
    if _is_sure(series, begin, at, end):
        yield at
        yield from _binary_segmentation(series, begin, at)
        yield from _binary_segmentation(series, at, end)


def _is_sure(series: _Series, begin: int, at: int, end: int) -> bool:
    """Whether the sides, nearby or as a whole, hold enough iterations and differ by delta and more than by chance."""
    seconds, step = series.seconds, float(np.median(np.diff(series.time))) / SECOND
    reach, most = max(1, round(_LEAST * float(seconds[at - 1 : at + 1].max()) / step)), max(at - begin, end - at)
    while True:
        sides = seconds[max(begin, at - reach) : at], seconds[at : min(end, at + reach)]
        middles = [float(np.median(side)) for side in sides]
        held = [len(side) * min(1.0, step / middle) for side, middle in zip(sides, middles, strict=True)]
        error = max(series.noise, *map(_spread, sides)) * (1 / held[0] + 1 / held[1]) ** 0.5
        apart = abs(middles[1] - middles[0]) > _SURE * error and max(middles) > IRREGULAR_RATIO * min(middles)
        if apart and min(held) >= 0.8 * _LEAST:
            return True
        if reach >= most:
            return False
        reach *= 2


def _lasting(time: Ints, edges: list[int], level: Floats) -> Iterator[IterationAnomaly]:
    """Levels above the one that they are measured against: since the first that no later one comes down from."""
    at = 0
    while at < len(level) - 1:
        above = level[at + 1 :] > IRREGULAR_RATIO * level[at]
        down = len(above) if above.all() else int(np.argmin(above))
        if down:
            first, last = edges[at + 1], edges[at + 1 + down]
            slow = float(np.average(level[at + 1 : at + 1 + down], weights=np.diff(edges)[at + 1 : at + 1 + down]))
            # The first long iteration began as much earlier.
            since, lasts = int(time[first] - level[at + 1] * SECOND), last == len(time)
            now = float(level[-1]) if lasts else slow
            until = None if lasts else int(time[last - 1])
            yield IterationAnomaly("slow" if lasts else "was slow", since, until, float(level[at]), now, 1)
        at += max(down, 1)


def _passing(time: Ints, seconds: Floats, usual: Floats, high: NDArray[np.bool_]) -> Iterator[IterationAnomaly]:
    """Spikes, or one fluctuation where there are several."""
    begins = np.flatnonzero(high & ~np.append(False, high[:-1]))
    ends = np.flatnonzero(high & ~np.append(high[1:], False))
    spikes = [
        IterationAnomaly("spike", int(time[a] - longest * SECOND), int(time[b]), float(usual[a]), longest, 1)
        for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
        if (longest := float(seconds[a : b + 1].max()))
    ]
    if len(spikes) < _OFTEN:
        yield from spikes
        return
    worst, gap = max(spikes, key=lambda one: one.after), (time[ends[-1]] - time[begins[0]]) / (len(spikes) - 1)
    until = None if time[-1] - time[ends[-1]] < 2 * gap else int(time[ends[-1]])
    yield IterationAnomaly("fluctuation", spikes[0].since, until, worst.before, worst.after, len(spikes))


def read_irregular(
    source: ReadableStore, tasks: Sequence[Task], begin: int, end: int
) -> list[tuple[IterationAnomaly, ...]]:
    """What is irregular in each task with begin < time <= end (Unix ns); of large fleets only glances are read."""
    width = max(SECOND, (end - begin) // _BINS)
    found: list[list[tuple[Ints, Floats]]] = [[] for _ in tasks]
    for after, until in _looks(source, begin, end):
        rows = rows_of("nccl", source.read("nccl", after, until, _COLUMNS))
        for task, parts in zip(tasks, found, strict=True):
            parts.append(iterations(rows, task, width))
    return [irregular(*_joined(parts)) for parts in found]


def _looks(source: ReadableStore, begin: int, end: int) -> list[tuple[int, int]]:
    """Spans to read: all of it, piece by piece, or where that is too much so many glances."""
    some: Any = source.read("nccl", max(begin, end - 10 * SECOND), end, ())
    rows = some.num_rows * (end - begin) / (10 * SECOND)
    edges = np.linspace(begin, end, 13 if rows <= _MOST_ROWS else _LOOKS + 1).astype(np.int64).tolist()
    if rows <= _MOST_ROWS:
        return list(pairwise(edges))
    return [(edge - _GLANCE_NS, edge) for edge in edges[1:]]


def _joined(parts: list[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    """One series; what two pieces say of one bin counts once."""
    times, seconds = (np.concatenate(each) for each in zip(*parts, strict=True))
    time, first = np.unique(times, return_index=True)
    return time, seconds[first]
