"""Who a communicator is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.nccl.communicators import ABORT, BORN, DESTROY, INIT, INIT_ALL, SHRINK, SPLIT, Communicators

EVENT = np.dtype(
    [(name, "<u8") for name in ("kind", "ns", "tgid", "comm", "out", "ranks")]
    + [("rank", "<i8"), ("color", "<i8"), ("nth", "<u8"), ("id", "u1", (128,))]
)
UNIQUE = bytes(range(128))


def event(kind: int, **values: Any) -> Any:
    """One event as the probes stream it."""
    record = np.zeros(1, EVENT)
    record["kind"], record["tgid"], record["rank"] = kind, 501, -1
    for name, value in values.items():
        record[name] = np.frombuffer(value, np.uint8) if name == "id" else value
    return record


def stream(communicators: Communicators, *events: Any) -> None:
    """Take in events in their order."""
    communicators.apply(np.concatenate(events))


def joined(machine: str, rank: int, unique: bytes = UNIQUE) -> Communicators:
    """A machine with a process that made communicator 0x7000 as that rank of six."""
    communicators = Communicators(machine)
    stream(
        communicators,
        event(INIT, out=0x100, ranks=6, rank=rank, id=unique),
        event(BORN, out=0x100, comm=0x7000),
    )
    return communicators


def test_identity_joins_machines() -> None:
    """The same unique id gives the same identity on all machines, with each one's own rank."""
    one, two = joined("m1", 0).known[501, 0x7000], joined("m2", 4).known[501, 0x7000]
    assert one.identity == two.identity
    assert (one.rank, two.rank, one.ranks, two.ranks) == (0, 4, 6, 6)


@given(st.integers(0, 127), st.integers(1, 255))
def test_every_byte_counts(place: int, change: int) -> None:
    """A unique id that differs in any one byte is another communicator."""
    other = bytearray(UNIQUE)
    other[place] ^= change
    assert joined("m1", 0).known[501, 0x7000].identity != joined("m1", 0, bytes(other)).known[501, 0x7000].identity


def test_children_have_identities_of_their_own() -> None:
    """Children of one parent differ by their turn and colour; equal ones on two machines are the same."""

    def split(communicators: Communicators, nth: int, color: int) -> str | None:
        out = 0x200 + 16 * nth + color
        stream(
            communicators,
            event(SPLIT, comm=0x7000, out=out, color=color, nth=nth),
            event(BORN, out=out, comm=0x9000 + out),
        )
        return communicators.known[501, 0x9000 + out].identity

    here, there = joined("m1", 0), joined("m2", 3)
    names = [split(here, 0, 1), split(here, 0, 2), split(here, 1, 1)]
    assert len(set(names)) == 3
    assert split(there, 1, 1) == names[2]


def test_shrink_knows_its_size() -> None:
    """A shrunk communicator has the parent's ranks less those left out."""
    communicators = joined("m1", 0)
    stream(communicators, event(SHRINK, comm=0x7000, out=0x300, ranks=2), event(BORN, out=0x300, comm=0x8000))
    assert communicators.known[501, 0x8000].ranks == 4


def test_all_of_one_process() -> None:
    """InitAll makes ranks 0 to n-1 at consecutive places; the ones no call announced are found by reading them."""
    communicators = Communicators("m1")
    stream(communicators, event(INIT_ALL, out=0x400, ranks=3, ns=77))
    memory = {0x400: 0x1000, 0x408: 0x2000, 0x410: 0x3000}
    found = communicators.look_up(501, 0x3000, lambda pid, address: memory.get(address))
    assert (found.rank, found.ranks) == (2, 3)


def test_unknown_stays_unknown() -> None:
    """A communicator made before the probes came has no identity, and neither have its children."""
    communicators = Communicators("m1")
    assert communicators.look_up(501, 0xABC, lambda pid, address: None).identity is None
    stream(communicators, event(SPLIT, comm=0xABC, out=0x500), event(BORN, out=0x500, comm=0xDEF))
    assert communicators.known[501, 0xDEF].identity is None


def test_address_used_again() -> None:
    """After a destroy the same address can be another communicator; an abort ends one too."""
    communicators = joined("m1", 0)
    first = communicators.known[501, 0x7000].identity
    stream(communicators, event(DESTROY, comm=0x7000))
    assert communicators.known[501, 0x7000].ended
    stream(
        communicators,
        event(INIT, out=0x100, ranks=2, rank=1, id=bytes(128)),
        event(BORN, out=0x100, comm=0x7000),
    )
    again = communicators.known[501, 0x7000]
    assert not again.ended
    assert again.identity != first
    stream(communicators, event(ABORT, comm=0x7000))
    assert communicators.known[501, 0x7000].ended


def test_forget_leaves_other_processes() -> None:
    """Forgetting a process drops what it had and nothing else."""
    communicators = joined("m1", 0)
    stream(communicators, event(INIT, tgid=502, out=0x100, ranks=2, rank=1, id=UNIQUE))
    stream(communicators, event(BORN, tgid=502, out=0x100, comm=0x7000))
    communicators.drop(501)
    assert list(communicators.known) == [(502, 0x7000)]


def test_announcements_are_bounded() -> None:
    """A process that announces communicators without end does not fill the agent's memory."""
    communicators = Communicators("m1")
    for turn in range(600):
        stream(communicators, event(INIT_ALL, out=0x10000 * turn, ranks=1 << 30, ns=turn))
        stream(communicators, event(DESTROY, comm=turn))
    assert len(communicators._pending) < 20_000
    assert communicators.known == {}


def test_known_ones_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that makes and ends communicators without end, or only makes them, does not fill the agent's memory."""
    monkeypatch.setattr("agent.nccl.communicators._KNOWN", 7)
    communicators = Communicators("m1")
    for comm in range(0x7000, 0x7040):
        made = event(INIT, out=0x100, ranks=2, rank=1, id=UNIQUE), event(BORN, out=0x100, comm=comm)
        stream(communicators, *made, event(DESTROY, comm=comm))
        assert communicators.known[501, comm].ended
    assert len(communicators.known) <= 7
    for comm in range(0x8000, 0x8040):
        stream(communicators, event(INIT, out=0x100, ranks=2, rank=1, id=UNIQUE), event(BORN, out=0x100, comm=comm))
    assert len(communicators.known) == 7


def test_memory_has_the_last_word() -> None:
    """What the library says of itself replaces what was inferred."""
    communicators = joined("m1", 0)
    communicators.learn(501, 0x7000, "00000000000000ab", 3, 8)
    known = communicators.known[501, 0x7000]
    assert (known.identity, known.rank, known.ranks) == ("00000000000000ab", 3, 8)
