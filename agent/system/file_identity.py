"""The identity of a file, whatever path leads to it."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
import struct
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

MOST = 16384
_OVERLAY = 0x794C7630  # include/uapi/linux/magic.h
_EMPTY_PATH, _DONT_SYNC, _SIZE_AND_MTIME = 0x1000, 0x4000, 0x240  # include/uapi/linux/{fcntl,stat}.h
_libc = ctypes.CDLL(None, use_errno=True)


def identity(descriptor: int) -> str:
    """A name for an open file, the same through all mounts of one overlay layer.

    Those mounts show a device number each for what is one file to the kernel; its inode and times they share.
    """
    status, system = os.fstat(descriptor), (ctypes.c_long * 15)()  # struct statfs of 64 bits
    _libc.fstatfs(descriptor, system)
    device = "overlay" if system[0] == _OVERLAY else str(status.st_dev)
    return f"{device}:{status.st_ino}:{status.st_size}:{status.st_ctime_ns}:{status.st_mtime_ns}"


class Content(NamedTuple):
    """What changes with a file's content: size in bytes, and the time of the last change in ns."""

    size: int
    changed_ns: int


def content(descriptor: int) -> Content:
    """As this machine knows it: the server of a network file system, which may never answer, is not asked.

    Raises OSError.
    """
    status = ctypes.create_string_buffer(256)  # struct statx
    if _libc.statx(descriptor, b"", _EMPTY_PATH | _DONT_SYNC, _SIZE_AND_MTIME, status):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    (size,), (seconds, ns) = struct.unpack_from("<Q", status, 40), struct.unpack_from("<qI", status, 112)
    return Content(size, seconds * 1_000_000_000 + ns)


def allow_many() -> None:
    """Let this process open as many files as it may, up to MOST: each probe is one, and many a limit begins at 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_first(paths: Iterable[str]) -> int:
    """A descriptor that names the file at the first path that works. Raises OSError where none does."""
    failure: OSError = FileNotFoundError("no path given")
    for path in paths:
        try:
            return os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            failure = error
    raise failure


def open_plain(path: str) -> BinaryIO:
    """A plain file, for reading. Raises OSError, also for all that is none: a device may be started by being opened."""
    named = open_first([path])
    try:
        if not stat.S_ISREG(os.fstat(named).st_mode):
            raise OSError(errno.EINVAL, "no plain file")
        return os.fdopen(os.open(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    finally:
        os.close(named)
