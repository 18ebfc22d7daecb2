"""Reading another process's structures, torn and freed ones included; here the other process is this one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from agent.nccl.proxy_state import Proxy
from agent.nccl.transfer_waits import Transfers
from agent.process.memory import Memory

LAYOUT = {
    "ncclComm": {
        "sizeof": 96, "startMagic": 0, "commHash": 16, "rank": 24, "nRanks": 28, "cudaDev": 32,
        "opCount": 40, "proxyState": 48, "endMagic": 88,
    },
    "ncclProxyState": {"sizeof": 64, "progressState": 24},
    "ncclProxyProgressState": {"sizeof": 32, "active": 8},
    "ncclProxyArgs": {"sizeof": 240, "subs": 0, "nsubs": 224, "state": 228, "next": 232},
    "ncclProxyConnection": {"sizeof": 32, "send": 4},
    "ncclProxySubArgs": {
        "sizeof": 56, "peer": 0, "nsteps": 4, "connection": 8, "base": 16, "posted": 24, "received": 32,
        "transmitted": 40, "done": 48,
    },
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
    identity = memory.identity(ctypes.addressof(data), LAYOUT)
    assert identity is not None
    assert (identity.comm_hash, identity.rank, identity.ranks, identity.device) == (0xFEED, 3, 8, 5)


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


SENDING, RECEIVING = block(send=(4, 4, 1)), block()
Sub = tuple[int, int, int, int]


def arguments(subs: list[Sub], following: int = 0, count: int | None = None) -> ctypes.Array[ctypes.c_char]:
    """A node of the proxy's list: (posted, received, transmitted, done) of each sub-operation.

    What counts as received is of a receiving connection. Peers are numbered from 31, steps are 9, bases 70.
    """
    state = (228, 4, 2)
    data = block(count=(224, 4, len(subs) if count is None else count), state=state, next=(232, 8, following))
    for place, counters in enumerate(subs):
        connection = ctypes.addressof(RECEIVING if counters[1] else SENDING)
        words = [31 + place | 9 << 32, connection, 70, *counters]
        data[56 * place : 56 * place + 56] = np.array(words, np.uint64).tobytes()
    return data


@pytest.mark.parametrize(
    ("subs", "seen"),
    [
        ([(4, 0, 3, 3)], Transfers(active=True, awaiting_gpu=True)),
        ([(9, 0, 9, 9)], Transfers(active=True)),
        ([(4, 0, 3, 1)], Transfers(active=True, sending=True, send_to=31)),
        ([(5, 2, 2, 2)], Transfers(active=True, receiving=True, receive_from=31)),
        ([(5, 2, 0, 0)], Transfers(active=True, awaiting_gpu=True)),
        ([(5, 2, 1, 1), (7, 6, 6, 6)], Transfers(active=True, receiving=True, receive_from=32)),
        ([(5, 5, 4, 4)], Transfers(active=True, awaiting_gpu=True)),
        (
            [(4, 0, 2, 2), (6, 3, 3, 1), (4, 0, 4, 3), (4, 0, 4, 1)],
            Transfers(active=True, sending=True, receiving=True, send_to=34, receive_from=32),
        ),
        ([], Transfers(active=True)),
    ],
)
def test_transfers(memory: Memory, subs: list[Sub], seen: Transfers) -> None:
    """Handed to the network and not through is sending; posted and not received is receiving; else the GPU's turn.

    It is the GPU's turn too where data lies that it has not taken, and it sends none. Whether transfers of either
    direction were seen is remembered.
    """
    node = arguments(subs)
    head = block(next=(0, 8, ctypes.addressof(node)))
    proxy = Proxy(memory, ctypes.addressof(head), LAYOUT)
    assert proxy.sample() == seen
    directions = {counters[1] > 0 for counters in subs}
    assert (proxy.sends, proxy.receives) == (False in directions, True in directions)


NET_LAYOUT = LAYOUT | {
    "ncclProxyArgs": LAYOUT["ncclProxyArgs"] | {"sizeof": 248, "protocol": 240},
    "ncclProxyConnection": {"sizeof": 32, "send": 4, "transport": 8, "transportResources": 16},
    "ncclProxySubArgs": LAYOUT["ncclProxySubArgs"] | {"sizeof": 64, "channelId": 56},
    "sendNetResources": {"sizeof": 48, "recvMem": 24, "netDev": 36},
    "recvNetResources": {"sizeof": 48, "netDev": 12},
}


def net_send(tail: ctypes.Array[ctypes.c_char] | None, protocol: int, transport: int = 2) -> list[Any]:
    """A list with one sub-operation: to rank 13, channel 6, NIC 3, step 70 + 5; then all that it refers to."""
    resources = block(tail=(24, 8, ctypes.addressof(tail) if tail else 0), device=(36, 4, 3))
    connection = block(send=(4, 4, 1), transport=(8, 4, transport), resources=(16, 8, ctypes.addressof(resources)))
    node = block(count=(224, 4, 1), state=(228, 4, 2), protocol=(240, 1, protocol))
    words = [13 | 9 << 32, ctypes.addressof(connection), 70, 7, 0, 5, 5, 6]
    node[:64] = np.array(words, np.uint64).tobytes()
    return [block(next=(0, 8, ctypes.addressof(node))), node, connection, resources, tail]


def test_data_that_the_network_does_not_accept_waits_for_credit(memory: Memory) -> None:
    """While the GPU has nothing ready it is awaited; once its tail is ahead, the receiver gives no credit."""
    tail = block(tail=(0, 8, 75))
    head, *_alive = net_send(tail, protocol=2)
    proxy = Proxy(memory, ctypes.addressof(head), NET_LAYOUT)
    assert proxy.sample() == Transfers(active=True, awaiting_gpu=True)
    tail[:8] = (76).to_bytes(8, "little")
    assert proxy.sample() == Transfers(active=True, credit_from=13, channel=6, net_device=3)
    tail[:8] = (75).to_bytes(8, "little")
    assert proxy.sample() == Transfers(active=True, awaiting_gpu=True)


@pytest.mark.parametrize(("protocol", "transport", "tail"), [(0, 2, 77), (1, 3, 78), (1, 2, None), (2, 2, 1 << 50)])
def test_unknown_data_is_not_called_ready(memory: Memory, protocol: int, transport: int, tail: int | None) -> None:
    """LL, another transport, memory that cannot be read and a torn tail: the GPU's turn, as far as anything tells."""
    place = None if tail is None else block(tail=(0, 8, tail))
    head, *_alive = net_send(place, protocol, transport)
    seen = Proxy(memory, ctypes.addressof(head), NET_LAYOUT).sample()
    assert seen == Transfers(active=True, awaiting_gpu=True)


