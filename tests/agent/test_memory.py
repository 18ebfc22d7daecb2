"""Reading another process's structures, torn and freed ones included; here the other process is this one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import numpy as np
import pytest

from agent.memory import Memory
from agent.proxy import Proxy, Transfers

LAYOUT = {
    "ncclComm": {
        "sizeof": 96, "startMagic": 0, "commHash": 16, "rank": 24, "nRanks": 28, "cudaDev": 32,
        "opCount": 40, "proxyState": 48, "endMagic": 88,
    },
    "ncclProxyState": {"sizeof": 64, "progressState": 24},
    "ncclProxyProgressState": {"sizeof": 32, "active": 8},
    "ncclProxyArgs": {"sizeof": 200, "subs": 0, "nsubs": 160, "state": 164, "next": 168},
    "ncclProxySubArgs": {"sizeof": 40, "posted": 0, "received": 8, "transmitted": 16, "done": 24},
}  # fmt: skip


@pytest.fixture
def memory() -> Iterator[Memory]:
    """This process as another one would see it."""
    opened = Memory(os.getpid())
    yield opened
    opened.close()


def block(**words: tuple[int, int, int]) -> ctypes.Array[ctypes.c_char]:
    """Zeroed bytes with numbers written at (offset, size, value)."""
    data = ctypes.create_string_buffer(256)
    for offset, size, value in words.values():
        data[offset : offset + size] = value.to_bytes(size, "little")
    return data


def communicator(rank: int = 3, ranks: int = 8, magic: int = 0x77, device: int = 5) -> ctypes.Array[ctypes.c_char]:
    """A communicator as the library would have it."""
    return block(
        start=(0, 8, magic), end=(88, 8, 0x77), hash=(16, 8, 0xFEED), rank=(24, 4, rank), ranks=(28, 4, ranks),
        device=(32, 4, device),
    )  # fmt: skip


def test_identity(memory: Memory) -> None:
    """A whole communicator says who it is."""
    data = communicator()
    told = memory.identity(ctypes.addressof(data), LAYOUT)
    assert told is not None
    assert (told.comm_hash, told.rank, told.ranks, told.device) == (0xFEED, 3, 8, 5)


@pytest.mark.parametrize("odd", [{"rank": 8}, {"ranks": 1 << 30}, {"magic": 0x78}, {"device": 64}])
def test_implausible_is_not_believed(memory: Memory, odd: dict[str, int]) -> None:
    """A rank outside its communicator, a torn magic word or an absurd device: nothing is reported."""
    data = communicator(**odd)
    assert memory.identity(ctypes.addressof(data), LAYOUT) is None


def test_unmapped_addresses(memory: Memory) -> None:
    """Freed memory, null and kernel addresses read as nothing."""
    for address in (0, 8, 0x10000, 1 << 46, 1 << 63, (1 << 64) - 8):
        assert memory.word(address) is None
        assert memory.identity(address, LAYOUT) is None


def arguments(
    subs: list[tuple[int, int, int, int]], following: int = 0, count: int | None = None
) -> ctypes.Array[ctypes.c_char]:
    """A node of the proxy's list: (posted, received, transmitted, done) of each sub-operation."""
    data = block(count=(160, 4, len(subs) if count is None else count), next=(168, 8, following))
    for place, counters in enumerate(subs):
        data[40 * place : 40 * place + 32] = np.array(counters, np.uint64).tobytes()
    return data


@pytest.mark.parametrize(
    ("subs", "seen"),
    [
        ([(4, 0, 3, 3)], Transfers(active=True, sending=False, receiving=False)),
        ([(4, 0, 3, 1)], Transfers(active=True, sending=True, receiving=False)),
        ([(5, 2, 0, 0)], Transfers(active=True, sending=False, receiving=True)),
        ([(4, 0, 2, 2), (6, 3, 3, 1), (4, 0, 4, 3)], Transfers(active=True, sending=True, receiving=True)),
        ([], Transfers(active=True, sending=False, receiving=False)),
    ],
)
def test_transfers(memory: Memory, subs: list[tuple[int, int, int, int]], seen: Transfers) -> None:
    """Handed to the network and not through is sending; posted and not received is receiving."""
    node = arguments(subs)
    head = block(next=(0, 8, ctypes.addressof(node)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).look() == seen


def test_nothing_at_work(memory: Memory) -> None:
    """An empty list is no activity."""
    empty = block()
    assert Proxy(memory, ctypes.addressof(empty), LAYOUT).look() == Transfers(
        active=False, sending=False, receiving=False
    )


def test_transfers_follow_the_list(memory: Memory) -> None:
    """Every operation at work is looked at."""
    last = arguments([(4, 0, 3, 1)])
    first = arguments([(4, 0, 3, 3)], ctypes.addressof(last))
    head = block(next=(0, 8, ctypes.addressof(first)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).look() == Transfers(active=True, sending=True, receiving=False)


def test_the_next_look_sees_what_has_changed(memory: Memory) -> None:
    """Counters that moved, a node that came or went, another number of subs and an emptied list are all seen."""
    last, first = arguments([(4, 0, 3, 3)]), arguments([(5, 0, 2, 2)])
    head = block(next=(0, 8, ctypes.addressof(first)))
    proxy = Proxy(memory, ctypes.addressof(head), LAYOUT)

    def look() -> tuple[bool, bool, bool]:
        seen = proxy.look()
        assert seen is not None
        return seen.active, seen.sending, seen.receiving

    assert look() == (True, False, False)
    first[16:24] = (5).to_bytes(8, "little")
    assert look() == (True, True, False)
    first[16:24] = (2).to_bytes(8, "little")
    first[168:176] = ctypes.addressof(last).to_bytes(8, "little")
    assert look() == (True, False, False)
    last[:32] = np.array((7, 6, 1, 1), np.uint64).tobytes()
    assert look() == (True, False, True)
    first[160:164] = (2).to_bytes(4, "little")
    first[40:72] = np.array((9, 0, 8, 3), np.uint64).tobytes()
    assert look() == (True, True, True)
    head[:8] = ctypes.addressof(last).to_bytes(8, "little")
    assert look() == (True, False, True)
    head[:8] = bytes(8)
    assert look() == (False, False, False)


def test_torn_lists(memory: Memory) -> None:
    """A list that leads nowhere or names absurd numbers is not reported; one that bites its tail comes to an end."""
    nowhere = block(next=(0, 8, 0x10000))
    assert Proxy(memory, ctypes.addressof(nowhere), LAYOUT).look() is None
    absurd = arguments([], count=1 << 20)
    head = block(next=(0, 8, ctypes.addressof(absurd)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).look() is None
    tail = arguments([(4, 0, 3, 3)])
    tail[168:176] = ctypes.addressof(tail).to_bytes(8, "little")
    head = block(next=(0, 8, ctypes.addressof(tail)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).look() == Transfers(
        active=True, sending=False, receiving=False
    )


def test_the_list_is_found_from_the_communicator(memory: Memory) -> None:
    """The head of the list lies where the layout says, behind the communicator's proxy state."""
    data = communicator()
    data[48:56] = (0x5000).to_bytes(8, "little")
    assert memory.active_list(ctypes.addressof(data), LAYOUT) == 0x5000 + 24 + 8
    assert memory.active_list(ctypes.addressof(communicator()), LAYOUT) is None
