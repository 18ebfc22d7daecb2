"""The graph of operations from what each rank communicated: Kineto traces, and our own recordings.

Such logs have no passes and no pipeline stages. Between two operations a rank is on its own: it computes, or its host
does. So each rank is a line of such spans and operations, and ranks of one operation wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.traces.operations import UNKNOWN, UNNAMED
from analysis.traces.operations import Operations as Table
from analysis.whatif import graph
from analysis.whatif.model import Model
from analysis.whatif.operations import Operations, first_of, joined, positions
from detector.stats.arrays import Bools, Floats, Ints

OWN = "own time"
"""Type of the span between two operations of a rank: computing, copies, the host."""
_CLOCK_S = 2e-5
"""Streams of a GPU agree to this: what ended so much later still came before."""
_TOGETHER_S = 5e-4


def timeline(table: Table) -> Model:
    """The model of the steps of a table. Raises ValueError where it has no steps, or fewer than two ranks."""
    notes: list[str] = []
    lines = _lines(table, notes)
    return _model(table, lines, _members(table, lines, notes), notes)


@dataclass(frozen=True, slots=True)
class _Lines:
    """The usable rows of a table, ordered by step, rank and start; arrays are [operation]."""

    row: Ints
    step: Ints
    """Without gaps, as the ranks."""
    rank: Ints
    start: Floats
    """Seconds since its rank ended the step before."""
    seconds: Floats
    line: Ints
    """Number of step and rank together."""
    steps: Ints
    """[step]: the numbers in the log."""
    ranks: Ints
    """[rank]: its place among the table's."""


def _lines(table: Table, notes: list[str]) -> _Lines:
    start = _laid_out(table) if len(table.step_seconds) else table.start
    usable = np.flatnonzero((table.rank >= 0) & (table.step != UNKNOWN) & np.isfinite(start) & (table.seconds >= 0))
    if not len(usable):
        raise ValueError("no operation has a step and a time: profile with torch.profiler's schedule and step()")
    order = usable[np.lexsort((start[usable], table.rank[usable], table.step[usable]))]
    steps, step = np.unique(table.step[order], return_inverse=True)
    ranks, rank = np.unique(table.rank[order], return_inverse=True)
    if len(ranks) < 2:
        raise ValueError(f"all operations are of {table.ranks[ranks[0]]}: name the logs of at least two ranks")
    begun, whole = _begun(table, (step, rank), start[order], start[order] + table.seconds[order], notes)
    there = np.flatnonzero(whole[step])
    step, rank, order = (np.cumsum(whole) - 1)[step[there]], rank[there], order[there]
    since = start[order] - begun[whole][step, rank]
    return _Lines(order, step, rank, since, table.seconds[order], joined(step, rank), steps[whole], ranks)


def _begun(
    table: Table, place: tuple[Ints, Ints], start: Floats, end: Floats, notes: list[str]
) -> tuple[Floats, Bools]:
    """[step, rank]: when it ended the step before, and [step]: whether that is known of all ranks.

    `place` are step and rank of each operation, `start` and `end` their times. Raises ValueError if no step is whole.
    """
    step, rank = place
    first = first_of(joined(step, rank))
    left = np.full((int(step.max()) + 1, int(rank.max()) + 1), np.nan)
    left[step[first], rank[first]] = np.maximum.reduceat(end, first)
    begun = np.vstack([np.full_like(left[:1], np.nan), left[:-1]])
    if len(table.step_seconds):
        begun[:] = 0.0
    elif len(left) == 1:
        begun[step[first], rank[first]] = np.minimum.reduceat(start, first)
        notes.append("there is one step: what ranks did before its first operation is not known")
    whole = np.asarray(np.isfinite(begun).all(1) & np.isfinite(left).all(1))
    if not whole.any():
        raise ValueError("no step has operations of every rank")
    if missing := int((~whole).sum()):
        notes.append(f"{missing} of {len(left)} steps are left out: a step needs every rank, and the step before it")
    return begun, whole


def _laid_out(table: Table) -> Floats:
    """[row]: a start within its window, where a log says only how long each communicator was in flight.

    One follows the other, the largest last, and what is left of the iteration comes before them.
    """
    size = np.bincount(table.communicator, minlength=len(table.communicators))[table.communicator]
    order = np.lexsort((size, table.rank, table.step))
    line = joined(table.step, np.maximum(table.rank, 0))[order]
    first = first_of(line)
    seconds = np.cumsum(table.seconds[order])
    total = np.diff(np.append(0.0, seconds[np.append(first[1:], len(order)) - 1]))
    before = np.repeat(np.append(0.0, seconds[first[1:] - 1]), np.diff(first, append=len(order)))
    spare = np.maximum(table.step_seconds[table.step[order]] - np.repeat(total, np.diff(first, append=len(order))), 0.0)
    start = np.empty(len(order))
    start[order] = spare + seconds - before - table.seconds[order]
    return start


def _members(table: Table, lines: _Lines, notes: list[str]) -> Ints:
    """[operation]: a number that the ranks of one operation share. Raises ValueError where none is shared."""
    unnamed = np.array([name.startswith(UNNAMED) for name in table.communicators])[table.communicator[lines.row]]
    group = np.unique(
        np.where(unnamed, -1 - _ended_together(table, lines, unnamed), _numbered(table, lines)), return_inverse=True
    )[1]
    alone = np.bincount(group)[group] == 1
    if alone.all():
        raise ValueError("no operation of one rank is one of another's: name the logs of ranks that communicate")
    if unnamed.any():
        notes.append("operations without the name of a group are one where they end within 0.5 ms of each other")
    if alone.any():
        notes.append(
            f"{alone.mean():.0%} of the operations are of one rank alone: what it waits in them counts as its own"
        )
    return group


