"""Garbage-collection pauses of CPython in training processes, seen from the kernel."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from agent.context import Context
from agent.probes.training_processes import TrainingProcess
from agent.probes.uretprobe_policy import UretprobePolicy
from agent.python_gc.gc_probe import GcProbe, State
from agent.python_gc.gc_probes import GcProbes
from agent.system.on_change import OnChange
from store.schema.sample import Sample, Value

_COLUMNS = ("state", "reason", "symbols", "path")
_SHOWN = {
    State.ATTACHED: "on",
    State.FROM_MEMORY: "on",
    State.RATE_LIMITED: "blocked",
    State.BLOCKED: "blocked",
}


class Python:
    """One row a GPU: the pauses of its processes are added up; and one for each interpreter, on change."""

    def __init__(self, context: Context, probes: GcProbes) -> None:
        self._training, self.watched = context.training, probes
        self._published = OnChange[str, tuple[Value, ...]]()

    def read(self, now: int) -> list[Sample]:
        """The pauses so far, and the interpreters with a new state."""
        living = self._training.living(now)
        self.watched.update(now, (trainer.process for trainer in living.values()))
        return self._pauses(living) + self._states(now)

    def close(self) -> None:
        """Take the probes off."""
        self.watched.close()

    def _pauses(self, living: Mapping[int, TrainingProcess]) -> list[Sample]:
        rows: dict[str, dict[str, Value]] = {}
        rate_limited = set()
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for trainer in living.values():
            probe = self.watched.probes.get(trainer.process)
            if probe is None:
                continue
            if probe.state is State.RATE_LIMITED:
                rate_limited.add(trainer.gpu)
            elif (pauses := self.watched.pauses(probe)) is not None:
                row = rows.setdefault(trainer.gpu, {"gpu": trainer.gpu})
                for column, value in {"gc_pauses_total": pauses, **self._seconds(probe, clock)}.items():
                    row[column] = row.get(column, 0) + value  # type: ignore[operator]
        # A sum that lost one of its parts would look like a counter that was reset.
        return [Sample("cuda", row) for gpu, row in rows.items() if gpu not in rate_limited]

    def _seconds(self, probe: GcProbe, clock: int) -> dict[str, float]:
        if not probe.plan.timed:
            return {}
        entry = self.watched.entry(probe)
        since = int(entry["since"])
        return {"gc_seconds_total": (int(entry["ns"]) + (max(clock - since, 0) if since else 0)) / 1e9}

    def _states(self, now: int) -> list[Sample]:
        """A row for each interpreter: the state of its first process that is blocked, else of any."""
        states: dict[str, tuple[Value, ...]] = {}
        for probe in self.watched.probes.values():
            if probe.state in _SHOWN and probe.file is not None:
                path = probe.file.path
                name = os.path.basename(path)
                state = (_SHOWN[probe.state], probe.reason or None, len(probe.probes), path)
                states[name] = max(state, states.get(name, state), key=lambda one: one[0] == "blocked")
        for name, last in self._published.last.items():
            if name not in states and last[0] != "gone":
                states[name] = ("gone", "no training process runs it any more", 0, last[3])
        due = self._published.due(now, states)
        return [Sample("probe", {"library": name, **dict(zip(_COLUMNS, states[name], strict=True))}) for name in due]


def open_source(context: Context) -> Python:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    kernel, _ = context.probes()
    returns = UretprobePolicy(context.config.return_probes, os.uname().release, context.proc)
    assert context.governor is not None  # where there are probes there is one
    return Python(context, GcProbes(kernel, context.processes, returns, context.governor))
