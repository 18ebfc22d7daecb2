"""The progress of all live ranks at one time: operations enqueued, which ranks wait, which communicators stall."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.config import Config
from detector.stats.arrays import Bools, Floats, Ints
from detector.topology.rank_table import RankTable
from store.schema.time import NEVER, SECOND

_UNSURE_S, _BEGUN = 60.0, 3
"""So long a communicator stalls of which ranks are not read, or were not until as long ago, or move in other ones, or
that showed progress in so few rows yet: ranks that load, connect or are on their way look the same."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """Arrays over the live series; the last five are the same for all series of a communicator."""

    series: Ints
    """Numbers in the rank table."""
    comm: Ints
    """Communicators, numbered from 0."""
    process: Ints
    """Processes, numbered from 0."""
    operations: Floats
    """Operations enqueued, with those that the agent missed; NaN where the count compares with no other rank's."""
    pending: Bools
    """Whether an operation of this series is not finished."""
    process_waits: Bools
    """Whether an operation of any series of its process is not finished."""
    stalled: Bools
    """Whether it made no progress for too long while a rank waits ..."""
    stalled_if_whole: Bools
    """... or would have, if all its ranks were read."""
    last_progress: Ints
    """Unix ns; a time at which no rank waited counts as progress."""
    idle: Bools
    """Whether no rank waits."""
    at_rest: Bools
    """Whether it is idle for so long that all ranks must have the same count."""


def rank_progress(now: int, ranks: RankTable, config: Config) -> RankProgress | None:
    """The progress of the live ranks at `now` (Unix ns); None where no rank is live."""
    series = ranks.live(now)
    if not len(series):
        return None
    _, comm = np.unique(ranks.code[series], return_inverse=True)
    _, process = np.unique(ranks.process[series], return_inverse=True)
    pending = ranks.pending[series] > 0
    active_at = np.maximum(ranks.last_progress, ranks.last_idle)[series]
    last, moved = latest(active_at, comm), latest(ranks.last_progress[series], comm)
    gap = np.zeros(len(moved))
    np.maximum.at(gap, comm, ranks.gap[series])
    size, rows = np.zeros(len(moved)), np.zeros(len(moved))
    np.maximum.at(size, comm, np.nan_to_num(ranks.comm_ranks[series]))
    np.maximum.at(rows, comm, ranks.moves[series])
    moves = now - latest(ranks.last_progress[series], process)[process] <= config.min_stall_seconds * SECOND
    returned = now - latest(ranks.back[series], comm) < _UNSURE_S * SECOND
    unsure = returned | (np.bincount(comm, moves) > 0) | (rows <= _BEGUN)
    idle = np.bincount(comm, pending) == 0
    stalled, stalled_if_whole = (
        ~idle & (now - last > _patience(ranks, gap, some, config) * SECOND) & (np.bincount(comm) > 1)
        for some in (unsure | (np.bincount(comm) < size), unsure)
    )
    at_rest = idle & (now - moved > 2 * ranks.period + SECOND)
    operations = np.where(ranks.aligned[series] > 0, ranks.operations[series] + ranks.offset[series], np.nan)
    process_waits = np.bincount(process, pending) > 0
    of_comm = (stalled[comm], stalled_if_whole[comm], last[comm], idle[comm], at_rest[comm])
    return RankProgress(series, comm, process, operations, pending, process_waits[process], *of_comm)


def _patience(ranks: RankTable, gap: Floats, unsure: Bools, config: Config) -> Floats:
    """[communicator]: seconds without progress from which on it stalls, given its longest usual `gap` (s)."""
    least = np.where(unsure, _UNSURE_S, config.min_stall_seconds)
    return np.maximum(least, config.stall_gaps * gap) + ranks.period / SECOND


def latest(time: Ints, group: Ints) -> Ints:
    """[group]: the latest time of its series."""
    latest = np.full(int(group.max()) + 1, NEVER)
    np.maximum.at(latest, group, time)
    return latest
