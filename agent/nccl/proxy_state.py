"""The state of a communicator's proxy thread: its list of transfers, read in one system call if unchanged."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from agent.binaries.struct_layouts import Layout
from agent.process.memory import Gather, Memory

NO_RANK = -1
_WORD = struct.Struct("<Q")
_ARGUMENTS, _SUBS = 64, 128
_GUESSED_BYTES = 1 << 16
_LIST_BYTES, _CONNECTIONS = 2 << 20, 8192
"""More than a list or a process of ranks can hold: sizes and addresses are another's word, and memory is ours."""
_PROGRESS = 2  # ncclProxyOpProgress: before that the counters are those of the operation that had the place before
_LEAP = 1 << 40
"""No connection moves so many steps, let alone between two looks: a value that says so is torn."""
_NODE = {"nsubs": "i", "state": "i", "next": "Q"}
_SUB = {
    "connection": "Q",
    "nsteps": "i",
    "peer": "i",
    "base": "Q",
    "posted": "Q",
    "received": "Q",
    "transmitted": "Q",
    "done": "Q",
}


@dataclass(frozen=True, slots=True)
class Transfers:
    """The state of a proxy's transfers in one sample."""

    active: bool = False
    """An operation is at work, be it only waiting for the other ranks."""
    sending: bool = False
    """A chunk was handed to the network and is not yet through."""
    receiving: bool = False
    """A chunk is awaited from the network."""
    send_to: int = NO_RANK
    """To which rank; of several the least advanced."""
    receive_from: int = NO_RANK
    """From which rank; of several the least advanced."""
    awaiting_gpu: bool = False
    """A transfer is not at its end, and the network has nothing to do for it: the GPU has to offer more."""


@dataclass(slots=True)
class Steps:
    """Steps that the connections seen at work have come since each was first seen; and where all stand."""

    posted: int = 0
    transmitted: int = 0
    done: int = 0
    received: int = 0
    place: int = 0
    """Done, since the connections were made: ranks of one ring that are at the same operation can be compared."""


class _Fields:
    """Members of a structure in a given order, unpacked at once from where the first of them lies."""

    def __init__(self, places: Mapping[str, int], kinds: Mapping[str, str]) -> None:
        order = sorted(kinds, key=lambda name: places[name])
        self.begin = places[order[0]]
        form, at = "<", self.begin
        for name in order:
            form += f"{places[name] - at}x{kinds[name]}"
            at = places[name] + struct.calcsize("<" + kinds[name])
        packed = struct.Struct(form)
        self.size = packed.size
        self.read: Callable[[bytes, int], tuple[int, ...]] = packed.unpack_from
        """The members of the structure that has its first wanted member at that place of the data."""
        if order != list(kinds):
            sort = itemgetter(*(order.index(name) for name in kinds))
            self.read = lambda data, at: sort(packed.unpack_from(data, at))


