"""Hangs: the rank that never entered a collective, that called another one, or the link or GPU that blocks the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.methods.progress.chunk_dependency import NO_PEER, ChunkWaitGraph, RootCause
from detector.methods.progress.hang_text import HangText
from detector.methods.progress.rank_progress import RankProgress
from detector.model.operations import is_point_to_point
from detector.model.verdict import Level, Verdict
from detector.stats.arrays import Ints
from detector.topology.rank_table import RankTable, resolve_peer
from store.schema.time import SECOND


@dataclass(frozen=True, slots=True)
class Hang:
    """The stalled ranks at `now` (Unix ns); its verdicts have no task yet. A place is one in `progress`."""

    now: int
    ranks: RankTable
    progress: RankProgress
    text: HangText
    critical_after_s: float
    """From then on a missing rank is critical; one that writes a checkpoint for all looks the same for a while."""

    def missing_ranks(self) -> list[Verdict]:
        """Ranks that are behind the others of their communicator and do not wait themselves."""
        progress = self.progress
        front = np.full(progress.comm.max() + 1, -np.inf)
        np.maximum.at(front, progress.comm, np.nan_to_num(progress.operations, nan=-np.inf))
        lag = np.where(self._absent(), 1.0, front[progress.comm] - progress.operations)
        # The others wait for the same operation. Counts that differ all over were not counted alike.
        size, ahead = np.bincount(progress.comm), np.bincount(progress.comm, lag == 0)
        paired = np.isin(progress.comm, progress.comm[is_point_to_point(self._operations())])
        missing = progress.stalled & ~paired & (lag >= 1) & ~progress.process_waits
        verdicts = []
        for comm in np.unique(progress.comm[missing]):
            members = progress.comm == comm
            if 2 * ahead[comm] >= size[comm] and (missing & members).sum() <= max(1, int(size[comm]) // 4):
                verdicts += [
                    self._missing(place, float(lag[place])) for place in np.flatnonzero(missing & members).tolist()
                ]
        return verdicts

    def mismatched_collectives(self) -> list[Verdict]:
        """Ranks that enqueued another operation than the others at the same place of their sequence."""
        progress, operations = self.progress, self._operations()
        verdicts = []
        for comm in self._differing_comms(operations):
            members = np.flatnonzero((progress.comm == comm) & ~np.isnan(progress.operations))
            if not len(members):
                continue
            members = members[progress.operations[members] == np.nanmax(progress.operations[members])]
            called = operations[members]
            if len(set(called)) < 2 or is_point_to_point(called).any() or "" in called:
                continue
            voters = self._voters(members, operations)
            (usual, most), *others = Counter(operations[voters].tolist()).most_common()
            odd = members[called != usual]
            if not (most > sum(count for _, count in others) and 3 * len(odd) <= len(voters)):
                odd, usual = self._departed(members, operations)
            verdicts += [self._mismatched(place, usual) for place in odd.tolist()]
        return verdicts

    def departed_ranks(self, group: Ints) -> list[Verdict]:
        """Ranks that called what they never did at that place, where all have gone on to the same operation since.

        A program that runs ahead enqueues more behind the call that does not fit. `group` as in `blocked_transfers`.
        """
        progress, operations = self.progress, self._operations()
        verdicts = []
        for comm in np.unique(progress.comm[progress.stalled & progress.pending & (group >= 0)]):
            members = np.flatnonzero(progress.comm == comm)
            if len(set(operations[members])) > 1 or is_point_to_point(operations[members]).any():
                continue
            odd, _ = self._departed(members, operations)
            if 3 * len(odd) <= len(members):
                verdicts += [self._departure(place, len(members) - 1) for place in odd.tolist()]
        return verdicts

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

    def _absent(self) -> NDArray[np.bool_]:
        """[place]: whether CUDA graphs replay its operations, which counts none, and it has none at work."""
        progress, ranks = self.progress, self.ranks
        replayed, active = ranks.replayed[progress.series] == 1, ranks.active[progress.series]
        absent: NDArray[np.bool_] = replayed & (active == 0) & ~progress.process_waits
        return absent

    def _operations(self) -> NDArray[np.str_]:
        return self.ranks.operation[self.progress.series].astype(str)

    def _departed(self, members: Ints, operations: NDArray[np.str_]) -> tuple[Ints, str]:
        """Without a majority: the ranks that depart from their own history, where all others follow theirs alike."""
        departs = self.ranks.departs[self.progress.series[members]]
        odd, usual = members[departs > 0], operations[members[departs == 0]]
        unclear = not len(odd) or len(odd) > len(usual) or len(set(usual)) != 1 or np.isnan(departs).any()
        return (members[:0], "") if unclear else (odd, str(usual[0]))

    def _voters(self, members: Ints, operations: NDArray[np.str_]) -> Ints:
        """Two ranks cannot outvote each other: communicators of the same size vote with them."""
        size = self.ranks.comm_ranks[self.progress.series]
        if len(members) > 2 or np.isnan(size[members[0]]):
            return members
        return np.flatnonzero((size == size[members[0]]) & ~is_point_to_point(operations) & (operations != ""))

    def _differing_comms(self, operations: NDArray[np.str_]) -> Ints:
        """Stalled communicators in which the foremost ranks did not all enqueue the same operation."""
        progress = self.progress
        _, code = np.unique(operations, return_inverse=True)
        count = int(progress.comm.max()) + 1
        front, low, high = np.full(count, -np.inf), np.full(count, len(code)), np.full(count, -1)
        enqueued = np.nan_to_num(progress.operations, nan=-np.inf)
        np.maximum.at(front, progress.comm, enqueued)
        first = (enqueued == front[progress.comm]) & ~np.isnan(progress.operations) & progress.stalled
        np.minimum.at(low, progress.comm[first], code[first])
        np.maximum.at(high, progress.comm[first], code[first])
        return np.flatnonzero(low < high)

    def _missing(self, place: int, lag: float) -> Verdict:
        progress = self.progress
        members = progress.comm == progress.comm[place]
        seconds, waiting = self._stalled_s(place), progress.series[members & progress.pending]
        lost = self._lost_calls(progress.series[members])
        message = self.text.missing(int(progress.series[place]), lag, waiting, seconds, lost)
        level: Level = "crit" if seconds >= self.critical_after_s and not lost else "warn"
        return self._verdict(place, "operations_total", lag, level, message)

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
