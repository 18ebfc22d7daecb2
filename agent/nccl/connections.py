"""The network connections of a proxy: direction, network device, and how much data the GPU has made ready.

Structures: ncclProxyConnection (NCCL, src/include/proxy.h), sendNetResources and recvNetResources
(src/transport/net.cc), ncclRecvMem (src/include/comm.h). A GPU raises `tail` of ncclRecvMem when a chunk is ready to be
sent. Where that memory belongs to NVIDIA's driver and cannot be read from outside, it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.binaries.struct_layouts import Layout
from agent.process.memory import Memory

_NET = 2
"""TRANSPORT_NET (src/include/transport.h)."""
CONNECTIONS = 8192
"""More than a process of ranks has: addresses come from another process, and memory is ours."""
_NET_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection; None where memory does not tell."""

    sends: bool | None = None
    net_device: int | None = None
    """Number of the network device in NCCL's own list."""
    tail: int = 0
    """Address of the count of steps that the GPU has made ready; 0: not known."""


class Connections:
    """The connections of one process, each read when it is first seen."""

    def __init__(self, memory: Memory, layout: Layout) -> None:
        self._memory, self._layout = memory, layout
        self._known: dict[int, Connection] = {}

    def get(self, address: int) -> Connection:
        """The connection at that address."""
        if address not in self._known:
            if len(self._known) >= CONNECTIONS:
                self._known.clear()
            self._known[address] = self._read(address)
        return self._known[address]

    def ready_steps(self, connection: Connection) -> int | None:
        """Steps that the GPU has made ready since the connection was made; None: not known."""
        return self._memory.word(connection.tail) if connection.tail else None

    def __len__(self) -> int:
        return len(self._known)

    def _read(self, address: int) -> Connection:
        places = self._layout["ncclProxyConnection"]
        send = self._memory.word(address + places["send"], 4)
        if send is None or not {"transport", "transportResources"} <= places.keys():
            return Connection(None if send is None else bool(send))
        is_net = self._memory.word(address + places["transport"], 4) == _NET
        resources = self._memory.word(address + places["transportResources"])
        members = self._layout.get("sendNetResources" if send else "recvNetResources", {})
        if not is_net or not resources or not members:
            return Connection(bool(send))
        device = self._memory.word(resources + members["netDev"], 4) if "netDev" in members else None
        tail = self._memory.word(resources + members["recvMem"]) if "recvMem" in members else None
        return Connection(bool(send), device if device is not None and device < _NET_DEVICES else None, tail or 0)
