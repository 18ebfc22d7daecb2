"""The search over the graph of communicators: from each abnormal operation back to the rank or link that caused it.

After Holmes (NSDI'25). Where all ranks of an operation but one are abnormal, that one came late and the others waited
for it. Was it itself held up, in an abnormal operation before, the search goes on there (the previous
operator; through Send and Recv to the peer). Where all ranks of an operation are abnormal, its communication is slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.operators.iterations import Log
from analysis.operators.judging import Judged
from detector.stats.arrays import Bools, Floats, Ints

_CAME_LATE = 0.5  # of the others' wait: a rank that waited for this much before was held up
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the search from each abnormal operation ended; arrays are [operation across ranks]."""

    cost: Floats
    """Seconds that its abnormal ranks lost, added up; 0 for a normal operation."""
    late: Ints
    """The rank that everything led to; -1: none."""
    slow: Ints
    """The operation with slow communication that everything led to; -1: none."""


def search(log: Log, judged: Judged) -> Roots:
    """The roots of one irregular iteration."""
    cells = int(log.cell.max(initial=-1)) + 1
    members, many = np.bincount(log.cell, minlength=cells), np.bincount(log.cell, judged.abnormal, cells)
    lost = np.bincount(log.cell, judged.excess * judged.abnormal, cells)
    waited, before = _earlier(log, judged)
    cost = lost / np.maximum(many, 1)
    chosen = _missing_one(log, judged.abnormal, waited, cells)
    held_up = (chosen >= 0) & (before[chosen] >= 0) & (waited[chosen] >= _CAME_LATE * cost)
    shared = (many > 0) & (members > 1)
    slow, victim = shared & (many == members), shared & (many < members) & held_up
    culprit = shared & (many == members - 1) & ~held_up & ~slow
    step = np.arange(cells)
    step[victim] = log.cell[before[chosen[victim]]]
    for _ in range(int(cells).bit_length()):  # each round doubles the steps taken
        step = step[step]
    late = np.where(culprit[step], log.rank[chosen[step]], _NOWHERE)
    return Roots(np.where(shared, lost, 0.0), np.where(shared, late, _NOWHERE), np.where(slow[step] & shared, step, -1))


def _earlier(log: Log, judged: Judged) -> tuple[Floats, Ints]:
    """[column]: seconds that its rank lost in operations before it, and the last abnormal one of those (-1: none)."""
    order = np.lexsort((log.order, log.rank))
    rank, wrong = log.rank[order], judged.abnormal[order]
    lost = judged.excess[order]
    before = np.cumsum(lost) - lost
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    length = np.diff(first, append=len(rank))
    waited, previous = np.empty(len(rank)), np.full(len(rank), _NOWHERE)
    waited[order] = before - np.repeat(before[first], length)
    last = np.maximum.accumulate(np.where(wrong, np.arange(len(rank)), _NOWHERE))
    shifted = np.concatenate([[_NOWHERE], last[:-1]])
    mine = shifted >= np.repeat(first, length)
    previous[order[mine]] = order[shifted[mine]]
    return waited, previous


def _missing_one(log: Log, abnormal: Bools, waited: Floats, cells: int) -> Ints:
    """[cell]: of its normal ranks the column of the one that waited most before; -1: none is normal."""
    normal = np.flatnonzero(~abnormal)
    chosen = np.full(cells, _NOWHERE)
    ordered = normal[np.argsort(waited[normal], kind="stable")]
    chosen[log.cell[ordered]] = ordered  # the last one that is written stays
    return chosen
