"""The root cause of a hang in which all ranks have entered a collective, from the states of their chunks.

After the state table of Mycroft (SOSP'25, arXiv 2509.03018). A chunk that was handed to the network and has not arrived
blocks its receiver and all ranks behind it: the fault is at one end of that link. So does a chunk that is ready and
that its receiver awaits: then its sender does not send it. Where no chunk is on its way, each rank waits for data from
one peer, or for another one to take its data (credit); the rank at the end of these waits has a GPU that does neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Floats, Ints
from detector.topology.rank_table import NO_RANK, SOME_RANK

NO_PEER = -1
"""In place of the other end of a link: there is none, or it is not known."""
_MAX_LINKS = 0.25  # blocked at once, as a share of the processes: more are a fault of the network, not of a machine


@dataclass(frozen=True, slots=True)
class RootCause:
    """Where a hang begins; places in the arrays of the graph."""

    place: int
    peer: int
    """The other end of the link; NO_PEER: not known."""
    side: Literal["link", "gpu"]
    receives: bool
    """Whether the root cause is the receiving end; of a GPU: it takes no data, and no rank waits for data from it."""
    links: int
    """Blocked links; more than half of them end at the root cause."""


@dataclass(frozen=True, slots=True)
class ChunkWaitGraph:
    """What the ranks of stalled communicators wait for; arrays over (communicator, rank)."""

    comm: Ints
    process: Ints
    rank: Floats
    pending: NDArray[np.bool_]
    sends_to: Floats
    """Rank to which a chunk is on its way."""
    receives_from: Floats
    """Rank from which a chunk is awaited."""
    credit_from: Floats
    """Rank that gives no credit for a chunk that is ready."""
    awaiting_gpu: NDArray[np.bool_]
    """Whether the GPU has no more data to send."""

    def root_cause(self) -> RootCause | None:
        """What blocks the other ranks; None where the states do not show it."""
        sends_to = np.where(self._unsent(), self.credit_from, self.sends_to)
        sending = np.flatnonzero((sends_to >= 0) | (sends_to == SOME_RANK))
        return self._link(sending, sends_to[sending]) if len(sending) else self._gpu()

    def _unsent(self) -> NDArray[np.bool_]:
        """Ranks that have a chunk ready, and the receiver awaits it: credit is there, and the network does not send."""
        unsent = np.zeros(len(self.rank), bool)
        ready = np.flatnonzero(self.credit_from >= 0)
        receiver = self._places(ready, self.credit_from[ready])
        unsent[ready] = (receiver != NO_PEER) & (self.receives_from[receiver] == self.rank[ready])
        return unsent

    def _link(self, sending: Ints, sends_to: Floats) -> RootCause | None:
        """The end that most blocked links have in common; of two with as many links, the sender."""
        peer = self._places(sending, sends_to)
        ends = self.process[sending], np.where(peer == NO_PEER, NO_PEER, self.process[peer])
        links = np.unique(np.stack(ends), axis=1)
        count = links.shape[1]
        if count > max(2.0, _MAX_LINKS * len(np.unique(self.process))):
            return None
        score = np.zeros(int(self.process.max()) + 1)
        np.add.at(score, links[0], 1.0 + 1e-3)
        np.add.at(score, links[1][links[1] != NO_PEER], 1.0)
        worst = int(score.argmax())
        if 2 * int(score[worst]) <= count:
            return None
        sends = np.flatnonzero(ends[0] == worst)
        if len(sends):
            return RootCause(int(sending[sends[0]]), int(peer[sends[0]]), "link", False, count)
        receiver = int(np.flatnonzero(ends[1] == worst)[0])
        return RootCause(int(peer[receiver]), int(sending[receiver]), "link", True, count)

    def _gpu(self) -> RootCause | None:
        """The one process that others wait for, or that owes data, and that waits for no other itself."""
        wanted = np.concatenate(
            [
                self._waited_for(self.receives_from),
                np.flatnonzero(self.awaiting_gpu),
                self._waited_for(self.credit_from),
            ]
        )
        free = np.ones(int(self.process.max()) + 1, bool)
        free[self.process[(self.receives_from != NO_RANK) | (self.credit_from >= 0)]] = False
        roots = wanted[free[self.process[wanted]] & self.pending[wanted]]
        if len(np.unique(self.process[roots])) != 1:
            return None
        takes_none = self.process[roots[0]] not in self.process[self._waited_for(self.receives_from)]
        return RootCause(int(roots[0]), NO_PEER, "gpu", takes_none and bool(np.any(self.credit_from >= 0)), 0)

    def _waited_for(self, rank: Floats) -> Ints:
        """The places of the ranks that are waited for; `rank` is [place], negative where none is."""
        waiting = np.flatnonzero(rank >= 0)
        places: Ints = self._places(waiting, rank[waiting])
        known: Ints = places[places != NO_PEER]
        return known

    def _places(self, waiting: Ints, wanted: Floats) -> Ints:
        """The places of the ranks that those at `waiting` wait for, each in its own communicator."""
        known = np.flatnonzero(~np.isnan(self.rank))
        if not len(known):
            return np.full(len(waiting), NO_PEER, np.int64)
        width = 1 + int(max(self.rank[known].max(), wanted.max(initial=0.0)))
        keys = self.comm[known] * width + self.rank[known].astype(np.int64)
        order = np.argsort(keys)
        key = self.comm[waiting] * width + wanted.astype(np.int64)
        place = np.searchsorted(keys[order], key).clip(max=len(keys) - 1)
        return np.where((wanted >= 0) & (keys[order][place] == key), known[order][place], NO_PEER)
