"""The behaviour of ranks from traces of PyTorch's profiler: each of Flare's metrics."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from analysis.behaviour.measures import Behaviour
from analysis.traces import kineto
from analysis.traces.bounded import TraceError
from analysis.traces.operations import UNKNOWN, Collector, Operations
from detector.stats.arrays import Floats


def read_traces(paths: list[Path], tell: Callable[[int], None] = lambda done: None) -> Behaviour:
    """The behaviour of the ranks of one job; `tell` hears how many files are done.

    Raises TraceError for a file that is no trace.
    """
    table, size = Collector(), 0
    found: dict[str, dict[str, Floats]] = {}
    for done, path in enumerate(paths, 1):
        trace = kineto.read(path)
        name = f"rank {trace.rank}" if trace.rank != UNKNOWN else path.name
        if name in found:
            raise TraceError(f"{path}: a second trace of {name}; name the traces of one run")
        size = max(size, trace.world, len(found) + 1)
        kineto.add_operations(trace, table)
        found[name] = _measured(trace)
        tell(done)
    operations = table.table()
    behaviour = Behaviour(size, _program(operations))
    for rank, measures in found.items():
        for measure, values in measures.items():
            behaviour.add(measure, rank, values)
    for communicator, rates in _bandwidth(operations).items():
        for rank, values in rates.items():
            behaviour.add(f"bandwidth of {communicator}", rank, values)
    return behaviour


def _measured(trace: kineto.Trace) -> dict[str, Floats]:
    kernels = trace.is_kernel & ~trace.is_communication
    found = {"issue_latency": np.maximum((trace.start - trace.launch)[kernels], 0.0)}
    if not len(trace.steps):
        return found
    begin, seconds = trace.steps[:, 1], trace.steps[:, 2]
    busy, compute = (_per_step(trace, which) for which in (np.ones(len(kernels), bool), kernels))
    edges = _edges(trace)
    between, within = edges
    found |= {"iteration_seconds": _lengths(begin, seconds), "compute_seconds": compute}
    found |= {"void_between": between, "void_within": np.clip(within - busy / seconds, 0.0, 1.0)}
    for name, rows in trace.stalls.items():
        found[name] = _stalled(rows, begin, seconds)
    return found


def _lengths(begin: Floats, seconds: Floats) -> Floats:
    """From the beginning of a step to that of the next; the last one's own length."""
    return np.append(np.diff(begin), seconds[-1])


def _union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Intervals in order of their start, those that overlap joined."""
    reach = np.maximum.accumulate(end)
    fresh = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return start[fresh], np.append(reach[fresh[1:] - 1], reach[-1])


def _covered(start: Floats, end: Floats, low: Floats, high: Floats) -> Floats:
    """[window]: seconds of it that intervals which do not overlap cover."""
    if not len(start):
        return np.zeros(len(low))
    total = np.concatenate([[0.0], np.cumsum(end - start)])

    def until(moment: Floats) -> Floats:
        place = np.searchsorted(start, moment, "right")
        over = np.where(place > 0, np.maximum(end[place - 1] - moment, 0.0), 0.0)
        return np.asarray(total[place] - over)

    return until(high) - until(low)


def _per_step(trace: kineto.Trace, which: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Floats:
    """[step]: seconds in which an activity of the GPU ran, by the clock."""
    start, seconds = trace.start[which], trace.seconds[which]
    if not len(start):
        return np.zeros(len(trace.steps))
    joined = _union(start, start + seconds)
    return _covered(*joined, trace.steps[:, 1], trace.steps[:, 1] + trace.steps[:, 2])


def _edges(trace: kineto.Trace) -> tuple[Floats, Floats]:
    """[step]: share of it before the first and after the last activity of the GPU, and the share between those."""
    begin, seconds = trace.steps[:, 1], trace.steps[:, 2]
    joined = _union(trace.start, trace.start + trace.seconds) if len(trace.start) else (np.empty(0), np.empty(0))
    first = np.searchsorted(joined[1], begin, "right")
    last = np.searchsorted(joined[0], begin + seconds) - 1
    some = first <= last
    starts, ends = (np.append(part, np.nan) for part in joined)
    active = np.minimum(ends[last], begin + seconds) - np.maximum(starts[first], begin)
    within = np.where(some, active, 0.0) / seconds
    return 1 - within, within


def _stalled(rows: Floats, begin: Floats, seconds: Floats) -> Floats:
    """[step]: share of it in calls of one kind."""
    if not len(rows):
        return np.zeros(len(begin))
    ordered = rows[np.argsort(rows[:, 0], kind="stable")]
    joined = _union(ordered[:, 0], ordered[:, 0] + ordered[:, 1])
    return _covered(*joined, begin, begin + seconds) / seconds


def _bandwidth(table: Operations) -> dict[str, dict[str, Floats]]:
    """Communicator -> rank -> bytes over seconds, from the last entry of any rank on (Flare)."""
    if not len(table.rank):
        return {}
    keys = np.stack([table.communicator, table.kind, table.index, table.peer])
    cell = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    shortest = np.full(int(cell.max()) + 1, np.inf)
    np.fmin.at(shortest, cell, table.seconds)
    rate = table.bytes / np.maximum(shortest[cell], 1e-9)
    found: dict[str, dict[str, Floats]] = defaultdict(dict)
    for place, name in enumerate(table.communicators):
        for rank in np.unique(table.rank[table.communicator == place]):
            found[name][table.ranks[rank]] = rate[(table.communicator == place) & (table.rank == rank)]
    return found


def _program(table: Operations) -> str:
    """A number for which kinds and sizes of operations the program asks."""
    if not len(table.rank):
        return ""
    sizes = np.unique(np.stack([table.kind, np.nan_to_num(table.bytes).astype(np.int64)]), axis=1)
    words = sorted(f"{table.kinds[kind]} {size}" for kind, size in sizes.T.tolist())
    return f"{zlib.crc32(' '.join(words).encode()):08x}"
