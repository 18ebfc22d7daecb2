"""How the communicators of one process stood at one time: who had asked for what, and what each waited for."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from detector.timeseries.rows import Rows
from detector.topology.rank_table import SOMEBODY, UNKNOWN, told

Process = tuple[str, str, int]
"""Machine, GPU and process number."""
SENDS, RECEIVES, GPU, WAITS, RESTS = "sends", "receives", "gpu", "waits", "rests"
"""What a rank is at, by the states of its chunks: one that it handed to the network is not through; one is awaited from
the network; its GPU offers none; it has something unfinished, and no more is known; it has nothing unfinished."""


@dataclass(frozen=True, slots=True)
class Place:
    """One rank, as people find it."""

    machine: str
    gpu: str
    pid: int
    rank: int | None
    """None: not known."""


@dataclass(frozen=True, slots=True)
class Members:
    """Ranks of one communicator that are equally far and in the same state."""

    comm: str
    ranks: int | None
    """Of the communicator."""
    operation: str
    """The last that they asked for: kind:datatype:count."""
    operations: int | None
    """How many they asked for."""
    state: str
    peer: int | None
    """Of a single rank: to whom its chunk goes, or from whom it is to come."""
    places: tuple[Place, ...]

    def as_json(self) -> dict[str, object]:
        """The object that `show --json` prints of it."""
        names = ("operation", "operations", "state", "peer")
        told = {name: getattr(self, name) for name in names}
        ranks = [asdict(place) for place in self.places]
        return {"communicator": self.comm, "communicator_ranks": self.ranks, **told, "ranks": ranks}


class Standing:
    """The newest row of each communicator of each process in rows of `nccl`."""

    def __init__(self, rows: Rows) -> None:
        _, back = np.unique(rows.ident[::-1], return_index=True)
        self._rows, self._last = rows, len(rows.ident) - 1 - back
        idents = [rows.idents[at] for at in rows.ident[self._last]]
        self._idents = [(ident[0], ident[1] if len(ident) > 1 else "") for ident in idents]
        self._pid = [_whole(pid) or 0 for pid in self._number("pid")]
        self._rank = [_whole(rank) for rank in self._number("rank")]
        self._ranks = [_whole(ranks) for ranks in self._number("ranks")]

    def comms(self) -> set[str]:
        """All communicators."""
        return set(self._text("comm")) - {""}

    def ranks(self) -> dict[Process, int]:
        """The rank of each process in its largest communicator, where that is known."""
        found: dict[Process, tuple[int, int]] = {}
        for ident, pid, rank, ranks in zip(self._idents, self._pid, self._rank, self._ranks, strict=True):
            if rank is not None:
                who = *ident, pid
                found[who] = max(found.get(who, (0, rank)), (ranks or 0, rank))
        return {who: rank for who, (_, rank) in found.items()}

    def shared(self, some: Set[Process]) -> str:
        """The smallest communicator that joins all of these; empty where there is none but the largest."""
        joined: dict[str, set[Process]] = {}
        for comm, ident, pid in zip(self._text("comm"), self._idents, self._pid, strict=True):
            joined.setdefault(comm, set()).add((*ident, pid))
        largest = max(map(len, joined.values()), default=0)
        sizes = {comm: len(inside) for comm, inside in joined.items() if comm and some <= inside}
        found = min(sizes, key=lambda comm: (sizes[comm], comm), default="")
        return found if len(some) > 1 and found and sizes[found] < largest else ""

    def members(self, machine: str, device: str | None) -> tuple[Members, ...]:
        """Those of the communicators of one device (None: all of the machine's), the furthest first."""
        comms, operation = self._text("comm"), self._text("operation")
        wanted = {comm for comm, ident in zip(comms, self._idents, strict=True) if _is_of(ident, machine, device)}
        states, peers = self._states()
        alike: dict[tuple[str, float, str, str], list[int]] = {}
        for at, operations in enumerate(np.nan_to_num(self._number("operations_total"), nan=-1.0).tolist()):
            if comms[at] in wanted - {""}:
                alike.setdefault((comms[at], -operations, operation[at], states[at]), []).append(at)
        return tuple(self._group(key, places, peers) for key, places in sorted(alike.items()))

    def _group(self, key: tuple[str, float, str, str], members: list[int], peers: list[int]) -> Members:
        comm, ahead, operation, state = key
        peer = peers[members[0]] if len(members) == 1 and peers[members[0]] >= 0 else None
        places = [Place(*self._idents[at], self._pid[at], self._rank[at]) for at in members]
        operations = None if ahead > 0 else int(-ahead)
        return Members(comm, self._ranks[members[0]], operation, operations, state, peer, in_order(places))

    def _states(self) -> tuple[list[str], list[int]]:
        """What each is at, and the rank that it waits for; negative: none, or not known."""
        sends, receives = (
            told(np.nan_to_num(self._number(f"waits_to_{way}"), nan=UNKNOWN), self._number(f"{word}_pending_ratio"))
            for way, word in (("send_to", "send"), ("receive_from", "receive"))
        )
        is_held = [(peer >= 0) | (peer == SOMEBODY) for peer in (sends, receives)]
        is_held += [self._number("waits_for_gpu") > 0, self._number("pending") > 0]
        state = np.select(is_held, [SENDS, RECEIVES, GPU, WAITS], RESTS)
        peer = np.select(is_held[:2], [sends, receives], -1.0)
        return state.tolist(), peer.astype(np.int64).tolist()

    def _number(self, name: str) -> NDArray[np.float64]:
        return self._rows.number(name)[self._last].astype(np.float64)

    def _text(self, name: str) -> list[str]:
        words: list[str] = self._rows.text(name)[self._last].tolist()
        return words


def in_order(places: list[Place]) -> tuple[Place, ...]:
    """By rank, those whose rank is not known last."""
    return tuple(sorted(places, key=lambda one: (one.rank is None, one.rank or 0, one.machine, one.gpu, one.pid)))


def _whole(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None


def _is_of(ident: tuple[str, str], machine: str, device: str | None) -> bool:
    return ident[0] == machine and device in (None, f"gpu:{ident[1]}")
