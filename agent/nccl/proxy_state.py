"""The state of a communicator's proxy thread: its list of transfers, read in one system call if unchanged."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from agent.binaries.struct_layouts import Layout
from agent.nccl.connections import CONNECTIONS, Connections
from agent.nccl.transfer_waits import Sub, Transfers, TransferWaits
from agent.process.memory import Gather, Memory
from agent.process.struct_reader import StructReader

_WORD = struct.Struct("<Q")
_ARGUMENTS, _SUBS = 64, 128
_GUESSED_BYTES = 1 << 16
_PATHS = 16
"""Lists that are remembered: their nodes come from a pool, so few come again and again."""
_LIST_BYTES = 2 << 20
"""More than a list can hold: sizes come from another process, and memory is ours."""
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
_OPERATION, _CHANNEL = {"protocol": "B", "opCount": "Q"}, {"channelId": "i"}
"""Members that the layout may lack."""


@dataclass(slots=True)
class Steps:
    """Steps that the connections seen at work have come since each was first seen; and where all stand."""

    posted: int = 0
    transmitted: int = 0
    done: int = 0
    received: int = 0
    place: int = 0
    """Done, since the connections were made: ranks of one ring that are at the same operation can be compared."""


class Proxy:
    """The list of transfers at work; its nodes come from a pool, so the next look finds them where an earlier one did.

    Structures: ncclProxyArgs, ncclProxySubArgs and ncclProxyConnection (NCCL, src/include/proxy.h). A connection counts
    its steps from `base` on, where the operation before it ended. Raises struct.error for an absurd layout.
    """

    def __init__(self, memory: Memory, active_list: int, layout: Layout) -> None:
        self._memory, self._head = memory, active_list
        node, sub = layout["ncclProxyArgs"], layout["ncclProxySubArgs"]
        self._node, self._sub = StructReader(node, _NODE, _OPERATION), StructReader(sub, _SUB, _CHANNEL)
        self._subs, self._stride = node["subs"], sub["sizeof"]
        self._connections = Connections(memory, layout)
        self._last: dict[int, tuple[int, int, int]] = {}
        self._path: list[tuple[int, int]] = []  # address and number of subs of each node
        self._gather: Gather | None = None
        self._paths: dict[int, tuple[list[tuple[int, int]], Gather]] = {}  # by the address of the first node
        self._seen, self._waits = b"", TransferWaits(self._connections)
        self.steps = Steps()
        self.sends = self.receives = False
        """Whether any connection to the network was seen: within a machine, ranks of one ring need none."""
        self.moved = True
        """Whether the last look found anything other than the look before it did."""

    def sample(self) -> Transfers | None:
        """What it is at now; None where it cannot be read."""
        data = self._read()
        if data is not None and data != self._seen and not self._is_followed(data):
            data = self._read_other(data)
        if data is None:
            data = self._walk()
        if data is None:
            return None
        self.moved = data != self._seen
        if self.moved:
            self._seen, self._waits = data, self._parse(data)
        return self._waits.transfers()

    def _read(self) -> bytes | None:
        view = self._gather.read() if self._gather else None
        return bytes(view) if view is not None else None

    def _read_other(self, data: bytes) -> bytes | None:
        """The list by another path that it had before, if it begins as that does; None where it is not that one."""
        (first,) = _WORD.unpack_from(data)
        if first not in self._paths:
            return None
        self._path, self._gather = self._paths[first]
        other = self._read()
        return other if other is not None and self._is_followed(other) else None

    def _is_followed(self, data: bytes) -> bool:
        """Whether the nodes of the last look are the list still; what lies behind its end is another matter."""
        (address,) = _WORD.unpack_from(data)
        at = _WORD.size
        for known, count in self._path:
            if not address:
                break
            subs, _, following, *_ = self._node.read(data, at)
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
            count, _, following, *_ = self._node.read(node, 0)
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

    def _parse(self, data: bytes) -> TransferWaits:
        """What the nodes hold; `_path` tells where in the data they lie."""
        (address,) = _WORD.unpack_from(data)
        at, found = _WORD.size, TransferWaits(self._connections, bool(address))
        for _, count in self._path:
            if not address:
                break
            _, state, address, protocol, operation = self._node.read(data, at)
            at += self._node.size
            for start in range(at, at + count * self._stride, self._stride) if state == _PROGRESS else ():
                sub = Sub(*self._sub.read(data, start + self._sub.begin))
                connection = self._connections.get(sub.connection)
                if connection.sends is not None:
                    self._count(sub, connection.sends)
                found.add(sub, connection, protocol, operation)
            at += count * self._stride
        return found

    def _count(self, sub: Sub, sends: bool) -> None:
        """Add up the steps of a connection."""
        if sends:
            self.sends = True
            self._add(sub.connection, True, *(sub.base + one for one in (sub.posted, sub.transmitted, sub.done)))
        else:
            self.receives = True
            self._add(sub.connection, False, sub.base + sub.received)

    def _add(self, connection: int, sends: bool, first: int, second: int = 0, third: int = 0) -> None:
        """Posted, transmitted and done of a sending connection, received of another; torn values are left out."""
        before = self._last.get(connection)
        if before is None and len(self._last) >= CONNECTIONS:
            self._last.clear()
            self.steps.place = 0
        if before is None and max(first, second, third) < _LEAP:
            before = self._last[connection] = first, second, third
            self.steps.place += third
        if before is None:
            return
        grown, second_grown, third_grown = first - before[0], second - before[1], third - before[2]
        if not (0 <= grown < _LEAP and 0 <= second_grown < _LEAP and 0 <= third_grown < _LEAP):
            return
        self._last[connection] = first, second, third
        if sends:
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
        if self._gather:
            if len(self._paths) >= _PATHS:
                self._paths.clear()
            self._paths[path[0][0]] = path, self._gather
