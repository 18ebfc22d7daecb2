"""Attaching a loaded program to a place in a file: no tracefs, no kprobe, no compiler."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bpf.maps import bpf

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_PERF_EVENT_OPEN = 298  # x86-64
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408  # include/uapi/linux/perf_event.h
_CLOSE_ON_EXEC = 8
_TYPE_FILE = Path("/sys/bus/event_source/devices/uprobe/type")
_ATTRIBUTE_SIZE = 112  # PERF_ATTR_SIZE_VER5
_LINK_CREATE = 28  # enum bpf_cmd
TRACE_UPROBE_MULTI = 48  # enum bpf_attach_type
_DETACH_TOGETHER = 32


def attach(program: int, path: str, offset: int) -> int:
    """Run a program at every entry to `offset` of the file at `path`, in whatever process maps it.

    Returns a descriptor; closing it detaches. Raises OSError: FileNotFoundError where the process behind a
    /proc path has ended, PermissionError without CAP_PERFMON, EINVAL where no instruction can be probed.
    """
    try:
        return _attach_link(program, path, offset)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _attach_event(program, path, offset)  # kernels before 6.6


def _attach_link(program: int, path: str, offset: int) -> int:
    """By a link of its own kind: coming off, it does not stand in a queue with all others of the machine."""
    name, offsets = ctypes.create_string_buffer(os.fsencode(path)), np.array([offset], np.uint64)
    words = np.zeros(16, np.uint32)
    words[0], words[2] = program, TRACE_UPROBE_MULTI
    words[4:8].view(np.uint64)[:] = ctypes.addressof(name), offsets.ctypes.data
    words[12] = len(offsets)
    return bpf(_LINK_CREATE, words.tobytes())


def _attach_event(program: int, path: str, offset: int) -> int:
    name = ctypes.create_string_buffer(os.fsencode(path))
    words = np.zeros(_ATTRIBUTE_SIZE // 8, np.uint64)
    words[0] = int(_TYPE_FILE.read_text()) | _ATTRIBUTE_SIZE << 32  # type, size
    words[7] = ctypes.addressof(name)  # config1: the path
    words[8] = offset  # config2: where in the file
    # The event is opened on one CPU, but its program runs wherever the breakpoint is hit.
    event: int = _libc.syscall(_SYS_PERF_EVENT_OPEN, words.ctypes.data_as(ctypes.c_void_p), -1, 0, -1, _CLOSE_ON_EXEC)
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
    with ThreadPoolExecutor(_DETACH_TOGETHER) as executor:
        list(executor.map(os.close, descriptors))
