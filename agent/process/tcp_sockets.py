"""TCP retransmits by GPU: the kernel reports sockets, which are matched with the processes that hold them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_LOOK_NS = 10_000_000_000
"""How often to search the holders of sockets: each search reads every descriptor of every training process."""
_FORGET_NS = 60_000_000_000
"""How long to ignore a socket of another process; by then a training process may have it, or its number."""
_SOCKETS = 8192
_DESCRIPTORS = 65536


@dataclass(slots=True)
class Socket:
    """One socket and the segments that it has retransmitted."""

    counted: int
    newest: int
    gpu: str | None = None
    """Empty: no training process holds it. None: its holder was not searched yet."""


def held(process: Path, wanted: set[int]) -> set[int]:
    """Those of the wanted sockets that a process holds; none where it has ended or cannot be read."""
    found: set[int] = set()
    try:
        with os.scandir(process / "fd") as entries:
            names = [entry.name for entry in islice(entries, _DESCRIPTORS)]
    except OSError:
        return found
    for name in names:
        number = _socket(f"{process}/fd/{name}")
        if number in wanted:
            found.add(number)
    return found


def _socket(link: str) -> int:
    """The number of the socket behind a link; -1: it is something else."""
    try:
        target = os.readlink(link)
    except OSError:  # closed since the folder was listed
        return -1
    digits = target[8:-1] if target.startswith("socket:[") else ""
    return int(digits) if digits.isdecimal() and len(digits) < 20 else -1


class Sockets:
    """Retransmitted segments, by GPU.

    The kernel reports a socket's running total at each retransmit. Its holder is searched only then: most machines
    go for days without.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._sockets: dict[int, Socket] = {}
        self._searched_at = self._expired_at = 0
        self.segments: Counter[str] = Counter()

    def update(self, now: int, retransmits: NDArray[np.void], watched: Mapping[int, str]) -> None:
        """Add what the kernel has reported since, oldest first; `watched` gives the GPU of each training process."""
        self._expire(now)
        inodes, last = np.unique(retransmits["inode"][::-1], return_index=True)
        totals = retransmits["total"][::-1][last]
        for inode, total in zip(inodes.tolist(), totals.tolist(), strict=True):
            known = self._sockets.get(inode)
            if known is not None and known.newest <= total:
                known.newest = total
            else:  # not met before: of what it sent again until now, only the last segment is counted
                self._sockets[inode] = Socket(total - 1, total)
        self._find(now, watched)
        for socket in self._sockets.values():
            if socket.gpu and socket.newest > socket.counted:
                self.segments[socket.gpu] += socket.newest - socket.counted
                socket.counted = socket.newest

    def _expire(self, now: int) -> None:
        if len(self._sockets) > _SOCKETS:
            self._sockets.clear()
        if not 0 <= now - self._expired_at < _FORGET_NS:  # a clock that was set back is no reason to wait
            self._expired_at = now
            self._sockets = {inode: socket for inode, socket in self._sockets.items() if socket.gpu != ""}

    def _find(self, now: int, watched: Mapping[int, str]) -> None:
        unknown = {inode for inode, socket in self._sockets.items() if socket.gpu is None}
        if not unknown or 0 <= now - self._searched_at < _LOOK_NS:
            return
        self._searched_at = now
        for pid, gpu in watched.items():
            for inode in held(self._proc / str(pid), unknown):
                self._sockets[inode].gpu = gpu
                unknown.discard(inode)
        for inode in unknown:
            self._sockets[inode].gpu = ""
