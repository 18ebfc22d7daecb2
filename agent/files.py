"""What a file is, whatever path leads to it."""

from __future__ import annotations

import ctypes
import os

_OVERLAY = 0x794C7630  # include/uapi/linux/magic.h


def identity(descriptor: int) -> str:
    """A name for an open file, the same through all mounts of one overlay layer.

    Those mounts show a device number each for what is one file to the kernel; its inode and times they share.
    """
    status, system = os.fstat(descriptor), (ctypes.c_long * 15)()  # struct statfs of x86-64
    ctypes.CDLL(None).fstatfs(descriptor, system)
    device = "overlay" if system[0] == _OVERLAY else str(status.st_dev)
    return f"{device}:{status.st_ino}:{status.st_size}:{status.st_ctime_ns}:{status.st_mtime_ns}"
