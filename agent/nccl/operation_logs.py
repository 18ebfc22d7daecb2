"""The iterations of all training processes, from the logs of operations that the probes keep in the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent.nccl.iteration import IterationDetector
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process
from bpf.maps import Map

READ_EVERY = 2
"""Readings from one reading of a process's log to the next, unless it fills quickly."""


class OperationLogs:
    """One iteration detector a process; each log lies at the index of its process in the kernel's array."""

    def __init__(self, logs: Map) -> None:
        self._logs, self._turn = logs, 0
        self._detectors: dict[Process, IterationDetector] = {}

    def update(self, entries: Iterable[tuple[int, Any]], counted: Mapping[int, TrainingProcess], clock: int) -> None:
        """Read the logs of these entries of the kernel's array (index, row), at that time (monotonic ns).

        `counted` are the processes with probes on their calls, by number. The iterations of all others are forgotten:
        none is known across a time in which calls went uncounted.
        """
        known = {trainer.process for trainer in counted.values()}
        self._detectors = {process: one for process, one in self._detectors.items() if process in known}
        logs = self._logs.rows()
        self._turn += 1
        for index, row in entries:
            trainer = counted.get(int(row["tgid"]))
            if trainer is None or logs[index]["tgid"] != trainer.process.pid:
                continue
            detector = self._detectors.setdefault(trainer.process, IterationDetector())
            if detector.log_nearly_full or (index + self._turn) % READ_EVERY == 0:
                detector.add_log(int(logs[index]["count"]), logs[index]["entries"], clock)

    def iteration_seconds(self, process: Process, clock: int) -> float | None:
        """How long the process's last iteration took; None: not known."""
        detector = self._detectors.get(process)
        return detector.seconds(clock) if detector else None

    def departs(self, process: Process) -> bool | None:
        """Whether one of the process's last calls departs from the order of those before; None: not known."""
        detector = self._detectors.get(process)
        return detector.departs() if detector else None
