"""Statistics of a network interface as its driver gives them (include/uapi/linux/ethtool.h), without a subprocess."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import re
import socket
import struct

_SIOCETHTOOL, _SIOCGIFHWADDR = 0x8946, 0x8927
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_SS_STATS = 1
_NAME = 32  # ETH_GSTRING_LEN
_BUFFER = 1 << 20
MOST = _BUFFER // _NAME // 2
"""More statistics than this an interface is not asked for. The kernel writes as many as there are at that moment,
however many were asked for, so the buffer has room for twice as many."""
_REPORTED = re.compile(r"pause|pfc|xoff|xon|discard|drop|ecn|cnp|storm|symbol|link_down|_crc|fcs|out_of_buffer|stall")
_QUEUE = re.compile(r"(?:^(?:rx|tx|ch|txq|rxq|queue)_?(?:queue_)?\d)|\[\d+\]|_(?:queue|ring)_?\d")


def is_reported(name: str) -> bool:
    """Whether the statistic is of the port as a whole, and on pauses, losses, marks or errors."""
    return bool(_REPORTED.search(name)) and not _QUEUE.search(name)


def split_names(data: bytes) -> list[str]:
    """The names in a string set: 32 bytes each, ended by a zero byte. What is no ASCII is replaced."""
    return [
        data[at : at + _NAME].partition(b"\0")[0].decode("ascii", "replace")
        for at in range(0, len(data) - _NAME + 1, _NAME)
    ]


class Ethtool:
    """Asks the interfaces of this network namespace, one at a time. All methods raise OSError, as the kernel has it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._buffer = mmap.mmap(-1, _BUFFER)
        self._pin = ctypes.c_char.from_buffer(self._buffer)
        self._at = ctypes.addressof(self._pin)
        self._view = memoryview(self._buffer)

    def address(self, interface: str) -> bytes:
        """The first 14 bytes of the interface's hardware address."""
        request = bytearray(struct.pack("16s24x", interface.encode()[:15]))
        fcntl.ioctl(self._socket, _SIOCGIFHWADDR, request)
        return bytes(request[18:32])

    def names(self, interface: str) -> list[str]:
        """What the driver counts, in the order of `values`; empty where it counts nothing."""
        count = self._count(interface)
        if not 0 < count <= MOST:
            return []
        self._ask(interface, struct.pack("III", _GSTRINGS, _SS_STATS, count))
        (given,) = struct.unpack_from("I", self._buffer, 8)
        return split_names(bytes(self._view[12 : 12 + _NAME * min(given, count)]))

    def values(self, interface: str, count: int) -> memoryview:
        """The counts, unsigned 64 bits each; good until the next question. OSError when there are not `count`."""
        self._ask(interface, struct.pack("II", _GSTATS, count))
        (given,) = struct.unpack_from("I", self._buffer, 4)
        if given != count:
            raise OSError(errno.ESTALE, f"{interface} has {given} statistics, it had {count}")
        return self._view[8 : 8 + 8 * count].cast("Q")

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    def _count(self, interface: str) -> int:
        self._ask(interface, struct.pack("IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0))
        mask, count = struct.unpack_from("QI", self._buffer, 8)
        return int(count) if mask else 0

    def _ask(self, interface: str, question: bytes) -> None:
        self._view[: len(question)] = question
        fcntl.ioctl(self._socket, _SIOCETHTOOL, struct.pack("16sQ16x", interface.encode()[:15], self._at))
