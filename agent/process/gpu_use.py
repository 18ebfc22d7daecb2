"""Finds the processes that have a GPU open: the driver's device nodes among their descriptors.

Only the number of a device node is believed. A path is not: a process may call any file of its own /dev/nvidia0. An
emulated machine has plain files for nodes, below the agent's root, which is the administrator's.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import struct
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agent.process.procfs import Process, Processes
from agent.system.costs import Costs

MAJOR, MOST_MINOR = 195, 247
"""NVIDIA's GPUs among the character devices (nvidia-modprobe: NV_MAJOR_DEVICE_NUMBER); above are its control nodes."""
_NODE = re.compile("nvidia[0-9]{1,3}")
_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _DONT_SYNC, _BASIC = -100, 0x4000, 0x7FF  # include/uapi/linux/fcntl.h and stat.h
_DESCRIPTORS = 4096
_REMEMBERED = 4096
_LEAST_S, _MOST_S = 0.25, 8.0
"""Pauses between two checks of a process that has none open: they double."""
_ROUND_S = 0.02
"""Processor seconds for the checks of one reading; the cheapest users are served first."""


@dataclass(slots=True)
class _Look:
    open: bool = False
    due: float = 0.0
    pause: float = _LEAST_S


class GpuUse:
    """Once a process was seen to have a GPU open it counts until it ends."""

    def __init__(self, root: Path, processes: Processes) -> None:
        self._folder, self._processes = root / "dev", processes
        self._looks: dict[Process, _Look] = {}
        self._costs = Costs()

    def users(self, processes: list[Process]) -> set[Process]:
        """Those of them that have a GPU open."""
        if len(self._looks) > _REMEMBERED:
            self._looks = {process: look for process, look in self._looks.items() if process in set(processes)}
        begin, clock = time.thread_time(), time.monotonic()
        looks = {process: self._looks.setdefault(process, _Look()) for process in processes}
        due = [process for process, look in looks.items() if not look.open and clock >= look.due]
        if due:
            nodes = self._nodes()
            owners = {process: (self._processes.user(process), process.pid) for process in due}
            for process in sorted(due, key=lambda process: self._costs.rank(owners[process])):
                now = time.thread_time()
                if now - begin > _ROUND_S:
                    break
                look = looks[process]
                look.open = self._has_open(process.pid, nodes)
                look.due, look.pause = clock + look.pause, min(2 * look.pause, _MOST_S)
                self._costs.add(owners[process], time.thread_time() - now)
        return {process for process, look in looks.items() if look.open}

    def _nodes(self) -> set[tuple[int, int]]:
        """Device and inode of the plain files that stand for GPUs here."""
        try:
            with os.scandir(self._folder) as entries:
                found = [entry.stat() for entry in entries if _NODE.fullmatch(entry.name)]
        except OSError:
            return set()
        return {(node.st_dev, node.st_ino) for node in found if stat.S_ISREG(node.st_mode)}

    def _has_open(self, pid: int, nodes: set[tuple[int, int]]) -> bool:
        folder = self._processes.descriptors(pid)
        try:
            with os.scandir(folder) as entries:
                return any(_is_gpu(f"{folder}/{entry.name}", nodes) for entry in islice(entries, _DESCRIPTORS))
        except OSError:
            return False  # it has ended, or cannot be read


def _is_gpu(path: str, nodes: set[tuple[int, int]]) -> bool:
    """By the link's name, then by what the kernel knows already: a file system (FUSE, NFS) may never answer."""
    try:
        if not _NODE.fullmatch(os.path.basename(os.readlink(path))):
            return False
    except OSError:
        return False  # closed by now
    found = ctypes.create_string_buffer(256)  # struct statx
    if _libc.statx(_AT_FDCWD, os.fsencode(path), _DONT_SYNC, _BASIC, found):
        return False
    mode, inode = struct.unpack_from("<H2xQ", found, 28)
    rdev_major, rdev_minor, major, minor = struct.unpack_from("<4I", found, 128)
    if stat.S_ISCHR(mode):
        return bool(rdev_major == MAJOR and rdev_minor <= MOST_MINOR)
    return (os.makedev(major, minor), inode) in nodes
