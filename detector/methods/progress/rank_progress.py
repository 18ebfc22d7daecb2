"""How the ranks of all communicators stand at one time: how far each is, who waits, and where nothing moves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.stats.arrays import Ints
from detector.topology.rank_table import RankTable
from store.schema.time import NEVER, SECOND


@dataclass(frozen=True, slots=True)
class Standing:
    """The live series at one time, and what is known of each one's communicator; arrays over live series."""

    place: Ints
    comm: Ints
    process: Ints
    lead: NDArray[np.float64]
    """Operations enqueued, usual differences in counting taken off."""
    pending: NDArray[np.bool_]
    stuck: NDArray[np.bool_]
    """Whether its communicator has moved nothing for too long while some rank waits."""
    still_since: Ints
    waits: NDArray[np.bool_]
    """Whether its process waits in any communicator."""


def rank_progress(now: int, state: RankTable, config: Config) -> Standing | None:
    """How the live ranks stand at `now` (Unix ns), after which it is remembered who was calm; None where none live."""
    live = state.live(now)
    if not len(live):
        return None
    _, comm = np.unique(state.code[live], return_inverse=True)
    pending = state.floats["pending"][live] > 0
    count = int(comm.max()) + 1
    moved, rest = np.full(count, NEVER), np.full(count, NEVER)
    gap, waiting = np.zeros(count), np.zeros(count, bool)
    np.maximum.at(moved, comm, np.maximum(state.times["moved"], state.times["calm"])[live])
    np.maximum.at(rest, comm, state.times["moved"][live])
    np.maximum.at(gap, comm, state.floats["gap"][live])
    np.logical_or.at(waiting, comm, pending)
    patience = np.maximum(config.still_s, config.still_gaps * gap) + state.period / SECOND
    still = now - moved
    state.times["calm"][live[~waiting[comm]]] = now
    stuck = waiting & (still > patience * SECOND) & (np.bincount(comm) > 1)
    state.learn_offsets(live, comm, ~waiting & (now - rest > 2 * state.period + SECOND))
    lead = state.floats["operations"][live] + state.floats["offset"][live]
    lead[state.floats["aligned"][live] == 0] = np.nan
    _, process = np.unique(state.process[live], return_inverse=True)
    waits = np.zeros(len(live), bool)
    np.logical_or.at(waits, process, pending)
    return Standing(live, comm, process, lead, pending, stuck[comm], moved[comm], waits[process])
