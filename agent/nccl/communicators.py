"""The identity of communicators: joins addresses in a process with the arguments of the calls that made them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

INIT, INIT_ALL, SPLIT, SHRINK, BORN, FINALIZE, DESTROY, ABORT, GROW, REVOKE = range(1, 11)
"""Kinds of events (enum event_kind, bpf/programs/nccl.bpf.c)."""

_DEVICES = 64
_PENDING, _PENDING_EACH = 16384, 512
"""Communicators under construction, of all processes and of each; a process that announces more is not believed."""
_KNOWN, _KNOWN_EACH = 65536, 1024
"""Communicators of which anything is remembered; there is no room in the kernel for the counts of so many."""
Key = tuple[int, int]
"""Process number and address of a communicator in it."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """What is known of one communicator in one process. None: not known."""

    identity: str | None = None
    """16 hex digits, the same on all its ranks."""
    rank: int | None = None
    ranks: int | None = None
    born: bool = False
    """The probes saw it being made: they have counted all it did."""
    ended: bool = False
    """Finalized, destroyed, aborted or revoked by its process."""
    revoked: bool = False
    """What was under way on it was dropped, and no more will come."""


class Table(MutableMapping[Key, Communicator]):
    """Communicators by process and address: at most `each` of a process and `whole` of all."""

    def __init__(self, each: int, whole: int) -> None:
        self._each, self._whole = each, whole
        self._all: dict[Key, Communicator] = {}
        self._counts = Counter[int]()

    def __getitem__(self, key: Key) -> Communicator:
        return self._all[key]

    def __setitem__(self, key: Key, one: Communicator) -> None:
        self._counts[key[0]] += key not in self._all
        self._all[key] = one

    def __delitem__(self, key: Key) -> None:
        del self._all[key]
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def crowded(self, pid: int) -> int | None:
        """The process that leaves no room for another one of that process; None: there is room."""
        if self._counts[pid] >= self._each:
            return pid
        return max(self._counts, key=lambda one: self._counts[one]) if len(self._all) >= self._whole else None

    def drop(self, pid: int) -> None:
        """Forget all that a process has."""
        for key in [key for key in self._all if key[0] == pid]:
            del self[key]


def _digest(*parts: object) -> str:
    text = b"\0".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
    return hashlib.blake2b(text, digest_size=8).hexdigest()


class Communicators:
    """The communicators of all processes, from the stream of their life.

    The identity is a hash of the whole 128-byte unique id: its first bytes are the same for every communicator of a
    machine. A child's follows from its parent's, and which child it is: the calls that make children are collective,
    so all ranks count them alike.
    """

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._pending = Table(_PENDING_EACH, _PENDING)  # by process and the place where the address will be written
        self.known = Table(_KNOWN_EACH, _KNOWN)

    def apply(self, events: Any) -> None:
        """Apply events (structured array, bpf/programs/nccl.bpf.c struct event) in their order."""
        for event in events:
            pid, comm = int(event["tgid"]), int(event["comm"])
            kind = int(event["kind"])
            if kind == BORN:
                self.assign_address(pid, int(event["out"]), comm)
            elif kind in (FINALIZE, DESTROY, ABORT, REVOKE):
                if (before := self.known.get((pid, comm))) is not None:
                    self.known[pid, comm] = replace(before, ended=True, revoked=before.revoked or kind == REVOKE)
            else:
                self._expect(kind, pid, comm, event)

    def _expect(self, kind: int, pid: int, parent: int, event: Any) -> None:
        out, ranks = int(event["out"]), int(event["ranks"])
        if kind == INIT:
            self._announce(pid, out, Communicator(_digest(event["id"].tobytes()), int(event["rank"]), ranks))
        elif kind == GROW:  # ranks that it had already are given as -1, and it numbers them itself
            rank = int(event["rank"])
            self._announce(pid, out, Communicator(None, rank if rank >= 0 else None, ranks))
        elif kind == INIT_ALL:
            identity = _digest(self._machine, pid, int(event["ns"]))
            for rank in range(min(ranks, _DEVICES)):
                self._announce(pid, out + 8 * rank, Communicator(identity, rank, ranks))
        else:
            whole = self.known.get((pid, parent), Communicator())
            family = whole.identity and _digest(whole.identity, kind, int(event["nth"]), int(event["color"]))
            left = whole.ranks - ranks if kind == SHRINK and whole.ranks else None
            self._announce(pid, out, Communicator(family, None, left))

    def _announce(self, pid: int, out: int, communicator: Communicator) -> None:
        """Where there is no room, the process that announced most without making them is no longer believed."""
        if (greedy := self._pending.crowded(pid)) is not None:
            self._pending.drop(greedy)
        self._pending[pid, out] = communicator

    def assign_address(self, pid: int, out: int, comm: int) -> None:
        """The communicator that was to be written at `out` has this address."""
        born = self._pending.pop((pid, out), None)
        if born is None:
            return
        if (greedy := self.known.crowded(pid)) is not None:
            # Such as made and ended again and again, with nothing asked of them.
            for key in [key for key, one in self.known.items() if key[0] == greedy and one.ended]:
                del self.known[key]
        if self.known.crowded(pid) is None:
            self.known[pid, comm] = replace(born, born=True)

    def look_up(self, pid: int, comm: int, read_pointer: Callable[[int, int], int | None]) -> Communicator:
        """The communicator at that address; an unknown one is searched where new ones were to be written."""
        if (pid, comm) not in self.known:
            for owner, out in [key for key in self._pending if key[0] == pid]:
                if read_pointer(owner, out) == comm:
                    self.assign_address(owner, out, comm)
        return self.known.setdefault((pid, comm), Communicator())

    def learn(self, pid: int, comm: int, identity: str, rank: int, ranks: int) -> Communicator:
        """Set the identity of a communicator as the library has it in memory."""
        before = self.known.get((pid, comm), Communicator())
        if (before.identity, before.rank, before.ranks) != (identity, rank, ranks):
            self.known[pid, comm] = replace(before, identity=identity, rank=rank, ranks=ranks)
        return self.known[pid, comm]

    def is_revoked(self, pid: int, comm: int) -> bool:
        """Whether its process gave it up, though it still has it."""
        known = self.known.get((pid, comm))
        return known is not None and known.revoked

    def announced(self, pid: int) -> set[int]:
        """Those under construction, by where their addresses will be, and those seen being made and not ended."""
        pending = {out for owner, out in self._pending if owner == pid}
        return pending | {
            comm for (owner, comm), one in self.known.items() if owner == pid and one.born and not one.ended
        }

    def processes(self) -> set[int]:
        """The processes of which anything is known."""
        return {pid for table in (self.known, self._pending) for pid, _ in table}

    def drop(self, pid: int, comm: int | None = None) -> None:
        """Drop one communicator, or all that a process had."""
        for table in (self.known, self._pending):
            if comm is None:
                table.drop(pid)
            else:
                table.pop((pid, comm), None)
