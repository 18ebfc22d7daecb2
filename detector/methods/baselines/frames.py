"""Frames: every table's readings at one step, by task, for methods that compare whole machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.model.verdict import Finding
from detector.stats.arrays import Floats
from detector.timeseries.live_window import Window
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.catalogue import TABLES
from store.schema.time import NEVER, SECOND

_HOLD_STEPS = 2.5
_LEAST_PEERS = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One task's readings of one step."""

    task: str
    machines: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Floats
    """[metric, machine]: the mean over a machine's devices; NaN where unknown."""


@dataclass(slots=True)
class Frames:
    """Takes in rows and gives frames, one a step of the shortest table."""

    windows: dict[str, Window] = field(default_factory=dict)
    judged_at: int = NEVER
    standing: dict[str, list[Finding]] = field(default_factory=dict)
    """By task, what was found in its last frame."""

    def judge(
        self, now: int, rows: Mapping[str, Rows], tasks: Tasks, found: Callable[[Frame, int], list[Finding]]
    ) -> list[Finding]:
        """Take in what is new, find what each frame that is due holds, and give all that stands."""
        self.feed(rows)
        for frame in self.due(now, tasks):
            self.standing[frame.task] = found(frame, now)
        return [finding for findings in self.standing.values() for finding in findings]

    def feed(self, rows: Mapping[str, Rows]) -> None:
        """Take in what is new."""
        for name, new in rows.items():
            if name not in TABLES or TABLES[name].compared:
                if name not in self.windows:
                    self.windows[name] = Window(name)
                self.windows[name].feed(new)

    def step_s(self) -> float:
        """Seconds from one frame to the next; 0 while unknown."""
        steps = [window.step_ns for window in self.windows.values() if window.step_ns]
        return min(steps) / SECOND if steps else 0.0

    def due(self, now: int, tasks: Tasks) -> Iterator[Frame]:
        """The frames at `now` (Unix ns), one a task; none between two steps or where no machine has three peers."""
        step = self.step_s()
        if not step or now - self.judged_at < 0.95 * step * SECOND:
            return
        self.judged_at = now
        machines = sorted({name for window in self.windows.values() for name, _ in window.entities})
        if len(machines) < _LEAST_PEERS:
            return
        number = {name: at for at, name in enumerate(machines)}
        parts = [_by_machine(window, now, number) for window in self.windows.values() if window.entities]
        values = np.concatenate(parts)
        metrics = tuple(f"{w.table}.{m}" for w in self.windows.values() if w.entities for m in w.metrics)
        of = np.array([tasks.task_of(name) or "" for name in machines], object)
        for task in sorted(set(of) - {""}):
            those = np.flatnonzero(of == task)
            if len(those) >= _LEAST_PEERS:
                yield Frame(task, tuple(machines[at] for at in those), metrics, values[:, those])


def _by_machine(window: Window, now: int, number: Mapping[str, int]) -> Floats:
    """[metric, machine]: means over each machine's devices."""
    values = window.snapshot(now, _HOLD_STEPS).astype(np.float64)
    owner = np.array([number[name] for name, _ in window.entities[: values.shape[1]]], np.int64)
    out = np.full((len(values), len(number)), np.nan)
    for row, mine in enumerate(values):
        known = ~np.isnan(mine)
        count = np.bincount(owner[known], minlength=len(number))
        total = np.bincount(owner[known], mine[known], minlength=len(number))
        np.divide(total, count, out=out[row], where=count > 0)
    return out
