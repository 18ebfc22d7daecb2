"""Lines operations up: which iteration each belongs to, and which operations of other ranks it is the same one as.

Where the log names no iterations, they are found from the order of operations of the rank with the most: the shortest
distance at which that order repeats. Other communicators are counted by when their operations began, so clocks must
agree to less than half an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.traces.operations import UNKNOWN, Operations
from detector.stats.arrays import Bools, Floats, Ints

LEAST = 4
"""Iterations: of fewer nothing is usual."""
_LOOK = 20_000  # operations in which a period is looked for
_REPEATS, _SLACK = 0.8, 1e-3
_PRESENT = 0.8  # share of iterations in which an operation must be


@dataclass(frozen=True, slots=True)
class Log:
    """Operations as [iteration, column]; a column is the same operation of one rank in every iteration."""

    elapsed: Floats
    """Seconds; NaN where an iteration lacks it."""
    rank: Ints
    cell: Ints
    """[column]: the operation, the same number for all ranks that take part in it."""
    order: Ints
    """[column]: which of its rank's operations in an iteration it is."""
    communicator: Ints
    kind: Ints
    size: Floats
    """[column], bytes; 0: not known."""
    paired: Bools
    """[column]: whether it goes from rank to rank."""
    iteration_seconds: Floats


def lined_up(table: Operations) -> Log | None:
    """The operations by iteration; None where fewer than LEAST complete iterations can be recognised."""
    iteration, slot = _numbered(table)
    inside = np.flatnonzero(iteration >= 0)
    if not len(inside):
        return None
    seconds, first = _iteration_seconds(table, iteration)
    if len(seconds) < LEAST:
        return None
    rows = inside[(iteration[inside] >= first) & (iteration[inside] < first + len(seconds))]
    return _columns(table, rows, iteration[rows] - first, slot[rows], seconds)


