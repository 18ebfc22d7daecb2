"""A task that stands still: who never entered, who called something else, whose link or GPU holds up the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.methods.progress.chunk_dependency import NOBODY, ChunkWaitGraph, RootCause
from detector.methods.progress.rank_progress import Standing
from detector.model.operations import is_point_to_point, named
from detector.model.text import subject
from detector.model.verdict import Level, Verdict
from detector.stats.arrays import Ints
from detector.topology.rank_table import RankTable, told
from store.schema.time import SECOND


def who(ident: tuple[str, ...]) -> tuple[str, str | None]:
    """Machine and device of a series (machine, GPU, slot); None where the GPU is not known."""
    return ident[0], f"gpu:{ident[1]}" if len(ident) > 1 and ident[1] else None


@dataclass(frozen=True, slots=True)
class Hang:
    """What can be said of the ranks as they stand at `now` (Unix ns); verdicts name no task yet."""

    now: int
    ranks: RankTable
    standing: Standing
    idents: list[tuple[str, ...]]
    sure_s: float
    """Seconds after which a rank that all others wait for is critical."""

    def missing_ranks(self) -> list[Verdict]:
        """Ranks that are behind the others of their communicator and wait for nobody."""
        standing = self.standing
        front = np.full(standing.comm.max() + 1, -np.inf)
        np.maximum.at(front, standing.comm, np.nan_to_num(standing.lead, nan=-np.inf))
        lag = front[standing.comm] - standing.lead
        paired = np.isin(standing.comm, standing.comm[is_point_to_point(self._names())])
        root = standing.stuck & ~paired & (lag >= 1) & ~standing.waits
        out = []
        for comm in np.unique(standing.comm[root]):
            mine = standing.comm == comm
            few = max(1, int(mine.sum()) // 4)
            if (root & mine).sum() <= few:
                out += [self._missing(int(at), float(lag[at])) for at in np.flatnonzero(root & mine)]
        return out

    def wrong_collective(self) -> list[Verdict]:
        """Ranks that enqueued another operation than the others at the same place of their sequence."""
        standing, names = self.standing, self._names()
        ranks = self.ranks.floats["ranks"][standing.place]
        out = []
        for comm in self._at_odds(names):
            mine = np.flatnonzero((standing.comm == comm) & ~np.isnan(standing.lead))
            if not len(mine):
                continue
            mine = mine[standing.lead[mine] == np.nanmax(standing.lead[mine])]
            if len(set(names[mine])) < 2 or is_point_to_point(names[mine]).any() or "" in names[mine]:
                continue
            # Two ranks alone cannot outvote each other: communicators of the same size vote with them.
            alike = (ranks == ranks[mine[0]]) & ~is_point_to_point(names) & (names != "")
            voters = mine if len(mine) > 2 or np.isnan(ranks[mine[0]]) else np.flatnonzero(alike)
            (usual, most), *others = Counter(names[voters].tolist()).most_common()
            odd = [int(at) for at in mine if names[at] != usual]
            if most > sum(count for _, count in others) and 3 * len(odd) <= len(voters):
                out += [self._differing(at, usual) for at in odd]
        return out

    def blocked_transfers(self, team: Ints) -> list[Verdict]:
        """Of each team in which all have entered and nothing moves: where the states of the chunks point.

        `team` is each series' team, -1: none to be judged.
        """
        standing, floats = self.standing, self.ranks.floats
        out = []
        for one in np.unique(team[standing.stuck & (team >= 0)]):
            mine = np.flatnonzero((team == one) & standing.stuck)
            place = standing.place[mine]
            chunks = ChunkWaitGraph(
                standing.comm[mine],
                standing.process[mine],
                floats["rank"][place],
                standing.pending[mine],
                told(floats["sends_to"][place], floats["sending"][place]),
                told(floats["receives_from"][place], floats["receiving"][place]),
                floats["gpu"][place] > 0,
            )
            root = chunks.root()
            if root is not None:
                other = None if root.peer == NOBODY else int(mine[root.peer])
                out.append(self._blocked(int(mine[root.at]), other, root))
        return out

    def _names(self) -> NDArray[np.str_]:
        return self.ranks.operation[self.standing.place].astype(str)

    def _at_odds(self, names: NDArray[np.str_]) -> Ints:
        """Communicators that stand still and whose foremost ranks did not all enqueue the same."""
        standing = self.standing
        _, code = np.unique(names, return_inverse=True)
        count = int(standing.comm.max()) + 1
        front, low, high = np.full(count, -np.inf), np.full(count, len(code)), np.full(count, -1)
        lead = np.nan_to_num(standing.lead, nan=-np.inf)
        np.maximum.at(front, standing.comm, lead)
        first = (lead == front[standing.comm]) & ~np.isnan(standing.lead) & standing.stuck
        np.minimum.at(low, standing.comm[first], code[first])
        np.maximum.at(high, standing.comm[first], code[first])
        return np.flatnonzero(low < high)

    def _missing(self, at: int, lag: float) -> Verdict:
        standing = self.standing
        mine = standing.comm == standing.comm[at]
        waiting, seconds = int((standing.pending & mine).sum()), (self.now - standing.still_since[at]) / SECOND
        wanted = self.ranks.operation[standing.place[mine & standing.pending][0]]
        doubt = self._doubt(standing.place[mine])
        message = (
            f"{self._rank(at)} never entered {named(wanted)}: "
            f"{lag:.0f} operation{'s' * (lag != 1)} behind, {waiting} rank{'s' * (waiting != 1)} "
            f"waiting for it since {seconds:.0f} s{doubt}"
        )
        # One rank that writes a checkpoint while the others wait at a barrier looks the same, for a while.
        level: Level = "crit" if seconds >= self.sure_s and not doubt else "warn"
        return self._verdict(at, "operations_total", lag, level, message)

    def _differing(self, at: int, usual: str) -> Verdict:
        peers = int((self.standing.comm == self.standing.comm[at]).sum()) - 1
        message = (
            f"{self._rank(at)} called the wrong collective: {named(self.ranks.operation[self.standing.place[at]])} "
            f"where its {peers} peer{'s' * (peers != 1)} called {named(usual)}; "
            "this is software, no hardware is blamed"
        )
        return self._verdict(at, "operation", 1.0, "crit", message)

    def _blocked(self, at: int, other: int | None, root: RootCause) -> Verdict:
        standing = self.standing
        if root.side == "gpu":
            column, what = "waits_for_gpu", "has all the data it needs, but its GPU offers nothing to send on"
        else:
            column = "waits_to_receive_from" if root.receives else "waits_to_send_to"
            way = "did not take a chunk from" if root.receives else "handed a chunk to"
            end = "another rank" if other is None else self._rank(other)
            what = f"{way} {end} and it is not through: its link, or the other end's"
        seconds = (self.now - standing.still_since[at]) / SECOND
        message = (
            f"{self._rank(at)} entered {named(self.ranks.operation[standing.place[at]])} like all others and {what}; "
            f"{len(np.unique(standing.process[standing.pending]))} ranks wait since {seconds:.0f} s"
        )
        return self._verdict(at, column, 1.0, "crit", message)

    def _verdict(self, at: int, column: str, score: float, level: Level, message: str) -> Verdict:
        machine, device = who(self.idents[self.standing.place[at]])
        since = int(self.standing.still_since[at])
        return Verdict(self.now, "", machine, device, "progress", f"nccl.{column}", score, since, level, message)

    def _doubt(self, places: Ints) -> str:
        """What was not seen of a communicator's calls, in words: absence proves less then."""
        machines = {self.idents[place][0] for place in places}
        lost = float(self.ranks.floats["lost"][places].max()) + max(self.ranks.lost.get(m, 0.0) for m in machines)
        return f"; {lost:.0f} calls were lost to the probes, so this is less sure" if lost else ""

    def _rank(self, at: int) -> str:
        """Who is meant, with its rank where that is known: `m03 gpu:0 (rank 24)`."""
        place = self.standing.place[at]
        rank = self.ranks.floats["rank"][place]
        return subject(*who(self.idents[place])) + ("" if np.isnan(rank) else f" (rank {rank:.0f})")
