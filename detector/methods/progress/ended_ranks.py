"""Ended ranks: read until their communicator stalled and not since, while the others of their machine still are."""

from __future__ import annotations

import numpy as np

from detector.methods.progress.rank_progress import RankProgress, latest
from detector.stats.arrays import Ints
from detector.topology.rank_table import RankTable
from store.schema.time import SECOND

_NEAR_S, _NEAR_PERIODS = 15.0, 3.0
"""Seconds, or periods of the rows, between the last row of a rank that ended and the last progress of the others."""
_GONE_S, _GONE_PERIODS = 30.0, 4.0
"""Seconds, and periods of the rows, for which a rank is not read that ended: rows get lost."""
_WAIT = 0.9
"""Of the ranks that are left, so many wait: then it is for those that ended."""


def ended_ranks(now: int, ranks: RankTable, progress: RankProgress) -> tuple[Ints, Ints]:
    """Series of ranks that ended, one of each process, and the communicator of `progress` that waits for it.

    `now` is Unix ns. An agent that restarts is silent on all GPUs of its machine, so that of one machine some ranks
    have to be live.
    """
    comm, count = progress.comm, len(ranks.number)
    stalled, size = np.bincount(comm, progress.stalled_if_whole) > 0, np.bincount(comm)
    waits = np.bincount(comm, progress.pending) >= _WAIT * size
    place = np.full(int(ranks.code[:count].max()) + 1, -1)
    place[ranks.code[progress.series]] = np.where((stalled & waits)[comm], comm, -1)
    live = np.zeros(count, bool)
    live[progress.series] = True
    silent_ns = now - max(_GONE_S * SECOND, _GONE_PERIODS * ranks.period)
    gone = np.flatnonzero(~live & (ranks.code[:count] >= 0) & (ranks.last_seen[:count] <= silent_ns))
    of = place[ranks.code[gone]]
    moved = latest(progress.last_progress, comm)[of]
    near = np.abs(ranks.last_seen[gone] - moved) <= max(_NEAR_S * SECOND, _NEAR_PERIODS * ranks.period)
    gone, of = gone[near & (of >= 0)], of[near & (of >= 0)]
    few = np.bincount(of, minlength=len(size)) <= np.maximum(1, size // 4)
    machine = ranks.machine[ranks.process]
    sibling = np.isin(machine[gone], machine[progress.series])
    found = few[of] & sibling
    _, first = np.unique(ranks.process[gone[found]], return_index=True)
    return gone[found][first], of[found][first]
