"""A file that a process maps, opened by the reader of libraries while it has the right to."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO, NamedTuple

from agent.system.file_identity import identity, open_first


class Opened(NamedTuple):
    """A file that was opened while there was a right to."""

    path: str
    status: os.stat_result
    identity: str
    file: BinaryIO | None
    """None: it is no plain file, or too small to be a library."""


def open_library(paths: list[str]) -> Opened | OSError:
    """The file at the first path that works, or why none does.

    What lies at a path below a process's root is the process's choice, a link into the agent's own /dev included: to
    open a device may already start what it is for, and to open a pipe may take for ever. So it is only named at first.
    """
    try:
        path, named = _name_first(paths)
    except OSError as error:
        return error
    try:
        status, file = os.fstat(named), None
        if stat.S_ISREG(status.st_mode) and status.st_size >= 64:
            file = os.fdopen(os.open(f"/proc/self/fd/{named}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        return Opened(path, status, identity(named), file)
    except OSError as error:
        return error
    finally:
        os.close(named)


def _name_first(paths: list[str]) -> tuple[str, int]:
    failure: OSError = FileNotFoundError("no path given")
    for path in paths:
        try:
            return path, open_first([path])
        except OSError as error:
            failure = error
    raise failure
