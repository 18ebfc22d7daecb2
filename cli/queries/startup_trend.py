"""A start of a job against its starts of the last week: the same name and number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.history.starts import read_starts, sample_starts
from cli.queries.startup_phases import PHASES, RUN_S, Starts, compare_runs
from store.schema.contract import Store
from store.schema.time import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

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


@dataclass(frozen=True, slots=True)
class JobStarts:
    """The runs of one job with one number of GPUs."""

    task: str
    runs: list[Starts]
    """The oldest first."""

    def trend(self) -> Trend:
        """The last run beside those before it."""
        return _trend(self.task, self.runs[-1], self.runs[:-1])


def read_trend(store: Store, now: Starts) -> Trend:
    """The trend of a run against those of the week before. Raises StoreError."""
    begin = round(float(now.start.min()) * SECOND)
    jobs = read_job_starts(store, begin - WEEK_NS, begin + 600 * SECOND)
    task = next((job.task for job in jobs for run in job.runs if _is_same(run, now)), "")
    earlier = [run for job in jobs if job.task == task for run in job.runs if run.processes == now.processes]
    return _trend(task, now, [run for run in earlier if run.start.max() < now.start.min() - RUN_S])


def read_job_starts(store: Store, first: int, end: int) -> list[JobStarts]:
    """All jobs with a start between two times (Unix ns), by name and number of GPUs, the last start first.

    Raises StoreError.
    """
    first = max(0, first)
    rows = read_starts(store, first, max(1, end))
    names = _names(rows, _looked(store, first, end))
    found: dict[tuple[str, int], list[Starts]] = {}
    for name in sorted(set(names)):
        for run in compare_runs(rows.filter([one == name for one in names])):
            found.setdefault((name, run.processes), []).append(run)
    jobs = [JobStarts(name, runs) for (name, _), runs in found.items()]
    return sorted(jobs, key=lambda job: -job.runs[-1].start.min())


def _trend(task: str, now: Starts, before: list[Starts]) -> Trend:
    before = [one for one in before if np.isfinite(one.ready).any()]
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


def _is_same(run: Starts, now: Starts) -> bool:
    return bool(set(run.machines) & set(now.machines)) and abs(run.start.min() - now.start.min()) < RUN_S


def _names(rows: pa.Table, looked: Mapping[str, list[tuple[int, str]]]) -> list[str]:
    """[row]: its job, as its start says, else as its machine's was called first after it; empty: not known."""
    columns = ["machine", "gpu", "pid", "start_time_seconds", "job_name"]
    listed = rows.select([name for name in columns if name in rows.column_names]).to_pylist()
    said = {_process(row): row["job_name"] for row in listed if row.get("job_name")}
    return [
        said.get(_process(row)) or _name_at(looked.get(row["machine"], []), row.get("start_time_seconds"))
        for row in listed
    ]


def _process(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["machine"], row.get("gpu"), row.get("pid")


def _name_at(looked: list[tuple[int, str]], start: float | None) -> str:
    """The first name from a start (Unix s) on."""
    return next((name for at, name in looked if start is not None and at >= start * SECOND), "")


def _looked(store: Store, first: int, end: int) -> dict[str, list[tuple[int, str]]]:
    """By machine, times (Unix ns) and names of its jobs, in order of time, from looks at `task` and `job`."""
    found: dict[str, list[tuple[int, str]]] = {}
    for table, column in (("job", "job_name"), ("task", "task")):
        if table in store.tables():
            for row in sample_starts(store, first, end, table=table).to_pylist():
                found.setdefault(row["machine"], []).append((row["time"], str(row.get(column) or "")))
    return {machine: sorted(one for one in names if one[1]) for machine, names in found.items()}
