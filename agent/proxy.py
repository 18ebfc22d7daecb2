"""What a communicator's proxy thread is at: its list of transfers, in one system call while it is as it was."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from agent.libraries import Layout
from agent.memory import Gather, Memory

_WORD, _HALF = struct.Struct("<Q"), struct.Struct("<I")
_ARGUMENTS, _SUBS = 64, 128
_GUESSED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a look at a proxy found."""

    active: bool
    """An operation is at work, be it only waiting for the other ranks."""
    sending: bool
    """A chunk was handed to the network and is not yet through."""
    receiving: bool
    """A chunk is awaited from the network."""


class Proxy:
    """The list of transfers at work; its nodes come from a pool, so the next look finds them where the last one did.

    Structures: ncclProxyArgs and ncclProxySubArgs (NCCL, src/include/proxy.h).
    """

    def __init__(self, memory: Memory, active_list: int, layout: Layout) -> None:
        self._memory, self._head = memory, active_list
        node, self._sub = layout["ncclProxyArgs"], layout["ncclProxySubArgs"]
        self._subs, self._begin = node["subs"], min(node["nsubs"], node["next"])
        # They lie together behind the subs: one read brings both.
        self._span = max(node["nsubs"] + 4, node["next"] + 8) - self._begin
        self._count_at, self._next_at = node["nsubs"] - self._begin, node["next"] - self._begin
        self._path: list[tuple[int, int]] = []  # address and number of subs of each node
        self._gather: Gather | None = None

    def look(self) -> Transfers | None:
        """What it is at now; None where it cannot be read. Raises ValueError or struct.error for an absurd layout."""
        data = self._gather.read() if self._gather else None
        found = self._follow(data) if data is not None else None
        return found or self._walk()

    def _follow(self, data: memoryview) -> Transfers | None:
        """What the nodes of the last look hold now; None where they are the list no more."""
        (head,) = _WORD.unpack_from(data)
        address, at, sending, receiving = head, _WORD.size, False, False
        for known, count in self._path:
            if not address:
                break
            if address != known or _HALF.unpack_from(data, at + self._count_at)[0] != count:
                return None
            one = self._judge(data, at + self._span, count)
            sending, receiving = sending or one[0], receiving or one[1]
            (address,) = _WORD.unpack_from(data, at + self._next_at)
            at += self._span + count * self._sub["sizeof"]
        return None if address else Transfers(bool(head), sending, receiving)

    def _walk(self) -> Transfers | None:
        """Read node by node, and remember them for the next look."""
        head = address = self._memory.word(self._head)
        if head is None:
            return None
        path, sending, receiving = list[tuple[int, int]](), False, False
        while address and len(path) < _ARGUMENTS:
            data = self._memory.read(address + self._begin, self._span)
            if data is None:
                return None
            (count,) = _HALF.unpack_from(data, self._count_at)
            subs = self._memory.read(address + self._subs, count * self._sub["sizeof"]) if count <= _SUBS else None
            if subs is None:
                return None
            one = self._judge(memoryview(subs), 0, count)
            sending, receiving = sending or one[0], receiving or one[1]
            path.append((address, count))
            (address,) = _WORD.unpack_from(data, self._next_at)
        if path:
            self._remember(path)
        return Transfers(bool(head), sending, receiving)

    def _judge(self, data: memoryview, at: int, count: int) -> tuple[bool, bool]:
        """Whether any of the sub-operations is sending, and receiving."""
        size, word = self._sub["sizeof"], _WORD.unpack_from
        sending = receiving = False
        # One or two of them as a rule: arrays would cost more than they save.
        for start in range(at, at + count * size, size):
            (received,) = word(data, start + self._sub["received"])
            # Only receiving counts `received`; there `transmitted` means handed to the GPU.
            if received:
                receiving = receiving or received < word(data, start + self._sub["posted"])[0]
            elif not sending:
                sending = word(data, start + self._sub["transmitted"]) > word(data, start + self._sub["done"])
        return sending, receiving

    def _remember(self, path: list[tuple[int, int]]) -> None:
        size = self._sub["sizeof"]
        ranges = [(self._head, _WORD.size)]
        for address, count in path:
            ranges += [(address + self._begin, self._span), (address + self._subs, count * size)]
        self._path = path
        small = sum(length for _, length in ranges) <= _GUESSED_BYTES
        self._gather = Gather(self._memory.pid, ranges) if small else None