def _numbered(table: Table, lines: _Lines) -> Ints:
    """[operation]: by communicator, kind, pair, and which of those it is in its step and rank."""
    kind, peer, rank = (column[lines.row] for column in (table.kind, table.peer, table.rank))
    sends = np.array([name == "Send" for name in table.kinds])[kind]
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    paired = peer != UNKNOWN
    pair = np.where(paired, 1 + joined(np.maximum(source, 0), np.maximum(target, 0)), 0)
    series = _codes(lines.step, table.communicator[lines.row], np.where(paired, -1, kind), pair)
    return _codes(series, positions(joined(series, lines.rank)))


def _ended_together(table: Table, lines: _Lines, chosen: Bools) -> Ints:
    """[operation]: by when it ended on the machines' clocks, of the chosen ones: members end at once."""
    end = (table.start + table.seconds)[lines.row]
    order = np.lexsort((end, table.kind[lines.row], ~chosen))
    apart = np.diff(end[order], prepend=-np.inf) > _TOGETHER_S
    number = np.empty(len(end), np.int64)
    number[order] = np.cumsum(apart | (np.diff(table.kind[lines.row][order], prepend=-1) != 0))
    # What ends twice on a rank within that time are two operations.
    return _codes(number, positions(joined(number, lines.rank)))


def _codes(*columns: Ints) -> Ints:
    """[row]: its place among the different rows."""
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _model(table: Table, lines: _Lines, group: Ints, notes: list[str]) -> Model:
    """Each operation gets the span before it; the spans follow all operations, then both are put in order."""
    count = len(lines.row)
    previous = _previous(lines)
    free = np.where(previous >= 0, lines.start[previous] + lines.seconds[previous], 0.0)
    own = np.maximum(lines.start - free, 0.0)
    shortest = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(shortest, group, lines.seconds)
    found, order = _operations(table, lines, own)
    place = np.empty(2 * count, np.int64)
    place[order] = np.arange(2 * count)
    after = np.flatnonzero(previous >= 0)
    source = np.append(np.arange(count, 2 * count), previous[after])  # the span, then what it follows
    target = np.append(np.arange(count), after + count)
    every = np.append(group, group.max() + 1 + np.arange(count))
    built, _ = graph.build(found.step, every[order], place[source], place[target])
    if built is None:
        raise ValueError("operations wait for each other in a circle: the clocks of a rank's streams disagree")
    lengths = np.append(shortest[group], own)
    return Model(found, built, lengths[order], _ideal(lines, lengths)[order], notes)


def _operations(table: Table, lines: _Lines, own: Floats) -> tuple[Operations, Ints]:
    """The operations and then their spans, put in order, and that order."""
    count = len(own)
    kind = np.append(table.kind[lines.row], np.full(count, len(table.kinds)))
    start, seconds = np.append(lines.start, lines.start - own), np.append(lines.seconds, own)
    step, rank = np.tile(lines.step, 2), np.tile(lines.rank, 2)
    order = np.lexsort((start, rank, step))
    step, rank, none = step[order], rank[order], np.zeros(2 * count, np.int64)
    found = Operations(
        step, worker=rank, replica=rank, dp_rank=rank, stage=none,
        rank=np.array(rank_numbers(table.ranks))[lines.ranks][rank],
        kind=kind[order], start=start[order], duration=seconds[order],
        chunk=none, global_chunk=none, micro_batch=none - 1, kinds=(*table.kinds, OWN), steps=lines.steps,
    )  # fmt: skip
    return found, order


def _previous(lines: _Lines) -> Ints:
    """[operation]: of those of its line that had ended when it began the last to end; -1: none."""
    end = lines.start + lines.seconds
    span = float(end.max()) + 1.0
    order = np.lexsort((end, lines.line))
    at = np.searchsorted(end[order] + lines.line[order] * span, lines.start + _CLOCK_S + lines.line * span, "right") - 1
    found = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (lines.line[found] == lines.line) & (lines.start[found] < lines.start), found, -1)


def _ideal(lines: _Lines, lengths: Floats) -> Floats:
    """[operation, then its span]: over all steps and ranks that call the same in this place.

    The mean of spans, the median of operations.
    """
    place = positions(lines.line)
    kinds = joined(place, np.bincount(lines.line)[lines.line])
    out = np.empty(len(lengths))
    for part, middle in ((slice(0, len(place)), np.median), (slice(len(place), None), np.mean)):
        values = lengths[part]
        order = np.argsort(kinds, kind="stable")
        for rows in np.split(order, first_of(kinds[order])[1:]):
            out[part][rows] = middle(values[rows])
    return out


def rank_numbers(names: Sequence[str]) -> list[int]:
    """[rank]: the number in which its name ends, where all names end in different ones; else its place."""
    tails = [name.rpartition(" ")[2] for name in names]
    are_numbers = all(tail.isdecimal() for tail in tails) and len(set(tails)) == len(tails)
    return [int(tail) for tail in tails] if are_numbers else list(range(len(tails)))
