"""Stacks of training processes that are stalled, taken once a stall."""

from __future__ import annotations

import os
import time
from dataclasses import astuple
from itertools import islice
from typing import Any

from agent.context import Context
from agent.nccl.stall import StallDetector, StallDetectors
from agent.probes.training_processes import TrainingProcess
from agent.stacks.py_spy import spy_path
from agent.system.child_process import ChildTask
from store.schema.sample import Sample

_AT_ONCE = 64


class Stacks:
    """A row a process and stall. A hang stalls all machines: each takes the stacks of its own ranks."""

    def __init__(self, stalls: StallDetectors, least_s: float) -> None:
        self._stalls, self._least_s = stalls, least_s
        self._asked: dict[int, tuple[TrainingProcess, float]] = {}
        self._child = ChildTask("agent.stacks.worker")
        self.limited = "" if os.access(spy_path(), os.X_OK) else "without py-spy, only what the kernel tells of threads"

    def read(self, now: int) -> list[Sample]:
        """The stacks that have come, each at a time of its own; then those that are wanted are asked for."""
        clock = time.monotonic()
        self._stalls.update(now, clock)
        answers = self._child.poll()
        samples = [self._row(answer, now + at, clock) for at, answer in enumerate(answers)]
        if self._asked and not self._child.under_way:
            cut_off = {"form": "none", "error": "taking stacks was cut off"}
            samples += [self._row({"pid": pid, **cut_off}, now - at, clock) for at, pid in enumerate([*self._asked], 1)]
        if self._child.ready:
            self._request(list(islice(self._stalls.stalled(clock, self._least_s), _AT_ONCE)))
        return samples

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _request(self, wanted: list[tuple[TrainingProcess, StallDetector]]) -> None:
        if not wanted:
            return
        for trainer, stall in wanted:
            stall.handled = True
            self._asked[trainer.process.pid] = trainer, stall.last_progress
        self._child.ask({"spy": spy_path(), "processes": [astuple(trainer.process) for trainer, _ in wanted]})

    def _row(self, answer: dict[str, Any], at: int, clock: float) -> Sample:
        """Rows that share a GPU must not share a time, or one would take the other's place."""
        trainer, last_progress = self._asked.pop(answer["pid"])
        return Sample("stack", {"gpu": trainer.gpu, **answer, "still_seconds": clock - last_progress}, time=at)


def open_source(context: Context) -> Stacks:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    kernel, _ = context.probes()
    stalls = StallDetectors(context.training, kernel.maps["processes"], kernel.maps["logs"])
    return Stacks(stalls, context.config.stacks_after_seconds)
