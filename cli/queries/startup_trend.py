"""A start of a job against its starts of the last week: the same name and number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.history.starts import sample_starts
from cli.queries.startup_phases import PHASES, RUN_S, Starts, compare_runs
from store.schema.contract import Store
from store.schema.time import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

WEEK_NS = 7 * 86_400 * SECOND
_RUNS = 3
"""Earlier starts from which on a start is called slower than usual."""
_SLOWER, _SLOWER_S = 0.2, 5.0
"""By how much its median must lie above that of the earlier ones: as a share, and in seconds."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A run beside earlier runs of the same job."""

    task: str
    """Name of the job; empty where no scheduler gives one."""
    gpus: int
    runs: int
    """Earlier runs."""
    ready: float
    """Seconds until the slowest process of this run was ready; NaN where unknown."""
    usual: float
    """Median of the same over the earlier runs; NaN without any."""
    phase: str = ""
    """The phase in which its machines' median grew most; empty where none grew."""
    grown: float = 0.0
    """By how many seconds."""

    @property
    def slower(self) -> bool:
        """Whether it is slower than usual."""
        return self.runs >= _RUNS and self.ready - self.usual > max(_SLOWER_S, _SLOWER * self.usual)

    def words(self) -> str:
        """A line."""
        job = f"{self.task or 'unnamed'} on {self.gpus} GPUs"
        if not self.runs:
            return f"no earlier start of {job} within a week"
        many = f"{self.runs} earlier start{'s' * (self.runs != 1)} of {job} within a week"
        line = f"ready after {self.ready:.1f} s; median of {many}: {self.usual:.1f} s"
        if self.slower and self.phase:
            return f"slower than usual: {line}; most grew: {PHASES[self.phase]}, by {self.grown:.1f} s"
        return f"slower than usual: {line}" if self.slower else line

    def as_json(self) -> dict[str, Any]:
        """The object `trend` of `report startup --json`; null where unknown."""
        usual, ready = (None if value != value else round(value, 3) for value in (self.usual, self.ready))
        return {
            "task": self.task or None,
            "gpus": self.gpus,
            "earlier_runs": self.runs,
            "ready_seconds": ready,
            "usual_ready_seconds": usual,
            "slower": self.slower,
            "phase": self.phase or None,
            "grown_seconds": round(self.grown, 3),
        }


def read_trend(store: Store, now: Starts) -> Trend:
    """The trend of a run. Raises StoreError."""
    begin = round(float(now.start.min()) * SECOND)
    tasks = _tasks(store, begin)
    task = _task_of(now, tasks)
    rows = sample_starts(store, max(0, begin - WEEK_NS), max(1, begin))
    before = [
        one
        for one in compare_runs(rows)
        if one.processes == now.processes
        and _task_of(one, tasks) == task
        and one.start.max() < now.start.min() - RUN_S
        and np.isfinite(one.ready).any()
    ]
    ready = float(np.nanmax(now.ready)) if np.isfinite(now.ready).any() else float("nan")
    if not before:
        return Trend(task, now.processes, 0, ready, float("nan"))
    usual = float(np.median([np.nanmax(one.ready) for one in before]))
    phases = np.array([one.median() for one in before])
    known = np.isfinite(phases).any(axis=0)
    grown = np.full(len(PHASES), -np.inf)
    grown[known] = now.median()[known] - np.nanmedian(phases[:, known], axis=0)
    grown = np.nan_to_num(grown, nan=-np.inf)
    most = int(grown.argmax())
    if grown[most] <= 0:
        return Trend(task, now.processes, len(before), ready, usual)
    return Trend(task, now.processes, len(before), ready, usual, list(PHASES)[most], float(grown[most]))


def _tasks(store: Store, begin: int) -> list[tuple[int, str, str]]:
    """Time, machine and task of the rows of `task` around each look of the week, in order of time."""
    if "task" not in store.tables():
        return []
    rows = sample_starts(store, max(0, begin - WEEK_NS), begin + 600 * SECOND, table="task").to_pylist()
    return [(row["time"], row["machine"], str(row.get("task") or "")) for row in rows]


def _task_of(run: Starts, tasks: list[tuple[int, str, str]]) -> str:
    """The task of most machines of a run at the first look after its start."""
    begin, machines = run.start.min() * SECOND, set(run.machines)
    first: Mapping[str, str] = {
        machine: name for at, machine, name in reversed(tasks) if at >= begin and machine in machines
    }
    names = sorted(first.values())
    return max(names, key=names.count, default="")
