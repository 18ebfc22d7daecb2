"""What differs between processors: numbers of system calls, and the word by which programs read the right registers.

x86-64: arch/x86/entry/syscalls/syscall_64.tbl. ARM64: include/uapi/asm-generic/unistd.h; it was never run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_WAITS_X86_64 = """0 read 1 write 7 poll 16 ioctl 23 select 24 sched_yield 35 nanosleep 43 accept 44 sendto 45 recvfrom
    46 sendmsg 47 recvmsg 61 wait4 74 fsync 128 rt_sigtimedwait 202 futex 219 restart_syscall 230 clock_nanosleep
    232 epoll_wait 270 pselect6 271 ppoll 281 epoll_pwait 299 recvmmsg 426 io_uring_enter"""
_WAITS_ARM64 = """22 epoll_pwait 29 ioctl 63 read 64 write 72 pselect6 73 ppoll 82 fsync 98 futex 101 nanosleep
    115 clock_nanosleep 124 sched_yield 128 restart_syscall 137 rt_sigtimedwait 202 accept 206 sendto 207 recvfrom
    211 sendmsg 212 recvmsg 243 recvmmsg 260 wait4 426 io_uring_enter"""


@dataclass(frozen=True, slots=True)
class Processor:
    """One kind of processor; `bpf` and so on are numbers of system calls."""

    name: str
    """As `uname -m` has it."""
    flag: str
    """Defined where programs are compiled for it."""
    bpf: int
    perf_event_open: int
    capget: int
    capset: int
    waits: str
    """The calls that a thread waits in: number and name, in turn."""


X86_64 = Processor("x86_64", "REGISTERS_OF_X86_64", 321, 298, 125, 126, _WAITS_X86_64)
ARM64 = Processor("aarch64", "REGISTERS_OF_ARM64", 280, 241, 90, 91, _WAITS_ARM64)
KNOWN = {one.name: one for one in (X86_64, ARM64)}


def here() -> Processor | None:
    """This machine's; None: one of which nothing is known."""
    return KNOWN.get(os.uname().machine)


OURS = here() or X86_64
"""The one that counts; where none is known that of x86-64, and no program is loaded."""
