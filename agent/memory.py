"""Reads NCCL's own structures out of a training process, by the layout that its library's debug information gives.

Nothing is written and nothing is stopped. What is read may change under the reader's hands or be freed: every value
is checked, and what cannot be true is not reported.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from agent.libraries import Layout

_RANKS = 1 << 20
_DEVICES = 64
_SUBS = 128
_WORD, _HALF = struct.Struct("<Q"), struct.Struct("<I")
_SPAN = 1 << 20
_ARGUMENTS = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """What a communicator says of itself."""

    comm_hash: int
    rank: int
    ranks: int
    device: int


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a look at a proxy found."""

    active: bool
    """An operation is at work, be it only waiting for the other ranks."""
    sending: bool
    """A chunk was handed to the network and is not yet through."""
    receiving: bool
    """A chunk is awaited from the network."""


class Memory:
    """The memory of one process, read through /proc/PID/mem."""

    def __init__(self, pid: int, root: str = "/proc") -> None:
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

    def operations(self, comm: int, layout: Layout) -> int | None:
        """How many operations the library itself has counted on a communicator."""
        return self.word(comm + layout["ncclComm"]["opCount"])

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

    def transfers(self, active_list: int, layout: Layout) -> Transfers | None:
        """What the proxy thread is at; None where it cannot be read."""
        head = self.read(active_list, 8)
        if head is None:
            return None
        (address,) = _WORD.unpack(head)
        active, sending, receiving = bool(address), False, False
        places = layout["ncclProxyArgs"]
        count_at, next_at = places["nsubs"], places["next"]
        begin = min(count_at, next_at)  # they lie together behind the subs: one read brings both
        size = max(count_at + 4, next_at + 8) - begin
        for _ in range(_ARGUMENTS):
            if not address:
                break
            data = self.read(address + begin, size)
            if data is None:
                return None
            (count,) = _HALF.unpack_from(data, count_at - begin)
            one = self._subs(address + places["subs"], count, layout) if count <= _SUBS else None
            if one is None:
                return None
            sending, receiving = sending or one[0], receiving or one[1]
            (address,) = _WORD.unpack_from(data, next_at - begin)
        return Transfers(active, sending, receiving)

    def _subs(self, address: int, count: int, layout: Layout) -> tuple[bool, bool] | None:
        """Whether any of the sub-operations is sending, and receiving."""
        places = layout["ncclProxySubArgs"]
        size = places["sizeof"]
        data = self.read(address, count * size)
        if data is None:
            return None
        sending = receiving = False
        word = _WORD.unpack_from
        # One or two of them as a rule: arrays would cost more than they save.
        for start in range(0, count * size, size):
            (received,) = word(data, start + places["received"])
            # Only receiving counts `received`; there `transmitted` means handed to the GPU (proxy.h, ncclProxySubArgs).
            if received:
                receiving = receiving or received < word(data, start + places["posted"])[0]
            elif not sending:
                sending = word(data, start + places["transmitted"]) > word(data, start + places["done"])
        return sending, receiving
