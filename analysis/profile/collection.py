"""Takes samples of several processes of this machine in the same window, with py-spy, which stops none of them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from analysis.profile.samples import SampleError

HERTZ, MOST_PROCESSES, LONGEST_S = 50, 64, 120.0
_PATIENCE_S = 20.0
"""For py-spy to begin and to write its file."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What was taken."""

    files: dict[str, Path]
    """Name of the process -> its samples."""
    failed: dict[str, str]
    """Name of the process -> why there are none."""
    seconds: float
    cpu_seconds: float
    """Of all py-spy processes together: what the window cost this machine."""


def collect(
    processes: dict[str, int], folder: Path, seconds: float, tell: Callable[[float], None] = lambda done: None
) -> Collected:
    """Sample these processes (name -> pid) for so many seconds, all at once; `tell` hears the seconds that passed.

    Raises SampleError where py-spy is missing, or too much is asked for.
    """
    spy = Path(sys.prefix, "bin", "py-spy")
    if not os.access(spy, os.X_OK):
        raise SampleError(f"py-spy is not installed: {sys.executable} -m pip install py-spy")
    if len(processes) > MOST_PROCESSES or seconds > LONGEST_S:
        raise SampleError(f"at most {MOST_PROCESSES} processes and {LONGEST_S:.0f} seconds at once")
    before, begun = _children_cpu(), time.monotonic()
    files = {name: folder / f"{_file_name(name)}.json" for name in processes}
    children = {
        name: _start([str(spy), "record", "--nonblocking", "--idle", "--function", "--format", "speedscope", "--rate",
                      str(HERTZ), "--duration", f"{seconds:.0f}", "--pid", str(pid), "--output", str(files[name])])
        for name, pid in processes.items()
    }  # fmt: skip
    deadline = begun + seconds + _PATIENCE_S
    while any(child.poll() is None for child in children.values()) and time.monotonic() < deadline:
        tell(min(time.monotonic() - begun, seconds))
        time.sleep(0.1)
    failed = {name: why for name, child in children.items() if (why := _end(child))}
    cost = _children_cpu() - before
    return Collected({name: path for name, path in files.items() if name not in failed}, failed, seconds, cost)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=_polite,
        env={**os.environ, "RUST_BACKTRACE": "0"},
    )


def _polite() -> None:
    os.nice(10)  # training goes first
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))


def _end(child: subprocess.Popen[bytes]) -> str:
    """Why it gave no samples; empty: it did."""
    if child.poll() is None:
        child.kill()
    with suppress(subprocess.TimeoutExpired):
        error = child.communicate(timeout=2)[1][-4000:].decode(errors="replace").strip().splitlines()
        return "" if child.returncode == 0 else _reason(error)[:200]
    return "py-spy does not end"


def _reason(lines: Sequence[str]) -> str:
    """What py-spy says of its failure: the first cause, else the first line that names an error."""
    stripped = [line.strip() for line in lines]
    causes = [line.partition(": ")[2] for line in stripped if line.startswith("0: ")]
    errors = [line for line in stripped if line.lower().startswith("error")]
    found = next(iter([*causes, *errors, *stripped[-1:]]), "py-spy was not done in time")
    return found.partition(": Try running")[0]  # its advice is for its own command line


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _file_name(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in name)[:120]
