"""Hangs: the rank that never entered a collective, that called another one, or the link or GPU that blocks the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.methods.progress.chunk_dependency import NO_PEER, ChunkWaitGraph, RootCause
from detector.methods.progress.ended_ranks import ended_ranks
from detector.methods.progress.hang_text import HangText
from detector.methods.progress.rank_progress import RankProgress
from detector.model.operations import is_point_to_point
from detector.model.verdict import Level, Verdict
from detector.stats.arrays import Bools, Floats, Ints
from detector.topology.rank_table import RankTable, resolve_peer
from store.schema.time import SECOND


@dataclass(slots=True)
class Hang:
    """The stalled ranks at `now` (Unix ns); its verdicts have no task yet. A place is one in `progress`."""

    now: int
    ranks: RankTable
    progress: RankProgress
    text: HangText
    critical_after_s: float
    """From then on a missing rank is critical; one that writes a checkpoint for all looks the same for a while."""
    names: NDArray[np.str_] = field(init=False)
    """The operations that were called last."""
    called: Ints = field(init=False)
    """[place]: its last operation, a place in `names`."""
    paired: Bools = field(init=False)
    """[place]: whether its last operation goes from rank to rank."""
    shared: Bools = field(init=False)
    """[place]: whether its last operation is known, and one that all ranks of its communicator call."""

    def __post_init__(self) -> None:
        called = self.ranks.operation[self.progress.series].tolist()
        number = {name: place for place, name in enumerate(dict.fromkeys(called))}
        self.names = np.array(list(number))
        self.called = np.fromiter(map(number.__getitem__, called), np.int64, len(called))
        self.paired = is_point_to_point(self.names)[self.called]
        self.shared = ~self.paired & (self.names != "")[self.called]

    def missing_ranks(self) -> list[Verdict]:
        """Ranks that are behind the others of their communicator and do not wait themselves."""
        progress, comm = self.progress, self.progress.comm
        lag = np.where(self._absent(), 1.0, self._lag())
        # The others wait for the same operation. Counts that differ all over were not counted alike.
        missing = progress.stalled & (lag >= 1) & ~progress.process_waits
        size, count, ahead = np.bincount(comm), np.bincount(comm, missing), np.bincount(comm, lag == 0)
        paired = np.bincount(comm, self.paired) > 0
        judged = ~paired & (2 * ahead >= size) & (count <= np.maximum(1, size // 4))
        return [self._missing(place, float(lag[place])) for place in self._by_comm(missing & judged[comm])]

    def ended_ranks(self) -> list[Verdict]:
        """Ranks that are read no more since the others of their communicator wait."""
        series, comm = ended_ranks(self.now, self.ranks, self.progress)
        return [self._ended(int(one), int(of)) for one, of in zip(series, comm, strict=True)]

    def mismatched_collectives(self) -> list[Verdict]:
        """Ranks that enqueued another operation than the others at the same place of their sequence."""
        progress = self.progress
        foremost = progress.stalled & (self._lag() == 0)
        shared = np.bincount(progress.comm, foremost & ~self.shared) == 0
        verdicts = []
        for comm in np.flatnonzero(self._differ(foremost) & shared):
            members = np.flatnonzero(foremost & (progress.comm == comm))
            voters = self._voters(members)
            votes = np.bincount(self.called[voters])
            usual = int(votes.argmax())
            odd = members[self.called[members] != usual]
            if 2 * votes[usual] <= len(voters) or 3 * len(odd) > len(voters):
                odd, usual = self._departed(members)
            verdicts += [self._mismatched(place, str(self.names[usual])) for place in odd.tolist()]
        return verdicts

    def departed_ranks(self, group: Ints) -> list[Verdict]:
        """Ranks that called what they never did at that place, where all have gone on to the same operation since.

        A program that runs ahead enqueues more behind the call that does not fit. `group` as in `blocked_transfers`.
        """
        progress, comm = self.progress, self.progress.comm
        departs = self.ranks.departs[progress.series]
        size, count = np.bincount(comm), np.bincount(comm, departs > 0)
        unclear = np.bincount(comm, self.paired | np.isnan(departs)) > 0
        waits = np.bincount(comm, progress.stalled & progress.pending & (group >= 0)) > 0
        judged = waits & ~unclear & (3 * count <= size) & ~self._differ(progress.stalled)
        odd = self._by_comm((departs > 0) & judged[comm])
        return [self._departure(place, int(size[comm[place]]) - 1) for place in odd]

    def blocked_transfers(self, group: Ints) -> list[Verdict]:
        """The cause in each group of series in which all ranks have entered and nothing moves.

        `group` [series] is -1 where nothing is to be judged.
        """
        progress, ranks = self.progress, self.ranks
        verdicts = []
        for one in np.unique(group[progress.stalled & (group >= 0)]):
            places = np.flatnonzero((group == one) & progress.stalled)
            series = progress.series[places]
            graph = ChunkWaitGraph(
                progress.comm[places],
                progress.process[places],
                ranks.rank[series],
                progress.pending[places],
                resolve_peer(ranks.sends_to[series], ranks.sending[series]),
                resolve_peer(ranks.receives_from[series], ranks.receiving[series]),
                ranks.credit_from[series],
                ranks.awaiting_gpu[series] > 0,
            )
            cause = graph.root_cause()
            if cause is not None:
                peer = None if cause.peer == NO_PEER else int(places[cause.peer])
                verdicts.append(self._blocked(int(places[cause.place]), peer, cause))
        return verdicts

    def _lag(self) -> Floats:
        """[place]: operations behind the foremost rank of its communicator; NaN where the count compares with none."""
        progress = self.progress
        front = np.full(int(progress.comm.max()) + 1, -np.inf)
        np.fmax.at(front, progress.comm, progress.operations)
        lag: Floats = front[progress.comm] - progress.operations
        return lag

    def _absent(self) -> Bools:
        """[place]: whether CUDA graphs replay its operations, which counts none, and it has none at work."""
        progress, ranks = self.progress, self.ranks
        replayed, active = ranks.replayed[progress.series] == 1, ranks.active[progress.series]
        absent: Bools = replayed & (active == 0) & ~progress.process_waits
        return absent

    def _departed(self, members: Ints) -> tuple[Ints, int]:
        """Without a majority: the ranks that depart from their own history, where all others follow theirs alike."""
        departs = self.ranks.departs[self.progress.series[members]]
        odd, usual = members[departs > 0], self.called[members[departs == 0]]
        unclear = not len(odd) or len(odd) > len(usual) or len(set(usual)) != 1 or np.isnan(departs).any()
        return (members[:0], 0) if unclear else (odd, int(usual[0]))

    def _voters(self, members: Ints) -> Ints:
        """Two ranks cannot outvote each other: communicators of the same size vote with them."""
        size = self.ranks.comm_ranks[self.progress.series]
        if len(members) > 2 or np.isnan(size[members[0]]):
            return members
        return np.flatnonzero((size == size[members[0]]) & self.shared)

    def _differ(self, ranks: Bools) -> Bools:
        """[communicator]: whether those of the `ranks` [place] that are in it called different operations."""
        low, high = np.full((2, int(self.progress.comm.max()) + 1), [[len(self.names)], [-1]])
        np.minimum.at(low, self.progress.comm[ranks], self.called[ranks])
        np.maximum.at(high, self.progress.comm[ranks], self.called[ranks])
        differ: Bools = low < high
        return differ

    def _by_comm(self, chosen: Bools) -> list[int]:
        """The chosen places, communicator after communicator."""
        places = np.flatnonzero(chosen)
        ordered: list[int] = places[np.argsort(self.progress.comm[places], kind="stable")].tolist()
        return ordered

    def _missing(self, place: int, lag: float) -> Verdict:
        progress = self.progress
        members = progress.comm == progress.comm[place]
        seconds, waiting = self._stalled_s(place), progress.series[members & progress.pending]
        lost = self._lost_calls(progress.series[members])
        message = self.text.missing(int(progress.series[place]), lag, waiting, seconds, lost)
        level: Level = "crit" if seconds >= self.critical_after_s and not lost else "warn"
        return self._verdict(place, "operations_total", lag, level, message)

    def _ended(self, series: int, comm: int) -> Verdict:
        since = int(self.ranks.last_seen[series])
        waiting = self.progress.series[(self.progress.comm == comm) & self.progress.pending]
        seconds = (self.now - since) / SECOND
        machine, device = self.text.device(series)
        message = self.text.ended(series, waiting, seconds)
        return Verdict(self.now, "", machine, device, "progress", "nccl.operations_total", 1.0, since, "crit", message)

    def _mismatched(self, place: int, usual: str) -> Verdict:
        peers = int((self.progress.comm == self.progress.comm[place]).sum()) - 1
        message = self.text.mismatched(int(self.progress.series[place]), usual, peers)
        return self._verdict(place, "operation", 1.0, "crit", message)

    def _departure(self, place: int, peers: int) -> Verdict:
        message = self.text.departed(int(self.progress.series[place]), peers, self._stalled_s(place))
        return self._verdict(place, "departs", 1.0, "crit", message)

    def _blocked(self, place: int, peer: int | None, cause: RootCause) -> Verdict:
        progress = self.progress
        series, other = int(progress.series[place]), None if peer is None else int(progress.series[peer])
        waiting = len(np.unique(progress.process[progress.pending]))
        message = self.text.blocked(series, other, cause, waiting, self._stalled_s(place))
        column = "waits_to_receive_from" if cause.receives else "waits_to_send_to"
        return self._verdict(place, "waits_for_gpu" if cause.side == "gpu" else column, 1.0, "crit", message)

    def _verdict(self, place: int, column: str, score: float, level: Level, message: str) -> Verdict:
        machine, device = self.text.device(int(self.progress.series[place]))
        since = int(self.progress.last_progress[place])
        return Verdict(self.now, "", machine, device, "progress", f"nccl.{column}", score, since, level, message)

    def _stalled_s(self, place: int) -> float:
        return (self.now - int(self.progress.last_progress[place])) / SECOND

    def _lost_calls(self, series: Ints) -> float:
        """Calls of a communicator that the probes may have missed: then a missing call proves less."""
        machines = {self.text.device(one)[0] for one in series.tolist()}
        return float(self.ranks.lost_calls[series].max()) + max(
            self.ranks.lost_by_machine.get(machine, 0.0) for machine in machines
        )