class Proxy:
    """The list of transfers at work; its nodes come from a pool, so the next look finds them where the last one did.

    Structures: ncclProxyArgs, ncclProxySubArgs and ncclProxyConnection (NCCL, src/include/proxy.h). A connection counts
    its steps from `base` on, where the operation before it ended. Raises struct.error for an absurd layout.
    """

    def __init__(self, memory: Memory, active_list: int, layout: Layout) -> None:
        self._memory, self._head = memory, active_list
        self._node, self._sub = _Fields(layout["ncclProxyArgs"], _NODE), _Fields(layout["ncclProxySubArgs"], _SUB)
        self._subs, self._stride = layout["ncclProxyArgs"]["subs"], layout["ncclProxySubArgs"]["sizeof"]
        self._send_at = layout["ncclProxyConnection"]["send"]
        self._sides: dict[int, bool | None] = {}
        self._last: dict[int, tuple[int, int, int]] = {}
        self._path: list[tuple[int, int]] = []  # address and number of subs of each node
        self._gather: Gather | None = None
        self._seen, self._transfers = b"", Transfers()
        self.steps = Steps()
        self.moved = True
        """Whether the last look found anything other than the look before it did."""

    def sample(self) -> Transfers | None:
        """What it is at now; None where it cannot be read."""
        view = self._gather.read() if self._gather else None
        data = bytes(view) if view is not None else None
        if data is None or (data != self._seen and not self._is_followed(data)):
            data = self._walk()
        if data is None:
            return None
        self.moved = data != self._seen
        if self.moved:
            self._seen, self._transfers = data, self._parse(data)
        return self._transfers

    def _is_followed(self, data: bytes) -> bool:
        """Whether the nodes of the last look are the list still; what lies behind its end is another matter."""
        (address,) = _WORD.unpack_from(data)
        at = _WORD.size
        for known, count in self._path:
            if not address:
                break
            subs, _, following = self._node.read(data, at)
            if address != known or subs != count:
                return False
            at, address = at + self._node.size + count * self._stride, following
        return not address

    def _walk(self) -> bytes | None:
        """Read node by node, and remember them for the next look."""
        head = self._memory.read(self._head, _WORD.size)
        if head is None:
            return None
        pieces, path, address = [head], list[tuple[int, int]](), int.from_bytes(head, "little")
        room = _LIST_BYTES
        while address and len(path) < _ARGUMENTS:
            node = self._memory.read(address + self._node.begin, self._node.size) if self._node.size <= room else None
            if node is None:
                return None
            count, _, following = self._node.read(node, 0)
            room -= self._node.size + count * self._stride
            fits = 0 <= count <= _SUBS and room >= 0
            subs = self._memory.read(address + self._subs, count * self._stride) if fits else None
            if subs is None:
                return None
            pieces += [node, subs]
            path.append((address, count))
            address = following
        if path:
            self._remember(path)
        return b"".join(pieces)

    def _parse(self, data: bytes) -> Transfers:
        """What the nodes hold; `_path` tells where in the data they lie."""
        (address,) = _WORD.unpack_from(data)
        at, sends, receipts, awaiting_gpu = _WORD.size, list[tuple[int, int]](), list[tuple[int, int]](), False
        active = bool(address)
        for _, count in self._path:
            if not address:
                break
            _, state, address = self._node.read(data, at)
            at += self._node.size
            for start in range(at, at + count * self._stride, self._stride) if state == _PROGRESS else ():
                sub = self._sub.read(data, start + self._sub.begin)
                on_its_way, waits = self._count(sub)
                awaiting_gpu |= waits
                if on_its_way and self._sides[sub[0]]:
                    sends.append((sub[-1], sub[2]))
                elif on_its_way:
                    receipts.append((sub[5], sub[2]))
            at += count * self._stride
        send_to = min(sends)[1] if sends else NO_RANK
        receive_from = min(receipts)[1] if receipts else NO_RANK
        idle = not sends and not receipts
        return Transfers(active, bool(sends), bool(receipts), send_to, receive_from, awaiting_gpu and idle)

    def _count(self, sub: tuple[int, ...]) -> tuple[bool, bool]:
        """Add up what a connection has moved; whether the network has work for it, and whether the GPU has."""
        connection, steps, _, base, posted, received, transmitted, done = sub
        if connection not in self._sides:
            if len(self._sides) >= _CONNECTIONS:
                self._sides.clear()
                self._last.clear()
                self.steps.place = 0
            word = self._memory.word(connection + self._send_at, 4)
            self._sides[connection] = None if word is None else bool(word)
        sending = self._sides[connection]
        if sending:
            self._add(connection, base + posted, base + transmitted, base + done)
            return transmitted > done, transmitted == done < steps
        if sending is None:
            return False, False
        self._add(connection, base + received)
        return posted > received, posted == received and done < steps

    def _add(self, connection: int, first: int, second: int = 0, third: int = 0) -> None:
        """Posted, transmitted and done of a sending connection, received of another; torn values are left out."""
        before = self._last.get(connection)
        if before is None and max(first, second, third) < _LEAP:
            before = self._last[connection] = first, second, third
            self.steps.place += third
        if before is None:
            return
        grown, second_grown, third_grown = first - before[0], second - before[1], third - before[2]
        if not (0 <= grown < _LEAP and 0 <= second_grown < _LEAP and 0 <= third_grown < _LEAP):
            return
        self._last[connection] = first, second, third
        if self._sides[connection]:
            self.steps.posted += grown
            self.steps.transmitted += second_grown
            self.steps.done += third_grown
            self.steps.place += third_grown
        else:
            self.steps.received += grown

    def _remember(self, path: list[tuple[int, int]]) -> None:
        ranges = [(self._head, _WORD.size)]
        for address, count in path:
            ranges += [(address + self._node.begin, self._node.size), (address + self._subs, count * self._stride)]
        self._path = path
        small = sum(length for _, length in ranges) <= _GUESSED_BYTES
        self._gather = Gather(self._memory.pid, ranges) if small else None
