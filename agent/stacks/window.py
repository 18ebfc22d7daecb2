"""Samples several processes in one window that begins at a stated time; as a program, the child that the agent asks.

py-spy needs time to find the interpreter, so sampling begins a little before the window, and what was taken outside of
it is left out. Where py-spy cannot read a process, perf samples its native functions.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.process.procfs import Process, Processes
from agent.stacks.sampled import Sampled, SampleError
from agent.stacks.samplers import Perf, PySpy, Sampler, has_perf
from agent.system.rights import DAC_READ_SEARCH, PERFMON, SYS_PTRACE, give_up, yield_to_others

HERTZ, MOST_PROCESSES = 50.0, 64
LEAD_S = 3.0
"""How long before the window sampling begins."""
_TURN_S = 0.02
_PATIENCE_S = 20.0
"""For a sampler to write its file."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken of one process."""

    reader: str = "none"
    """py-spy, perf or none."""
    sampled: Sampled = field(default_factory=lambda: Sampled((), ()))
    late_seconds: float = 0.0
    """How much of the window had passed before the first sample."""
    cpu_seconds: float = 0.0
    error: str = ""
    """Why there are no samples, or none of py-spy."""


def main() -> None:
    """Answer one request from standard input, one JSON line a process."""
    yield_to_others(19)
    give_up((), (SYS_PTRACE, DAC_READ_SEARCH, PERFMON))
    request = json.load(sys.stdin)
    processes = [Process(*words) for words in request["processes"]]
    begin = time.monotonic() + request["begin"] / 1e9 - time.time()
    window = begin, request["seconds"], request["hertz"]
    with tempfile.TemporaryDirectory(prefix="peerwatch-profile-") as folder:
        living = [one.pid for one in processes if Processes().alive(one)]
        found = sample(living, Path(folder), request["spy"], *window)
    for process in processes:
        # Its number may be another process's by now.
        taken = found.get(process.pid, Taken()) if Processes().alive(process) else Taken(error="it has ended")
        numbers = {"late_seconds": taken.late_seconds, "cpu_seconds": taken.cpu_seconds}
        columns = taken.sampled.packed() if taken.sampled.seen else {}
        row = {"pid": process.pid, "reader": taken.reader, "error": taken.error or None, **numbers, **columns}
        print(json.dumps(row), flush=True)


def sample(
    pids: Sequence[int],
    folder: Path,
    spy: str,
    begin: float,
    seconds: float,
    hertz: float = HERTZ,
    tell: Callable[[float], None] = lambda done: None,
) -> dict[int, Taken]:
    """Samples of these processes between `begin` (monotonic s) and so many seconds later; files lie in `folder`.

    `tell` hears the seconds of the window that have passed.
    """
    time.sleep(max(begin - LEAD_S - time.monotonic(), 0.0))
    if time.monotonic() > begin + seconds / 2:
        return {pid: Taken(error="more than half of the window was over before it could begin") for pid in pids}
    window = _Window(folder, spy, begin, seconds, hertz)
    try:
        for pid in pids:
            window.start(pid)
        while window.turn() and time.monotonic() < begin + seconds + _PATIENCE_S:
            tell(min(max(time.monotonic() - begin, 0.0), seconds))
            time.sleep(_TURN_S)
    finally:  # Ctrl-C too leaves none behind
        for one in window.running.values():
            one.end()
    return {pid: window.taken(pid) for pid in pids}


@dataclass(slots=True)
class _Window:
    """The samplers of one window."""

    folder: Path
    spy: str
    begin: float
    seconds: float
    hertz: float
    running: dict[int, Sampler] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)
    """Process -> why py-spy is not its sampler."""
    has_perf: bool = field(default_factory=has_perf)

    def start(self, pid: int) -> None:
        """Begin with py-spy, and with perf where that is not installed."""
        if os.access(self.spy, os.X_OK):
            self.running[pid] = PySpy(self.spy, pid, self.folder, self._left() + 1, self.hertz)
            return
        self.why[pid] = f"py-spy is not installed: {sys.executable} -m pip install py-spy"
        if self.has_perf:
            self.running[pid] = Perf(pid, self.folder, self._left(), self.hertz)

    def turn(self) -> bool:
        """Hear all samplers, and begin perf where py-spy has failed; whether one is at work."""
        working = sum(one.poll() for one in self.running.values())
        if not self.has_perf or self._left() < self.seconds / 2:
            return working > 0
        failed = [pid for pid, one in self.running.items() if one.error and one.name == PySpy.name]
        for pid in failed:
            self.why[pid] = self.running[pid].error
            self.running[pid] = Perf(pid, self.folder, self._left(), self.hertz)
        return working + len(failed) > 0

    def taken(self, pid: int) -> Taken:
        """What was taken of a process."""
        return _taken(self.running.get(pid), self.why.get(pid, ""), (self.begin, self.seconds, self.hertz))

    def _left(self) -> float:
        """Seconds until the window's end."""
        return self.begin + self.seconds - time.monotonic()


def _taken(sampler: Sampler | None, why: str, window: tuple[float, float, float]) -> Taken:
    """What a sampler has; `why` is why py-spy was not it."""
    if sampler is None:
        return Taken(error=f"{why}; perf is not installed either")
    if sampler.error:
        return Taken(cpu_seconds=sampler.cpu_seconds, error="; ".join(filter(None, (why, sampler.error))))
    try:
        found = sampler.samples(*window)
    except (SampleError, OSError) as error:
        return Taken(cpu_seconds=sampler.cpu_seconds, error="; ".join(filter(None, (why, str(error)))))
    if not found.seen:
        return Taken(cpu_seconds=sampler.cpu_seconds, error=f"{sampler.name} took no sample in the window")
    late = max(0.0, sampler.begun - window[0])
    return Taken(sampler.name, found, round(late, 3), round(sampler.cpu_seconds, 3), why)


if __name__ == "__main__":
    main()
