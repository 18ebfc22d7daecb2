"""Chunks: all ranks have entered a collective and none moves on; what each waits for tells which side of which link.

After the state table of Mycroft (SOSP'25, arXiv 2509.03018). A chunk that was handed to the network and is not through
holds up its receiver, and everybody behind: the two ends of that link are where to look. Where no chunk is on its way,
whoever is waited for and itself waits for no data has a GPU that offers none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Floats, Ints
from detector.topology.rank_table import NONE, SOMEBODY

NOBODY = -1
"""In place of a rank: it waits for none, it cannot be told, it waits but for whom cannot be told."""
_MANY = 0.25  # links at once, as a share of the processes: then it is the network, and no machine alone


@dataclass(frozen=True, slots=True)
class RootCause:
    """Where a standstill comes from; places in the arrays that were given."""

    at: int
    peer: int
    """The other end of the link, NOBODY where it cannot be told."""
    side: Literal["link", "gpu"]
    receives: bool
    """Whether the root is the receiving end."""
    links: int
    """Links that are held up; those that end at the root are all, or more than half, of them."""


@dataclass(frozen=True, slots=True)
class ChunkWaitGraph:
    """What the ranks of communicators that stand still wait for; arrays over (communicator, rank)."""

    comm: Ints
    process: Ints
    rank: Floats
    pending: NDArray[np.bool_]
    sends_to: Floats
    """Rank to which a chunk was handed to the network and is not through."""
    receives_from: Floats
    """Rank from which a chunk is awaited."""
    unoffered: NDArray[np.bool_]
    """Whether the GPU has offered nothing more to send."""

    def root(self) -> RootCause | None:
        """Who holds up the rest; None where the states do not tell."""
        sending = np.flatnonzero((self.sends_to >= 0) | (self.sends_to == SOMEBODY))
        return self._link(sending) if len(sending) else self._gpu()

    def _link(self, sending: Ints) -> RootCause | None:
        """The end that most of the links that are held up have in common; of two alike, the sender."""
        peer = self._places(sending, self.sends_to[sending])
        ends = self.process[sending], np.where(peer == NOBODY, NOBODY, self.process[peer])
        links = np.unique(np.stack(ends), axis=1)
        count = links.shape[1]
        if count > max(2.0, _MANY * len(np.unique(self.process))):
            return None
        score = np.zeros(int(self.process.max()) + 1)
        np.add.at(score, links[0], 1.0 + 1e-3)
        np.add.at(score, links[1][links[1] != NOBODY], 1.0)
        worst = int(score.argmax())
        if 2 * int(score[worst]) <= count:
            return None
        mine = np.flatnonzero(ends[0] == worst)
        if len(mine):
            return RootCause(int(sending[mine[0]]), int(peer[mine[0]]), "link", False, count)
        other = int(np.flatnonzero(ends[1] == worst)[0])
        return RootCause(int(peer[other]), int(sending[other]), "link", True, count)

    def _gpu(self) -> RootCause | None:
        """The one process that is waited for, or owes data, and in none of its communicators waits for data itself."""
        waiting = np.flatnonzero(self.receives_from >= 0)
        wanted = self._places(waiting, self.receives_from[waiting])
        wanted = np.append(wanted[wanted != NOBODY], np.flatnonzero(self.unoffered))
        free = np.ones(int(self.process.max()) + 1, bool)
        free[self.process[self.receives_from != NONE]] = False
        roots = wanted[free[self.process[wanted]] & self.pending[wanted]]
        if len(np.unique(self.process[roots])) != 1:
            return None
        return RootCause(int(roots[0]), NOBODY, "gpu", False, 0)

    def _places(self, asking: Ints, wanted: Floats) -> Ints:
        """The places of the ranks that those at `asking` wait for, each in its own communicator."""
        known = np.flatnonzero(~np.isnan(self.rank))
        if not len(known):
            return np.full(len(asking), NOBODY, np.int64)
        width = 1 + int(max(self.rank[known].max(), wanted.max(initial=0.0)))
        keys = self.comm[known] * width + self.rank[known].astype(np.int64)
        order = np.argsort(keys)
        asked = self.comm[asking] * width + wanted.astype(np.int64)
        at = np.searchsorted(keys[order], asked).clip(max=len(keys) - 1)
        return np.where((wanted >= 0) & (keys[order][at] == asked), known[order][at], NOBODY)
