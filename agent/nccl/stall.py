"""Detects stalls: a training process asks for no operation for longer than its usual pauses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from agent.probes.training_processes import TrainingProcess, TrainingProcesses
from agent.process.procfs import Process
from bpf.maps import Map

_GAPS = 3.0
"""A process is stalled only after so many of its longest usual pauses, such as those for checkpoints."""
_HALF_LIFE_S = 1800.0
_FIRST_MOVES = 3  # pauses between them are set-up


@dataclass(slots=True)
class StallDetector:
    """The progress of one process from operation to operation. Times in monotonic seconds."""

    count: int
    """Operations asked for."""
    last_progress: float
    """When that was last seen to have grown."""
    moves: int = 0
    gap: float = 0.0
    """The longest time between two moves; what is long ago counts less."""
    handled: bool = False
    """Whether this stall was handled; cleared when the process moves."""

    def observe(self, count: int, now: float) -> None:
        """Update with the number of operations now."""
        if count == self.count:
            return
        passed = now - self.last_progress
        if self.moves >= _FIRST_MOVES:
            self.gap = max(self.gap * 0.5 ** (passed / _HALF_LIFE_S), passed)
        self.count, self.last_progress, self.handled = count, now, False
        self.moves += 1

    def is_stalled(self, now: float, least_s: float) -> bool:
        """Whether it has asked for nothing for longer than usual, and for `least_s` at least."""
        return self.count > 0 and now - self.last_progress >= max(least_s, _GAPS * self.gap)


class StallDetectors:
    """A stall detector for each training process, on the kernel's logs of their operations."""

    def __init__(self, training: TrainingProcesses, processes: Map, logs: Map) -> None:
        self._training, self._processes, self._logs = training, processes, logs
        self._known: dict[Process, StallDetector] = {}

    def update(self, now: int, clock: float) -> None:
        """Update all processes at that time (Unix ns, and monotonic seconds)."""
        living = {trainer.process for trainer in self._training.living(now).values()}
        self._known = {process: stall for process, stall in self._known.items() if process in living}
        beside = self._training.uncounted
        places, logs = np.flatnonzero(self._processes.rows()["tgid"]), self._logs.rows()
        for pid, count in zip(logs["tgid"][places].tolist(), logs["count"][places].tolist(), strict=True):
            trainer = self._training.last_known(pid)
            if trainer is not None and trainer.process in living:
                count += beside.get(pid, 0)
                self._known.setdefault(trainer.process, StallDetector(count, clock)).observe(count, clock)

    def stalled(self, clock: float, least_s: float) -> Iterable[tuple[TrainingProcess, StallDetector]]:
        """The processes that are stalled, without those with a stall that was handled."""
        for process, stall in self._known.items():
            trainer = self._training.last_known(process.pid)
            if not stall.handled and trainer is not None and stall.is_stalled(clock, least_s):
                yield trainer, stall
