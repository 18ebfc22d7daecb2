"""The communicators of a process at one time: what each rank called last, and what it waited for."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass

import numpy as np

from detector.stats.arrays import Floats
from detector.timeseries.rows import Rows
from detector.topology.rank_table import SOME_RANK, RankTable, resolve_peer

Process = tuple[str, str, int]
"""Machine, GPU and process number."""
SENDS, CREDIT, RECEIVES, GPU, WAITS, RESTS = "sends", "credit", "receives", "gpu", "waits", "rests"
"""State of a rank, from the states of its chunks: one that it sent has not arrived; one is ready and its receiver gives
no credit; it waits for one from the network; its GPU has none to send; an operation is not finished, and no more is
known; all operations are finished."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs."""

    machine: str
    gpu: str
    pid: int
    rank: int | None
    """None: not known."""


@dataclass(frozen=True, slots=True)
class Members:
    """Ranks of one communicator with the same number of operations and in the same state."""

    comm: str
    ranks: int | None
    """Of the communicator."""
    operation: str
    """The last one that they called: kind:datatype:count."""
    operations: int | None
    """How many they called."""
    state: str
    peer: int | None
    """Of a single rank: the one to which its chunk goes, or from which it is to come."""
    places: tuple[Place, ...]

    def as_json(self) -> dict[str, object]:
        """The object that `show --json` prints of it."""
        names = ("operation", "operations", "state", "peer")
        values = {name: getattr(self, name) for name in names}
        ranks = [asdict(place) for place in self.places]
        return {"communicator": self.comm, "communicator_ranks": self.ranks, **values, "ranks": ranks}


class RankSnapshot:
    """The rank table after some rows of `nccl`, by process."""

    def __init__(self, rows: Rows) -> None:
        self._table = RankTable()
        self._table.update(rows)
        idents = list(self._table.number)
        self._idents = [(ident[0], ident[1] if len(ident) > 1 else "") for ident in idents]
        self._comm: list[str] = self._table.comm[: len(idents)].tolist()
        self._pid = [_whole(pid) or 0 for pid in self._known(self._table.pid)]
        self._rank = [_whole(rank) for rank in self._known(self._table.rank)]
        self._ranks = [_whole(ranks) for ranks in self._known(self._table.comm_ranks)]

    def comms(self) -> set[str]:
        """All communicators."""
        return set(self._comm) - {""}

    def ranks(self) -> dict[Process, int]:
        """The rank of each process in its largest communicator, where that is known."""
        found: dict[Process, tuple[int, int]] = {}
        for ident, pid, rank, ranks in zip(self._idents, self._pid, self._rank, self._ranks, strict=True):
            if rank is not None:
                process = *ident, pid
                found[process] = max(found.get(process, (0, rank)), (ranks or 0, rank))
        return {process: rank for process, (_, rank) in found.items()}

    def groups(self) -> dict[str, set[Process]]:
        """The processes of each communicator."""
        joined: dict[str, set[Process]] = {}
        for comm, ident, pid in zip(self._comm, self._idents, self._pid, strict=True):
            joined.setdefault(comm, set()).add((*ident, pid))
        return joined

    def shared(self, processes: Set[Process]) -> str:
        """The smallest communicator that joins all of these; empty where there is none but the largest."""
        joined = self.groups()
        largest = max(map(len, joined.values()), default=0)
        sizes = {comm: len(inside) for comm, inside in joined.items() if comm and processes <= inside}
        found = min(sizes, key=lambda comm: (sizes[comm], comm), default="")
        return found if len(processes) > 1 and found and sizes[found] < largest else ""

    def members(self, machine: str, device: str | None) -> tuple[Members, ...]:
        """The ranks in the communicators of one device (None: of all devices of the machine), the foremost first."""
        wanted = {
            comm for comm, ident in zip(self._comm, self._idents, strict=True) if _is_of(ident, machine, device)
        } - {""}
        states, peers = self._states()
        operation = self._table.operation.tolist()
        alike: dict[tuple[str, float, str, str], list[int]] = {}
        for series, count in enumerate(np.nan_to_num(self._known(self._table.operations), nan=-1.0).tolist()):
            if self._comm[series] in wanted:
                alike.setdefault((self._comm[series], -count, operation[series], states[series]), []).append(series)
        return tuple(self._members(key, series, peers) for key, series in sorted(alike.items()))

    def _members(self, key: tuple[str, float, str, str], series: list[int], peers: list[int]) -> Members:
        comm, ahead, operation, state = key
        peer = peers[series[0]] if len(series) == 1 and peers[series[0]] >= 0 else None
        places = [Place(*self._idents[one], self._pid[one], self._rank[one]) for one in series]
        operations = None if ahead > 0 else int(-ahead)
        return Members(comm, self._ranks[series[0]], operation, operations, state, peer, in_order(places))

    def _states(self) -> tuple[list[str], list[int]]:
        """[series]: its state, and the rank that it waits for; negative: none, or not known."""
        table = self._table
        sends = resolve_peer(table.sends_to, table.sending)
        receives = resolve_peer(table.receives_from, table.receiving)
        peers = [sends, table.credit_from, receives]
        waits = [(peer >= 0) | (peer == SOME_RANK) for peer in peers]
        states = [SENDS, CREDIT, RECEIVES, GPU, WAITS]
        state = np.select([*waits, table.awaiting_gpu > 0, table.pending > 0], states, RESTS)
        peer = np.select(waits, peers, -1.0)
        return state.tolist(), peer.astype(np.int64).tolist()

    def _known(self, column: Floats) -> Floats:
        return column[: len(self._idents)]


def in_order(places: list[Place]) -> tuple[Place, ...]:
    """By rank, those with an unknown rank last."""
    return tuple(sorted(places, key=lambda one: (one.rank is None, one.rank or 0, one.machine, one.gpu, one.pid)))


def _whole(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None


def _is_of(ident: tuple[str, str], machine: str, device: str | None) -> bool:
    return ident[0] == machine and device in (None, f"gpu:{ident[1]}")