def _numbered(table: Operations) -> tuple[Ints, Ints]:
    """[operation]: its iteration, -1 where none is known, and its place among those of its series in it."""
    series = _series(table)
    if (table.step != UNKNOWN).any():
        # Numbers of steps are the log's own, and may be far apart; windows of a recording are counted from 0.
        step = table.step if len(table.step_seconds) else _without_gaps(table.step)
        return step, _places(np.stack([series, table.rank, step]), table.start)
    begins = _boundaries(table)
    iteration, slot = np.full(len(series), -1), np.zeros(len(series), np.int64)
    if len(begins) < LEAST:
        return iteration, slot
    paired = table.peer != UNKNOWN
    local = _places(np.stack([series, table.rank]), table.start)
    index = np.where(paired | (table.index == UNKNOWN), local, _dense(series, table.index))
    # Sends are counted by each rank for itself; in a collective all ranks go by the count of one of them.
    keys = np.where(paired, series * len(table.ranks) + table.rank, -1 - series)
    order = np.argsort(keys, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        one = rows[table.rank[rows] == table.rank[rows[0]]]
        found = _per_iteration(index[one], table.start[one], begins)
        if found is not None:
            each, offset = found
            iteration[rows], slot[rows] = np.divmod(index[rows] - offset, each)
    return np.where(iteration < len(begins), iteration, -1), slot


def _without_gaps(step: Ints) -> Ints:
    """[operation]: which of the steps that occur it is in; -1 stays -1."""
    of = np.unique(np.append(step, UNKNOWN), return_inverse=True)[1]
    return np.asarray(of[:-1] - 1)


def _series(table: Operations) -> Ints:
    """[operation]: communicator and kind, or communicator, sender and receiver, as one number.

    Kinds are counted apart since NCCL's Inspector does; for a log that counts them together it makes no difference.
    """
    sends = np.array([kind == "Send" for kind in table.kinds] or [False])[table.kind]
    source, target = np.where(sends, table.rank, table.peer), np.where(sends, table.peer, table.rank)
    paired = table.peer != UNKNOWN
    kind = np.where(paired, -1, table.kind)
    keys = np.stack([table.communicator, kind, np.where(paired, source, -1), np.where(paired, target, -1)])
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _dense(series: Ints, index: Ints) -> Ints:
    """[operation]: which of the numbers that occur in its series its index is."""
    found, of = np.unique(np.stack([series, index]), axis=1, return_inverse=True)
    first = np.flatnonzero(np.diff(found[0], prepend=-1))
    return np.asarray(
        (np.arange(found.shape[1]) - np.repeat(first, np.diff(first, append=found.shape[1])))[of.reshape(-1)]
    )


def _places(keys: Ints, time: Floats) -> Ints:
    """[operation]: how many with the same keys [key, operation] were before it."""
    group = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((np.nan_to_num(time), group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    place = np.empty(len(group), np.int64)
    place[order] = np.arange(len(group)) - np.repeat(starts, np.diff(starts, append=len(group)))
    return place


def _boundaries(table: Operations) -> Floats:
    """When iterations begin, by the rank with the most operations; empty where nothing repeats."""
    busiest = np.bincount(table.rank[table.rank >= 0]).argmax()
    mine = np.flatnonzero(table.rank == busiest)
    mine = mine[np.argsort(table.start[mine], kind="stable")][-_LOOK:]
    start, end = table.start[mine], table.end[mine]
    if np.isnan(start).any():
        return np.empty(0)
    keys = np.stack([table.communicator, table.kind, table.peer, np.nan_to_num(table.bytes).astype(np.int64)])[:, mine]
    period = _period(keys) or _period(keys[:3])
    if not period:
        return np.empty(0)
    # An iteration ends where most ranks meet: waits before that meeting belong to it.
    pairs = np.unique(np.stack([table.communicator, table.rank]), axis=1)
    meeting = np.bincount(pairs[0])[table.communicator[mine]]
    gaps = np.append(start[1:] - end[:-1], -np.inf)
    after = [(int(meeting[at]), float(np.median(gaps[at::period][:-1]))) for at in range(period)]
    return start[(after.index(max(after)) + 1) % period :: period]


def _period(keys: Ints) -> int:
    """The shortest distance at which the sequence repeats as well as at any; 0 where it does not."""
    token = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    share = np.array([np.mean(token[by:] == token[:-by]) for by in range(1, len(token) // LEAST + 1)])
    if not len(share) or share.max() < _REPEATS:
        return 0
    return int(np.argmax(share >= share.max() - _SLACK)) + 1


def _per_iteration(index: Ints, start: Floats, begins: Floats) -> tuple[int, int] | None:
    """How many operations of a series an iteration has, and the index with which the first iteration begins."""
    order = np.argsort(index)
    inside = np.searchsorted(begins, start[order], "right") - 1
    counts = np.bincount(inside[inside >= 0], minlength=len(begins))
    each = int(np.median(counts[:-1]))
    if not each:
        return None
    number, first = np.unique(inside, return_index=True)
    number, first = number[number > 0], first[number > 0]  # those before the first boundary may lack their beginning
    return (each, int(np.median(index[order][first] - number * each))) if len(number) else None


def _iteration_seconds(table: Operations, iteration: Ints) -> tuple[Floats, int]:
    """Seconds of each iteration, the median over ranks, and the number of the first one."""
    if len(table.step_seconds):
        known = np.flatnonzero(np.isfinite(table.step_seconds))
        if not len(known):
            return np.empty(0), 0
        return np.interp(np.arange(known[0], known[-1] + 1), known, table.step_seconds[known]), int(known[0])
    low, high = int(iteration[iteration >= 0].min()), int(iteration.max())
    last = np.full((len(table.ranks), high - low + 1), -np.inf)
    inside = (iteration >= 0) & (table.rank >= 0) & np.isfinite(table.end)
    np.maximum.at(last, (table.rank[inside], iteration[inside] - low), table.end[inside])
    last[np.isinf(last)] = np.nan
    lengths = np.diff(last, axis=1)
    whole = np.isfinite(lengths).any(0)
    seconds = np.array([np.nanmedian(column) for column in lengths.T[whole]])
    # The end of an iteration before the first is not in the log; the last one may be cut off.
    return seconds[: len(seconds) - (_is_cut(iteration, high))], low + 1


def _is_cut(iteration: Ints, last: int) -> int:
    counts = np.bincount(iteration[iteration >= 0])
    return int(counts[last] < np.median(counts[counts > 0]))


def _columns(table: Operations, rows: Ints, iteration: Ints, slot: Ints, seconds: Floats) -> Log:
    series = _series(table)
    cell = np.unique(np.stack([series[rows], slot]), axis=1, return_inverse=True)[1].reshape(-1)
    keys = np.stack([table.rank[rows], cell])
    column, at, of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    of = of.reshape(-1)
    elapsed = np.full((len(seconds), column.shape[1]), np.nan)
    began = np.full_like(elapsed, np.nan)
    elapsed[iteration, of] = table.seconds[rows]
    began[iteration, of] = table.start[rows]
    enough = np.flatnonzero((np.isfinite(elapsed).mean(0) >= _PRESENT) & (column[0] >= 0))
    some = rows[at[enough]]
    order = _order(began[:, enough], column[0, enough])
    return Log(
        elapsed[:, enough],
        column[0, enough],
        np.unique(column[1, enough], return_inverse=True)[1].astype(np.int64),
        order,
        table.communicator[some],
        table.kind[some],
        np.nan_to_num(table.bytes[some]),
        table.peer[some] != UNKNOWN,
        seconds,
    )


def _order(began: Floats, rank: Ints) -> Ints:
    """[column]: its place among its rank's, by when it begins after the first of that iteration."""
    if np.isnan(began).all():
        return np.zeros(len(rank), np.int64)
    first = np.full((len(began), int(rank.max()) + 1), np.inf)
    for row, times in zip(first, began, strict=True):
        np.fmin.at(row, rank, times)
    late = np.nanmedian(np.where(np.isnan(began), np.nan, began - first[:, rank]), axis=0)
    return _places(rank[None], late)
