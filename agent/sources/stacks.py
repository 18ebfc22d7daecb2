"""Stacks of training processes that stand still, taken once for each time that they do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.context import Context
from agent.processes import Process
from agent.stack_process import StackProcess, spy_path
from agent.training import Trainee
from bpf.maps import Map
from store.sample import Sample

_GAPS = 3.0
"""What pauses now and then, as for checkpoints, stands still only after so many of its longest usual pauses."""
_HALF_LIFE_S = 1800.0
_FIRST_MOVES = 3  # pauses between them are set-up
_AT_ONCE = 64


@dataclass(slots=True)
class Pace:
    """How one process goes from operation to operation. Times in monotonic seconds."""

    count: int
    """Operations asked for."""
    moved: float
    """When that was last seen to have grown."""
    moves: int = 0
    gap: float = 0.0
    """The longest time between two moves; what is long ago counts less."""
    taken: bool = False
    """Whether its stacks were asked for since it moved."""

    def see(self, count: int, now: float) -> None:
        """Take in how many operations there are now."""
        if count == self.count:
            return
        passed = now - self.moved
        if self.moves >= _FIRST_MOVES:
            self.gap = max(self.gap * 0.5 ** (passed / _HALF_LIFE_S), passed)
        self.count, self.moved, self.taken = count, now, False
        self.moves += 1

    def stands(self, now: float, least_s: float) -> bool:
        """Whether it has asked for nothing for longer than usual, and for `least_s` at least."""
        return self.count > 0 and now - self.moved >= max(least_s, _GAPS * self.gap)


class Stacks:
    """A row a process and standstill. A hang is everybody's: each machine takes its own ranks' stacks, unasked."""

    def __init__(self, context: Context, processes: Map, logs: Map) -> None:
        self._training, self._least_s = context.training, context.config.stacks_after_seconds
        self._processes, self._logs = processes, logs
        self._paces: dict[Process, Pace] = {}
        self._asked: dict[int, tuple[Trainee, float]] = {}
        self._child = StackProcess(spy_path())
        self.nothing = "" if os.access(spy_path(), os.X_OK) else "without py-spy, only what the kernel tells of threads"

    def read(self, now: int) -> list[Sample]:
        """The stacks that have come, each at a time of its own; then those that are wanted are asked for."""
        clock = time.monotonic()
        living = {trainee.process: trainee for trainee in self._training.living(now).values()}
        self._paces = {process: pace for process, pace in self._paces.items() if process in living}
        for pid, count in self._counts():
            trainee = self._training.last_known(pid)
            if trainee is not None and trainee.process in living:
                self._paces.setdefault(trainee.process, Pace(count, clock)).see(count, clock)
        samples = [self._row(answer, now + at) for at, answer in enumerate(self._child.poll())]
        wanted = [p for p, pace in self._paces.items() if not pace.taken and pace.stands(clock, self._least_s)]
        if wanted and self._child.ready:
            self._take([living[process] for process in wanted[:_AT_ONCE]])
        return samples

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _counts(self) -> Iterator[tuple[int, int]]:
        """Process number and operations asked for, of each process that the kernel has a log of."""
        pids, logs = self._processes.rows()["tgid"], self._logs.rows()
        places = np.flatnonzero(pids)
        yield from zip(logs["tgid"][places].tolist(), logs["count"][places].tolist(), strict=True)

    def _take(self, trainees: list[Trainee]) -> None:
        self._asked = {}
        for trainee in trainees:
            pace = self._paces[trainee.process]
            pace.taken = True
            self._asked[trainee.process.pid] = trainee, pace.moved
        self._child.ask(trainee.process for trainee in trainees)

    def _row(self, answer: dict[str, Any], at: int) -> Sample:
        """Rows that share a GPU must not share a time, or one would take the other's place."""
        trainee, moved = self._asked[answer["pid"]]
        still = time.monotonic() - moved
        return Sample("stack", {"gpu": trainee.gpu, **answer, "still_seconds": still}, time=at)


def open_source(context: Context) -> Stacks:
    """The source, ready to read. Raises NothingThereError where probes cannot be had."""
    kernel, _ = context.probes()
    return Stacks(context, kernel.maps["processes"], kernel.maps["logs"])
