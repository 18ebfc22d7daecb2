"""Garbage-collection pauses of CPython in training processes, seen from the kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from agent.context import Context
from agent.probes.training_processes import TrainingProcess
from agent.probes.uretprobe_policy import UretprobePolicy
from agent.python_gc.gc_probes import GcProbe, GcProbes
from store.schema.sample import Sample, Value

_REPEAT_NS = 60_000_000_000
"""A state that does not change is told once a minute, so that a reader need not go back far."""
_SHOWN = {"on": "on", "read": "on", "resting": "blocked", "blocked": "blocked"}


class Python:
    """One row a GPU: the pauses of its processes are added up; and one for each interpreter, on change."""

    def __init__(self, context: Context, collectors: GcProbes) -> None:
        self._training, self.watched = context.training, collectors
        self._told: dict[str, tuple[Value, ...]] = {}
        self._told_at = 0

    def read(self, now: int) -> list[Sample]:
        """The pauses so far, and what is news of the interpreters."""
        living = self._training.living(now)
        self.watched.update(now, (trainee.process for trainee in living.values()))
        return self._pauses(living) + self._states(now)

    def close(self) -> None:
        """Take the probes off."""
        self.watched.close()

    def _pauses(self, living: Mapping[int, TrainingProcess]) -> list[Sample]:
        rows: dict[str, dict[str, Value]] = {}
        resting = set()
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for trainee in living.values():
            collector = self.watched.collectors.get(trainee.process)
            if collector is None:
                continue
            if collector.state == "resting":
                resting.add(trainee.gpu)
            elif (pauses := self.watched.pauses(collector)) is not None:
                row = rows.setdefault(trainee.gpu, {"gpu": trainee.gpu})
                for column, value in {"gc_pauses_total": pauses, **self._seconds(collector, clock)}.items():
                    row[column] = row.get(column, 0) + value  # type: ignore[operator]
        # A sum that goes on without one of its parts would look as if the counting had begun anew.
        return [Sample("cuda", row) for gpu, row in rows.items() if gpu not in resting]

    def _seconds(self, collector: GcProbe, clock: int) -> dict[str, float]:
        if not collector.plan.timed:
            return {}
        entry = self.watched.entry(collector)
        since = int(entry["since"])
        return {"gc_seconds_total": (int(entry["ns"]) + (max(clock - since, 0) if since else 0)) / 1e9}

    def _states(self, now: int) -> list[Sample]:
        """A row for each interpreter: how it is with the first of its processes that is not well, or with all."""
        states: dict[str, tuple[Value, ...]] = {}
        for collector in self.watched.collectors.values():
            if collector.state in _SHOWN and collector.file is not None:
                path = collector.file.path
                name = os.path.basename(path)
                told = (_SHOWN[collector.state], collector.reason or None, len(collector.probes), path)
                states[name] = max(told, states.get(name, told), key=lambda state: state[0] == "blocked")
        for name in self._told.keys() - states.keys():
            states[name] = ("gone", "no training process runs it any more", 0, self._told[name][3])
        repeat = not 0 <= now - self._told_at < _REPEAT_NS
        news = {name: state for name, state in states.items() if repeat or self._told.get(name) != state}
        if repeat:
            self._told_at = now
        self._told = {name: state for name, state in states.items() if state[0] != "gone"}
        columns = ("state", "reason", "symbols", "path")
        return [
            Sample("probe", {"library": name, **dict(zip(columns, state, strict=True))}) for name, state in news.items()
        ]


def open_source(context: Context) -> Python:
    """The source, ready to read. Raises NothingThereError where probes cannot be had."""
    kernel, _ = context.probes()
    returns = UretprobePolicy(context.config.return_probes, os.uname().release, context.proc)
    return Python(context, GcProbes(kernel, context.processes, returns))
