"""The training processes: whoever called a function that carries a probe, and which GPU it works on."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from agent.processes import Process, Processes, gpu_of

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Trainee:
    """One training process and the index of its GPU on the machine."""

    process: Process
    gpu: str


class Training:
    """Training processes by number, learned at their first call.

    The GPU is what the launcher says; a process without a launcher's word gets the lowest index that no other has,
    so that its readings have a place of their own and the number of series stays small.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: dict[int, Trainee] = {}
        self._lock = threading.Lock()  # sources read on threads of their own

    def get(self, pid: int) -> Trainee | None:
        """The living process of that number; None when it has ended, or runs another program now."""
        process = self._processes.find(pid)
        known = self._known.get(pid)
        if process is None or (known is not None and known.process == process):
            return known if process is not None else None
        gpu = gpu_of(self._processes.environment(pid))
        with self._lock:
            known = self._known.get(pid)
            if known is not None and known.process == process:  # another source was faster
                return known
            if len(self._known) >= _REMEMBERED:
                self._known = {pid: trainee for pid, trainee in self._known.items() if self._lives(trainee)}
            self._known[pid] = Trainee(process, self._spare() if gpu is None else gpu)
            return self._known[pid]

    def last_known(self, pid: int) -> Trainee | None:
        """What was known of a process, be it alive or not."""
        return self._known.get(pid)

    def _lives(self, trainee: Trainee) -> bool:
        return self._processes.alive(trainee.process)

    def _spare(self) -> str:
        taken = {trainee.gpu for trainee in self._known.values() if self._lives(trainee)}
        return next(str(index) for index in range(len(taken) + 1) if str(index) not in taken)
