"""Signals of a straggler: each rank's waiting and sending compared with the other ranks of its communicator.

A straggler's peers spend longer in the collectives that they share with it. Only shares of time are compared, so clocks
need not agree.
"""

from __future__ import annotations

import numpy as np

from detector.stats.arrays import Floats, Ints
from detector.topology.rank_table import RankTable

LATE, SENDING, OTHERS, BEHIND, ABSENT, LENGTH, PACE = 0, 1, 2, 3, 4, 5, 6
SIGNALS = 7
"""Rows of the signals: share of time by which a rank waits less than the others (LATE), by which it sends or holds
chunks back more (SENDING), and for which the others wait (OTHERS); steps by which others of its machine are ahead,
-1 to 1 (BEHIND); share of time by which the others are longer in operations (ABSENT); seconds of an iteration (LENGTH);
steps a second (PACE)."""

_HELD = 5.0
"""So many times a chunk that is held back counts: in health, on emulated GPUs, that was 0.01 at most, lateness 0.1."""


def wait_signals(ranks: RankTable, series: Ints, comm: Ints) -> Floats:
    """[signal, series]; 0 where a communicator has no other rank, or nothing is known; NaN: LENGTH or PACE is not."""
    awaited, active = waiting(ranks, series, comm), ranks.active[series]
    others = _mean_of_others(awaited, comm)
    # Where the others receive within their machines, more waiting than this rank's own baseline is all that tells.
    absent = _mean_of_others(active, comm) - active
    late = np.where(np.isnan(awaited), absent, np.nan_to_num(others) - awaited)
    sending, held = ranks.sending[series], _HELD * _held_back(ranks, series, comm)
    slower = np.nan_to_num(sending - _mean_of_others(sending, comm)) + held - np.nan_to_num(_mean_of_others(held, comm))
    shares = np.nan_to_num(np.stack([late, slower, others, _steps_behind(ranks, series, comm), absent]))
    return np.concatenate([shares, np.stack([ranks.iteration[series], ranks.pace[series]])])


def waiting(ranks: RankTable, series: Ints, comm: Ints) -> Floats:
    """[series]: the share of samples in which the network was asked for data that had not arrived.

    NCCL hands an operation to its proxy as soon as the host enqueues it, so that it is active long before its GPU gets
    to it; data that has arrived is there until the GPU takes it. Where that share is not known of any rank of the
    communicator, an active operation stands for it; NaN: of others alone, as this one receives within its machine.
    """
    receiving = ranks.receiving[series]
    looked = np.bincount(comm, ~np.isnan(receiving)) > 0
    return np.where(looked[comm], receiving, ranks.active[series])


def _held_back(ranks: RankTable, series: Ints, comm: Ints) -> Floats:
    """[series]: the share of samples in which a chunk was ready, and neither sent nor refused by its receiver.

    A receiver refuses while its GPU does not take what it has; then it awaits nothing. The rank that awaits least
    counts, since samples do not always tell which one the receiver is; one that receives within its machine is none.
    """
    awaits = np.nan_to_num(ranks.receiving[series], nan=1.0)
    refused = 1 - _least_of_others(awaits, comm)
    return np.maximum(np.nan_to_num(ranks.unsent[series]) - refused, 0.0)


def _least_of_others(values: Floats, group: Ints) -> Floats:
    """The least value of the other members of each one's group; 0 where there are none."""
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    count = np.bincount(group, minlength=int(group.max(initial=-1)) + 1)
    least, second = np.zeros((2, len(count)))
    least[group[order[first]]] = values[order[first]]
    several = first[count[group[order[first]]] > 1]
    second[group[order[several]]] = values[order[several + 1]]
    lowest = np.zeros(len(values), bool)
    lowest[order[first]] = True
    return np.where(lowest, second[group], np.where(count[group] > 1, least[group], 0.0))


def _steps_behind(ranks: RankTable, series: Ints, comm: Ints) -> Floats:
    """[series]: steps by which the others are ahead, -1 to 1; 0 where they are not in the same operation.

    The others are those on the same machine: their rows are read at the same time. Ranks of a ring need each other's
    chunks, so no rank is ahead of another by more steps than there are ranks.
    """
    machine = ranks.machine[ranks.process[series]]
    _, together = np.unique(comm * (int(machine.max(initial=0)) + 1) + machine, return_inverse=True)
    step = ranks.ring_step[series]
    gap = np.nan_to_num(_mean_of_others(step, together) - step)
    return np.where(np.abs(gap) < np.bincount(comm)[comm], np.clip(gap, -1.0, 1.0), 0.0)


def _mean_of_others(values: Floats, group: Ints) -> Floats:
    """The mean of the other members of each one's group; NaN where there are none."""
    known = ~np.isnan(values)
    total = np.bincount(group, np.where(known, values, 0.0))[group]
    count = np.bincount(group, known)[group] - known
    return np.where(count > 0, (total - np.nan_to_num(values)) / np.maximum(count, 1), np.nan)