def test_counters_of_the_operation_before_do_not_count(memory: Memory) -> None:
    """An operation that has not begun still shows the counters of the one that had its place before."""
    node = arguments([(4, 0, 3, 1)])
    node[228:232] = (1).to_bytes(4, "little")
    head = block(next=(0, 8, ctypes.addressof(node)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).sample() == Transfers(active=True)


def test_steps_add_up_over_operations(memory: Memory) -> None:
    """Steps of a connection are counted on when its next operation begins, also unseen ones; torn ones are not.

    Its place is counted from where it began, long before the first look.
    """
    node = arguments([(4, 0, 3, 1), (5, 2, 0, 0)])
    head = block(next=(0, 8, ctypes.addressof(node)))
    proxy = Proxy(memory, ctypes.addressof(head), LAYOUT)

    def after(*counters: tuple[int, int]) -> tuple[int, int, int, int, int]:
        for offset, value in counters:
            node[offset : offset + 8] = value.to_bytes(8, "little")
        proxy.sample()
        steps = proxy.steps
        return steps.posted, steps.transmitted, steps.done, steps.received, steps.place

    assert after((16, 1 << 60)) == (0, 0, 0, 0, 0)
    assert after((16, 70)) == (0, 0, 0, 0, 71)
    assert after((24, 7), (40, 5), (48, 3), (56 + 32, 5)) == (3, 2, 2, 3, 73)
    assert proxy.moved
    assert after() == (3, 2, 2, 3, 73)
    assert not proxy.moved
    assert after((16, 79), (24, 2), (40, 1), (48, 0)) == (7, 7, 8, 3, 79)
    assert after((16, 1 << 60)) == (7, 7, 8, 3, 79)
    assert after((16, 79), (40, 2)) == (7, 8, 8, 3, 79)
    assert after((16, 3)) == (7, 8, 8, 3, 79)


def test_findings_4_5_an_operation_behind_another_counts_once_it_is_at_work(memory: Memory) -> None:
    """What waits behind an operation of its connection is in no list; its steps follow those of the one before."""
    first, second = arguments([(9, 0, 9, 8)]), arguments([(5, 0, 4, 2)])
    second[16:24] = (79).to_bytes(8, "little")  # where the first one ends
    head = block(next=(0, 8, ctypes.addressof(first)))
    proxy = Proxy(memory, ctypes.addressof(head), LAYOUT)
    assert proxy.sample() == Transfers(active=True, sending=True, send_to=31)
    assert proxy.steps.place == 78
    head[:8] = ctypes.addressof(second).to_bytes(8, "little")
    proxy.sample()
    assert (proxy.steps.posted, proxy.steps.transmitted, proxy.steps.done, proxy.steps.place) == (5, 4, 3, 81)


def test_nothing_at_work(memory: Memory) -> None:
    """An empty list is no activity."""
    empty = block()
    assert Proxy(memory, ctypes.addressof(empty), LAYOUT).sample() == Transfers()


def test_transfers_follow_the_list(memory: Memory) -> None:
    """Every operation at work is looked at."""
    last = arguments([(4, 0, 3, 1)])
    first = arguments([(4, 0, 3, 3)], ctypes.addressof(last))
    head = block(next=(0, 8, ctypes.addressof(first)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).sample() == Transfers(active=True, sending=True, send_to=31)


def test_the_next_look_sees_what_has_changed(memory: Memory) -> None:
    """Counters that moved, a node that came or went, another number of subs and an emptied list are all seen."""
    last, first = arguments([(4, 0, 3, 3)]), arguments([(5, 0, 2, 2)])
    head = block(next=(0, 8, ctypes.addressof(first)))
    proxy = Proxy(memory, ctypes.addressof(head), LAYOUT)

    def sample() -> tuple[bool, bool, bool]:
        seen = proxy.sample()
        assert seen is not None
        return seen.active, seen.sending, seen.receiving

    assert sample() == (True, False, False)
    first[40:48] = (5).to_bytes(8, "little")
    assert sample() == (True, True, False)
    first[40:48] = (2).to_bytes(8, "little")
    first[232:240] = ctypes.addressof(last).to_bytes(8, "little")
    assert sample() == (True, False, False)
    last[:56] = arguments([(7, 6, 6, 6)])[:56]
    assert sample() == (True, False, True)
    first[224:228] = (2).to_bytes(4, "little")
    first[56:112] = arguments([(9, 0, 8, 3)])[:56]
    assert sample() == (True, True, True)
    head[:8] = ctypes.addressof(last).to_bytes(8, "little")
    assert sample() == (True, False, True)
    head[:8] = bytes(8)
    assert sample() == (False, False, False)


def test_torn_lists(memory: Memory) -> None:
    """A list that leads nowhere or names absurd numbers is not reported; one that bites its tail comes to an end."""
    nowhere = block(next=(0, 8, 0x10000))
    assert Proxy(memory, ctypes.addressof(nowhere), LAYOUT).sample() is None
    absurd = arguments([], count=1 << 20)
    head = block(next=(0, 8, ctypes.addressof(absurd)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).sample() is None
    tail = arguments([(4, 0, 3, 3)])
    tail[232:240] = ctypes.addressof(tail).to_bytes(8, "little")
    head = block(next=(0, 8, ctypes.addressof(tail)))
    assert Proxy(memory, ctypes.addressof(head), LAYOUT).sample() == Transfers(active=True, awaiting_gpu=True)


def test_absurd_sizes_and_endless_connections(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout with parts of megabytes, or ever new connections, do not fill the agent's memory."""
    node = arguments([(4, 0, 3, 1), (6, 0, 4, 2)])
    head = block(next=(0, 8, ctypes.addressof(node)))
    asked: list[int] = []
    read = memory.read
    monkeypatch.setattr(memory, "read", lambda address, size: asked.append(size) or read(address, size))
    vast = LAYOUT | {"ncclProxySubArgs": LAYOUT["ncclProxySubArgs"] | {"sizeof": 8 << 20}}
    assert Proxy(memory, ctypes.addressof(head), vast).sample() is None
    assert max(asked) < 4096
    for module in ("connections", "proxy_state"):
        monkeypatch.setattr(f"agent.nccl.{module}.CONNECTIONS", 7)
    proxy = Proxy(memory, ctypes.addressof(head), LAYOUT)
    connections = [block(send=(4, 4, 1)) for _ in range(31)]
    for connection in connections:
        node[8:16] = ctypes.addressof(connection).to_bytes(8, "little")
        assert proxy.sample() == Transfers(active=True, sending=True, send_to=31)
    assert len(proxy._connections) <= 7
    assert len(proxy._last) <= 7


def test_the_list_is_found_from_the_communicator(memory: Memory) -> None:
    """The head of the list lies where the layout says, behind the communicator's proxy state."""
    data = communicator()
    data[48:56] = (0x5000).to_bytes(8, "little")
    assert memory.active_list(ctypes.addressof(data), LAYOUT) == 0x5000 + 24 + 8
    assert memory.active_list(ctypes.addressof(communicator()), LAYOUT) is None
