"""Drops priority and capabilities of a child before it reads input of other users, and all ways to gain any."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from bpf.processor import OURS

DAC_READ_SEARCH, SYS_PTRACE, SYS_ADMIN, PERFMON, CHECKPOINT_RESTORE = 2, 19, 21, 38, 40
"""Numbers of capabilities (include/uapi/linux/capability.h)."""
_DAC_OVERRIDE, _NO_USER = 1, 65534
_VERSION, _LAST = 0x20080522, 64
_CAPBSET_DROP, _NO_NEW_PRIVS, _AMBIENT = 24, 38, 47  # include/uapi/linux/prctl.h
_AMBIENT_RAISE, _AMBIENT_CLEAR = 2, 4
_libc = ctypes.CDLL(None, use_errno=True)


def yield_to_others(nice: int) -> None:
    """Lower this process's priority by so much; under a unit that forbids the call its CPUWeight= does the like."""
    with suppress(PermissionError):
        os.nice(nice)


def give_up(retained: Iterable[int] = (), handed_on: Iterable[int] = ()) -> None:
    """Keep no capability but these, as far as they are there; programs that are executed get only what is handed on.

    Raises OSError where the kernel refuses to take them away.
    """
    passed = _mask(handed_on) & _permitted()
    left = (_mask(retained) | passed) & _permitted()
    for number in range(_LAST):  # fails where there is no such number, or without the right: then nothing is gained
        if not passed >> number & 1:
            _libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)
    _libc.prctl(_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.syscall(OURS.capset, _header(), struct.pack("<6I", *_words(left, left, passed))))
    for number in range(_LAST):
        if passed >> number & 1:
            _check(_libc.prctl(_AMBIENT, _AMBIENT_RAISE, number, 0, 0))


@contextmanager
def unprivileged() -> Iterator[None]:
    """This thread alone without the rights to read every file; as root it opens files as user 65534, which owns none.

    Raises OSError.
    """
    sets = _sets()
    permitted, effective, inheritable = (sets[at] | sets[at + 3] << 32 for at in (1, 0, 2))
    limited = effective & ~_mask((_DAC_OVERRIDE, DAC_READ_SEARCH))
    root = os.geteuid() == 0
    try:
        if root:
            _libc.setfsgid(_NO_USER)
            _libc.setfsuid(_NO_USER)
        _check(_libc.syscall(OURS.capset, _header(), struct.pack("<6I", *_words(limited, permitted, inheritable))))
        yield
    finally:
        if root:
            _libc.setfsuid(0)
            _libc.setfsgid(os.getegid())
        _check(_libc.syscall(OURS.capset, _header(), struct.pack("<6I", *_words(effective, permitted, inheritable))))


def _mask(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in set(numbers))


def _permitted() -> int:
    words = _sets()
    return words[1] | words[4] << 32


def _sets() -> tuple[int, ...]:
    """Effective, permitted and inheritable capabilities of this thread: their low words, then their high words."""
    sets = ctypes.create_string_buffer(24)
    _check(_libc.syscall(OURS.capget, _header(), sets))
    return struct.unpack("<6I", sets.raw)


def _words(*masks: int) -> list[int]:
    """Effective, permitted, inheritable: their low words, then their high words."""
    return [mask & 0xFFFFFFFF for mask in masks] + [mask >> 32 for mask in masks]


def _header() -> bytes:
    return struct.pack("<Ii", _VERSION, 0)


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
