"""A program that samples one process for a while: py-spy for Python, perf for any other. Neither stops the process."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from agent.stacks.kernel_threads import plain
from agent.stacks.sampled import FILE_BYTES, Sampled, SampleError, read_perf, read_speedscope

CPU_START_S, CPU_SHARE = 5.0, 0.25
"""CPU that one may take: at its start and end, and then of a core. One that takes more is ended by the kernel."""
_SCRIPT_S = 20.0
_DATA_BYTES = 1 << 30
_SAID_BYTES = 1 << 14
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec it may not be
_REFUSED = ("permission", "not permitted", "access to performance monitoring", "no permission")


class Sampler(ABC):
    """A program that samples the first thread of a process, from now on and for so many seconds."""

    name = ""

    def __init__(self, command: list[str], file: Path, seconds: float) -> None:
        self.file, self.seconds = file, seconds
        self.begun = math.inf
        """When it took the first sample, monotonic s."""
        self.cpu_seconds = 0.0
        self.error = ""
        self._said = b""
        self._child = _start(command, seconds)
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)

    def poll(self) -> bool:
        """Whether it still samples; to be asked every few milliseconds, since that tells when it began."""
        if self._child.returncode is None:
            self._listen()
            pid, status, used = os.wait4(self._child.pid, os.WNOHANG)
            if pid:
                self._listen()
                self._ended(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
        return self._child.returncode is None

    def end(self) -> None:
        """End it, where it has not ended by itself."""
        if self._child.returncode is None:
            self._child.kill()
            _, _, used = os.wait4(self._child.pid, 0)
            self._ended(-9, used.ru_utime + used.ru_stime)
            self.error = f"{self.name} was not done in time"

    @abstractmethod
    def samples(self, begin: float, seconds: float, hertz: float) -> Sampled:
        """The samples of a window that began at that time (monotonic s). Raises SampleError."""

    @abstractmethod
    def _heard(self) -> bool:
        """Whether what it printed says that it samples now."""

    def _listen(self) -> None:
        assert self._child.stdout is not None
        while len(self._said) < _SAID_BYTES and (chunk := self._child.stdout.read(4096)):
            self._said += chunk
        if math.isinf(self.begun) and self._heard():
            self.begun = time.monotonic()

    def _ended(self, code: int, cpu_seconds: float) -> None:
        self._child.returncode = code
        assert self._child.stdout is not None
        self._child.stdout.close()
        self.cpu_seconds += cpu_seconds
        if code:
            self.error = self._reason(self._said.decode(errors="replace"))

    def _reason(self, text: str) -> str:
        """What it says of its failure: the first cause, else the first line that names an error."""
        if any(sign in text.lower() for sign in _REFUSED):
            return f"{self.name} is not permitted to read it: that takes root, or its own user"
        if self._child.returncode == -24:
            return f"{self.name} took more CPU than it may and was ended"
        if "no such file" in text.lower() or "no such process" in text.lower():
            return f"{self.name}: there is no such process"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        causes = [line.partition(": ")[2] for line in lines if line.startswith("0: ")]
        errors = [line for line in lines if line.lower().startswith("error")]
        found = next(iter([*causes, *errors, *lines[-1:]]), f"it ended with {self._child.returncode}")
        return f"{self.name}: {plain(found.removeprefix('Error: '), 160)}"


class PySpy(Sampler):
    """Functions of Python, also while they wait."""

    name = "py-spy"

    def __init__(self, spy: str, pid: int, folder: Path, seconds: float, hertz: float) -> None:
        file, length = folder / f"{pid}.json", math.ceil(seconds)
        words = ["--nonblocking", "--idle", "--function", "--format", "speedscope", "--rate", f"{hertz:.0f}"]
        command = [spy, "record", *words, "--duration", str(length), "--pid", str(pid), "--output", str(file)]
        super().__init__(command, file, length)

    def samples(self, begin: float, seconds: float, hertz: float) -> Sampled:
        """Those within the window: samples are at even distances from the first to the last."""
        found = read_speedscope(self.file)
        first = (begin - self.begun) / self.seconds
        return found.within(first, first + seconds / self.seconds)

    def _heard(self) -> bool:
        return b"Sampling process" in self._said


class Perf(Sampler):
    """Native functions, while they are on a CPU."""

    name = "perf"

    def __init__(self, pid: int, folder: Path, seconds: float, hertz: float) -> None:
        self._folder = folder
        command = ["perf", "record", "-q", "-k", "mono", "-e", "cpu-clock", "-F", f"{hertz:.0f}", "-t", str(pid)]
        file = folder / f"{pid}.perf"
        super().__init__([*command, "-o", str(file), "--", "sleep", f"{seconds:.3f}"], file, seconds)

    def samples(self, begin: float, seconds: float, hertz: float) -> Sampled:
        """Those within the window, by their own times."""
        command = ["perf", "script", "-i", str(self.file), "-F", "time,ip,sym,symoff,dso"]
        before = _children_cpu()
        with tempfile.TemporaryFile(dir=self._folder) as text:
            child = _start(command, _SCRIPT_S, text.fileno())
            try:
                child.wait(_SCRIPT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                raise SampleError("perf script was not done in time") from None
            self.cpu_seconds += _children_cpu() - before
            text.seek(0)
            return read_perf((line.decode(errors="replace") for line in text), begin, seconds, hertz)

    def _heard(self) -> bool:
        return os.path.exists(self.file)


def has_perf() -> bool:
    """Whether perf is installed."""
    return shutil.which("perf") is not None


def _start(command: list[str], seconds: float, output: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    def bounded() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # where the agent ends in the middle of a window
        with suppress(OSError):  # under a unit that forbids the call its CPUWeight= does the like
            os.nice(10)
        cpu = math.ceil(CPU_START_S + CPU_SHARE * seconds)
        for limit, most in ((resource.RLIMIT_CPU, cpu), (resource.RLIMIT_DATA, _DATA_BYTES)):
            resource.setrlimit(limit, (most, most))
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output == subprocess.PIPE else subprocess.DEVNULL,
        preexec_fn=bounded,
        env={"PATH": os.environ.get("PATH", os.defpath), "RUST_BACKTRACE": "0"},
    )


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
