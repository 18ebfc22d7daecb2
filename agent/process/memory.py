"""Reads NCCL's own structures out of a training process, by the layout that its library's debug information gives.

Nothing is written and nothing is stopped. What is read may change under the reader's hands or be freed: every value
is checked, and what cannot be true is not reported.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from agent.binaries.struct_layouts import Layout

_RANKS = 1 << 20
_DEVICES = 64
_COLLECTIVES = 5
"""Broadcast, Reduce, AllGather, ReduceScatter and AllReduce (NCCL_NUM_FUNCTIONS, nccl_common.h)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a communicator, from its memory."""

    comm_hash: int
    rank: int
    ranks: int
    device: int


class Memory:
    """The memory of one process, read through /proc/PID/mem."""

    def __init__(self, pid: int, root: str = "/proc") -> None:
        self.pid = pid
        self._descriptor = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._descriptor)

    def read(self, address: int, size: int) -> bytes | None:
        """That many bytes, or None where they cannot be read."""
        if not 4096 <= address < 1 << 47:
            return None
        try:
            data = os.pread(self._descriptor, size, address)
        except (OSError, OverflowError):
            return None
        return data if len(data) == size else None

    def word(self, address: int, size: int = 8) -> int | None:
        """An unsigned number."""
        data = self.read(address, size)
        return None if data is None else int.from_bytes(data, "little")

    def identity(self, comm: int, layout: Layout) -> Identity | None:
        """Identity of the communicator at that address; None unless everything about it is plausible."""
        places = layout["ncclComm"]
        rank, ranks = self.word(comm + places["rank"], 4), self.word(comm + places["nRanks"], 4)
        device, comm_hash = self.word(comm + places["cudaDev"], 4), self.word(comm + places["commHash"])
        if rank is None or ranks is None or device is None or not comm_hash:
            return None
        if not (rank < ranks <= _RANKS and device < _DEVICES and self._is_whole(comm, layout)):
            return None
        return Identity(comm_hash, rank, ranks, device)

    def operations(self, comm: int, layout: Layout, counts_calls: bool) -> int | None:
        """How many operations the library itself has counted on a communicator; None where nothing counts them.

        opCount is of calls where the library `counts_calls`, else of launches: then seqNumber has the collectives.
        """
        places = layout["ncclComm"]
        if counts_calls:
            return self.word(comm + places["opCount"])
        data = self.read(comm + places["seqNumber"], 8 * _COLLECTIVES) if "seqNumber" in places else None
        return None if data is None else sum(struct.unpack(f"<{_COLLECTIVES}Q", data))

    def _is_whole(self, comm: int, layout: Layout) -> bool:
        """Builds since 2.26 carry the same magic word at both ends."""
        places = layout["ncclComm"]
        if "startMagic" not in places or "endMagic" not in places:
            return True
        magic = self.word(comm + places["startMagic"])
        return bool(magic) and magic == self.word(comm + places["endMagic"])

    def active_list(self, comm: int, layout: Layout) -> int | None:
        """Where the proxy thread of a communicator keeps the head of its list of transfers at work."""
        state = self.word(comm + layout["ncclComm"]["proxyState"])
        if not state:
            return None
        return state + layout["ncclProxyState"]["progressState"] + layout["ncclProxyProgressState"]["active"]


class _Vector(ctypes.Structure):
    """struct iovec (uio.h)."""

    _fields_ = (("base", ctypes.c_uint64), ("length", ctypes.c_size_t))


_readv = ctypes.CDLL(None).process_vm_readv
_readv.restype = ctypes.c_ssize_t


class Gather:
    """Ranges of one process's memory that are read together, in one system call (process_vm_readv(2)), again and again.

    The process is known by its number alone: the reader must verify by the contents that it is the right one.
    """

    def __init__(self, pid: int, ranges: Sequence[tuple[int, int]]) -> None:
        self._size = sum(length for _, length in ranges)
        buffer = ctypes.create_string_buffer(self._size)
        self._data = memoryview(buffer).toreadonly()
        local = _Vector(ctypes.addressof(buffer), self._size)
        remote = (_Vector * len(ranges))(*(_Vector(*one) for one in ranges))
        self._call = (ctypes.c_int(pid), ctypes.byref(local), ctypes.c_ulong(1), remote)
        self._count = ctypes.c_ulong(len(ranges))
        self._flags = ctypes.c_ulong(0)

    def read(self) -> memoryview | None:
        """The ranges one after another, good until the next call; None unless all of them could be read."""
        got = _readv(*self._call, self._count, self._flags)
        return self._data if got == self._size else None
