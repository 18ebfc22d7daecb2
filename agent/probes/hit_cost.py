"""What one hit of a probe costs on this machine: a few thousand hits on code of our own, measured at the start.

The kernel emulates some first instructions and steps over others with a second trap, so there are two costs
(arch/x86/kernel/uprobes.c, arch_uprobe_analyze_insn).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from dataclasses import dataclass

from bpf.processor import OURS, X86_64
from bpf.uprobe import Point, attach, detach

EMULATED_S, STEPPED_S = 2e-6, 11e-6
"""Taken where it cannot be measured: the upper ends of what docs/kernel.md reports."""
_WORK_S = 6e-7
"""What a hit costs more in a process than in a tight loop: the programs' own work, and caches that hold other
things. The difference between this loop and `make bench ARGS="-k cost_of_a_hit"` on one machine."""
_LEAST_S = 1e-8
_HITS, _ROUNDS = 64, 9
_PLACE, _FUNCTION, _SIZE = 64, 16, 4096
_LOOP = b"\x89\xf9\xe8\x09\x00\x00\x00\xff\xc9\x75\xf7\xc3"  # mov ecx, edi; call +16; dec ecx; jnz to the call; ret
_PUSH, _MOVE = b"\x55\x5d\xc3", b"\x89\xf8\xc3"  # push rbp; pop rbp; ret, and mov eax, edi; ret
_MEMORY_FLAGS = mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE


@dataclass(frozen=True, slots=True)
class HitCost:
    """Seconds that one hit takes from the thread that is hit, by whether the kernel emulates the first instruction."""

    emulated: float = EMULATED_S
    stepped: float = STEPPED_S
    unmeasured: str = ""
    """Why these are assumed; empty: they were measured on this machine."""

    def of(self, stepped: bool) -> float:
        """Seconds of one hit."""
        return self.stepped if stepped else self.emulated

    @property
    def words(self) -> str:
        """In one sentence."""
        costs = f"{self.emulated * 1e6:.1f} µs, {self.stepped * 1e6:.1f} µs where the kernel steps over an instruction"
        how = f"assumed, not measured: {self.unmeasured}" if self.unmeasured else "measured at the start"
        return f"a hit costs {costs} ({how})"


def measure(program: int) -> HitCost:
    """The cost of hits that run this program, some 10 ms of processor time; what is assumed where it fails.

    The program has to leave alone what it is not asked to count, since this process hits it.
    """
    if OURS is not X86_64:
        return HitCost(unmeasured=f"the loop that measures it is code of {X86_64.name}")
    try:
        file = os.memfd_create("cost of a hit")
    except OSError as error:
        return HitCost(unmeasured=_why(error))
    try:
        os.write(file, b"".join(_code(function) for function in (_PUSH, _MOVE)).ljust(_SIZE, b"\xcc"))
        return _measure(program, file)
    except OSError as error:
        return HitCost(unmeasured=_why(error))
    finally:
        os.close(file)


def _measure(program: int, file: int) -> HitCost:
    """Time both loops without probes and with them. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
    )
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, _SIZE, *_MEMORY_FLAGS, file, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "memory with instructions is refused")
    probes: list[int] = []
    try:
        bare = [_timed(address + place) for place in (0, _PLACE)]
        for place in (0, _PLACE):
            probes.append(attach(program, f"/proc/self/fd/{file}", Point(place + _FUNCTION)))  # noqa: PERF401 - detached
        emulated, stepped = (
            max(_timed(address + place) - base, _LEAST_S) + _WORK_S
            for place, base in zip((0, _PLACE), bare, strict=True)
        )
    finally:
        detach(probes)
        libc.munmap(address, _SIZE)
    return HitCost(emulated, max(stepped, emulated))


def _timed(address: int) -> float:
    """Seconds of one call in the loop at that address: the median of some rounds, in processor time of this thread."""
    loop = ctypes.CFUNCTYPE(None, ctypes.c_int)(address)
    rounds = []
    for _ in range(_ROUNDS):
        begin = time.thread_time_ns()
        loop(_HITS)
        rounds.append((time.thread_time_ns() - begin) / _HITS)
    return statistics.median(rounds) / 1e9


def _code(function: bytes) -> bytes:
    return (_LOOP.ljust(_FUNCTION, b"\x90") + function).ljust(_PLACE, b"\x90")


def _why(error: OSError) -> str:
    return error.strerror or str(error)
