"""Attribution of one window's delay to processes: from communicators to ranks, then to the processes of a task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.attribution.features import blame
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.grouped import mean_of, middle_of

LATE, SLOW = 0, 1
"""Rows: the process comes late to its collectives, its communication is slow."""
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Delays:
    """One window as one measure knows it; arrays over series."""

    comm: Ints
    """Communicators, numbered from 0."""
    process: Ints
    """Places among the live processes."""
    delay: Floats
    """Seconds by which iterations of the task are longer than usual."""
    point_to_point: Bools
    """Whether ranks send to and receive from one another: then a rank waits only for those before it."""
    abnormal: Bools
    excess: Floats
    """Seconds by which operations of an iteration take longer than usual."""


def delay_shares(delays: Delays, task: Ints) -> Floats:
    """[LATE or SLOW, process]: each process's share of its task's delay; lower where it explains a part of it only.

    `task` is each process's, -1: none.
    """
    caused = _caused(delays)
    explained = _explained(delays, task)
    total, found = (_by_process(rows, delays.process, len(task)) for rows in (caused, caused * explained))
    # A communicator that explains half of the delay or less shows a consequence, or all of them take longer.
    best = np.zeros(len(task))
    np.maximum.at(best, delays.process, np.where(caused > 0, explained, 0.0).max(0))
    found *= np.clip(2 * _largest_of_task(best, task) - 1, 0.0, 1.0)
    # A slow link delays all ranks of its communicators, which then share its cause: the largest gets all of it.
    found[SLOW] *= total_of_task(total[SLOW], task) / np.maximum(_largest_of_task(total[SLOW], task), _TINY)
    shares: Floats = found / np.maximum(total_of_task(total.sum(0), task), _TINY)
    return shares


def total_of_task(values: Floats, task: Ints) -> Floats:
    """[process]: the sum over its task; processes of no task are one, too."""
    return np.asarray(np.bincount(task + 1, values)[task + 1], np.float64)


def _caused(delays: Delays) -> Floats:
    """[LATE or SLOW, series]: seconds of delay that each rank causes in its communicator."""
    own = delays.excess * delays.abnormal
    # The order in which a rank calls its communicators is not known: a rank that waits more elsewhere is a victim.
    elsewhere = np.asarray(np.bincount(delays.process, own)[delays.process] - own, np.float64)
    late, slow = blame(delays.comm, delays.abnormal, own, elsewhere)
    return np.where(delays.point_to_point, 0.0, np.stack([late, slow]))


def _explained(delays: Delays, task: Ints) -> Floats:
    """[LATE or SLOW, series]: share of the task's delay that the excess of its communicator explains, 0 to 1.

    A slow link explains only what communicators of the same size do not have in common.
    """
    own, count = delays.excess * delays.abnormal, np.bincount(delays.comm, delays.abnormal)
    excess = (np.bincount(delays.comm, own) / np.maximum(count, 1))[delays.comm]
    common = _common_excess(delays, task[delays.process])
    return np.minimum(1.0, np.stack([excess, excess - common]) / delays.delay).clip(0.0)


def _common_excess(delays: Delays, task: Ints) -> Floats:
    """[series]: median excess of its task's communicators of the same size, seconds; 0 where there is one only."""
    ranks = np.bincount(delays.comm)[delays.comm]
    kind = np.unique(np.stack([task, ranks]), axis=1, return_inverse=True)[1].reshape(-1)
    has_others = np.bincount(kind, 1 / ranks)[kind] > 1.5
    return np.where(has_others, np.maximum(middle_of(mean_of(delays.comm, delays.excess), kind), 0.0), 0.0)


def _by_process(rows: Floats, process: Ints, count: int) -> Floats:
    """[LATE or SLOW, process]: sums over each process's communicators."""
    return np.stack([np.bincount(process, row, count) for row in rows])


def _largest_of_task(values: Floats, task: Ints) -> Floats:
    """[process]: the largest value of its task, 0 at least."""
    largest = np.zeros(int(task.max(initial=-1)) + 2)
    np.maximum.at(largest, task + 1, values)
    return largest[task + 1]
