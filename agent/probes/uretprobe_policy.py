"""Whether a return probe may be put on a process: on some kernels it can kill one that has system calls filtered.

From Linux 6.11 on x86-64 a probed function returns through a system call of its own, uretprobe, which filters of older
libraries do not know and answer as they like, mostly by ending the process. Since 6.14 filters let it pass
(kernel/seccomp.c: "passthrough uretprobe systemcall without filtering"). Distributions carry such changes to other
version numbers, so before 6.14 the kernel's own symbols are asked.
"""

from __future__ import annotations

import re
from pathlib import Path

_PASSES = (6, 14)
_FILTERED = re.compile(rb"^Seccomp:\t([0-9]+)$", re.MULTILINE)
_CALL = b" __x64_sys_uretprobe\n"


def kernel_is_safe(release: str, symbols: Path = Path("/proc/kallsyms")) -> bool:
    """Whether returns go past every filter of system calls on a kernel of this release (`uname -r`)."""
    numbers = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", release)
    if numbers and (int(numbers[1]), int(numbers[2])) >= _PASSES:
        return True
    try:
        text = symbols.read_bytes()
    except OSError:
        return False
    return bool(text) and _CALL not in text


def is_filtered(status: bytes) -> bool:
    """Whether /proc/PID/status tells of filtered system calls; True where it does not tell."""
    found = _FILTERED.search(status)
    return found is None or found[1] != b"0"


class UretprobePolicy:
    """The answer for each process, by the policy of `agent.return_probes`; the kernel is asked once, at need."""

    def __init__(self, policy: str, release: str, proc: Path = Path("/proc")) -> None:
        self._policy, self._release, self._proc = policy, release, proc
        self._safe: bool | None = None

    def refused(self, pid: int) -> str:
        """Why a process gets no return probe; empty: it may have one."""
        if self._policy == "never":
            return "agent.return_probes is never"
        if self._safe is None:
            self._safe = kernel_is_safe(self._release, self._proc / "kallsyms")
        if self._safe:
            return ""
        if self._policy == "auto":
            return f"kernel {self._release} may kill a process at a probed return"
        try:
            status = (self._proc / str(pid) / "status").read_bytes()
        except OSError:
            return "the process has ended"
        return f"kernel {self._release} would kill it: its system calls are filtered" if is_filtered(status) else ""
