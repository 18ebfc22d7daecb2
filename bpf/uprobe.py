"""Attaching a loaded program to a place in a file: no tracefs, no kprobe, no compiler."""

from __future__ import annotations

import ctypes
import errno
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import numpy as np

from bpf.maps import bpf
from bpf.processor import OURS

_libc = ctypes.CDLL(None, use_errno=True)
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408  # include/uapi/linux/perf_event.h
_CLOSE_ON_EXEC = 8
_TYPE_FILE = Path("/sys/bus/event_source/devices/uprobe/type")
_ATTRIBUTE_SIZE = 112  # PERF_ATTR_SIZE_VER5
_LINK_CREATE = 28  # enum bpf_cmd
TRACE_UPROBE_MULTI = 48  # enum bpf_attach_type
_RETURN = 1  # BPF_F_UPROBE_MULTI_RETURN, and the lowest bit of a uprobe event's config
_EVENT_SEMAPHORE = 32  # where the semaphore stands in a uprobe event's config (its format/ref_ctr_offset)
_DETACH_TOGETHER = 32


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a file that can carry a probe."""

    offset: int
    semaphore: int = 0
    """File offset of the counter that switches a trace point on: the kernel holds it up as long as the probe is."""
    returns: bool = False
    """Run when the function at that place returns, instead of when it is entered."""


def attach(program: int, path: str, point: Point, pid: int = 0) -> int:
    """Run a program at a place of the file at `path`: in one process, or (0) in all.

    Returns a descriptor; closing it detaches. Raises OSError: FileNotFoundError where the process behind a
    /proc path has ended, ProcessLookupError where the one process has, PermissionError without CAP_PERFMON,
    EINVAL where no instruction can be probed.
    """
    try:
        return _attach_link(program, path, point, pid)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _attach_event(program, path, point, pid)  # kernels before 6.6


def _attach_link(program: int, path: str, point: Point, pid: int) -> int:
    """By a link of its own kind: coming off, it does not stand in a queue with all others of the machine."""
    name, places = ctypes.create_string_buffer(os.fsencode(path)), np.array([point.offset, point.semaphore], np.uint64)
    words = np.zeros(16, np.uint32)
    words[0], words[2] = program, TRACE_UPROBE_MULTI
    words[4:8].view(np.uint64)[:] = ctypes.addressof(name), places.ctypes.data
    words[8:10].view(np.uint64)[:] = places.ctypes.data + 8 if point.semaphore else 0
    words[12:15] = 1, _RETURN if point.returns else 0, pid
    return bpf(_LINK_CREATE, words.tobytes())


def _attach_event(program: int, path: str, point: Point, pid: int) -> int:
    name = ctypes.create_string_buffer(os.fsencode(path))
    words = np.zeros(_ATTRIBUTE_SIZE // 8, np.uint64)
    words[0] = int(_TYPE_FILE.read_text()) | _ATTRIBUTE_SIZE << 32  # type, size
    words[1] = point.semaphore << _EVENT_SEMAPHORE | (_RETURN if point.returns else 0)
    words[7] = ctypes.addressof(name)  # config1: the path
    words[8] = point.offset  # config2: where in the file
    # The event is opened on one CPU, or for one thread, but its program runs wherever its processes hit the breakpoint.
    target = (pid, -1) if pid else (-1, 0)
    event: int = _libc.syscall(OURS.perf_event_open, words.ctypes.data_as(ctypes.c_void_p), *target, -1, _CLOSE_ON_EXEC)
    if event < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    for request, argument in ((_IOC_SET_BPF, program), (_IOC_ENABLE, 0)):
        if _libc.ioctl(event, request, argument) < 0:
            code = ctypes.get_errno()
            os.close(event)
            raise OSError(code, os.strerror(code))
    return event


def detach(descriptors: Iterable[int]) -> None:
    """Take probes off. Each waits until no processor is inside of it, 50 ms or so: many wait together."""
    left = deque(descriptors)

    def close() -> None:
        with suppress(IndexError):  # nothing is left
            while True:
                os.close(left.popleft())

    threads = [Thread(target=close, daemon=True) for _ in range(min(len(left), _DETACH_TOGETHER) - 1)]
    started = []
    with suppress(RuntimeError):  # no more threads are to be had: it takes longer
        for thread in threads:
            thread.start()
            started.append(thread)
    close()
    for thread in started:
        thread.join()
