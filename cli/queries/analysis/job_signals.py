"""What jobs say of themselves, from the table `job`: the last values of each, and how they went over some time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from store.schema.contract import StoreError

if TYPE_CHECKING:
    from store.schema.contract import ReadableStore

COLUMNS = ("step", "step_seconds", "loss", "gradient_norm", "nan_total", "mfu_ratio", "checkpoint_age_seconds")
CURVES = ("loss", "step_seconds")
POINTS = 24


@dataclass(frozen=True, slots=True)
class JobSignals:
    """One job as one machine reads it."""

    job: str
    machine: str
    time: int
    """Of its last row, Unix ns."""
    values: dict[str, float | None]
    """The last known value of each of COLUMNS."""
    curves: dict[str, NDArray[np.float64]]
    """CURVES -> [point]: means over equal parts of the time, NaN where unknown."""
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """The object that `jobs --json` prints of it."""
        curves = {
            name: [None if value != value else float(value) for value in curve] for name, curve in self.curves.items()
        }
        own = {"job": self.job, "machine": self.machine, "time": self.time, "error": self.error or None}
        return {**own, **self.values, "curves": curves}


def read_job_signals(store: ReadableStore, first: int, end: int) -> list[JobSignals]:
    """The jobs with rows in (first, end] (Unix ns), by name. Raises StoreError without any."""
    rows = store.read("job_log", first, end) if "job_log" in store.tables() else None
    if rows is None or not rows.num_rows:
        raise StoreError(
            'no job was read then: add "job_log" to agent.sources and a table [[agent.job_log]] '
            "(docs/analysis/job_logs.md); jobs of Slurm and Kubernetes are in: peerwatch tasks"
        )
    places: dict[tuple[str, str], list[int]] = {}
    for at, names in enumerate(zip(*(rows.column(name).to_pylist() for name in ("job", "machine")), strict=True)):
        places.setdefault((names[0] or "", names[1]), []).append(at)
    time = rows.column("time").to_numpy()
    values = {
        name: np.array(rows.column(name).cast("float64", safe=False).to_numpy(), np.float64)
        for name in COLUMNS
        if name in rows.column_names
    }
    errors = rows.column("error").to_pylist() if "error" in rows.column_names else [None] * len(time)
    place = np.minimum((time - first) * POINTS // max(1, end - first), POINTS - 1)
    found = []
    for (job, machine), listed in sorted(places.items()):
        mine = np.array(listed)
        last = {name: _last(values[name][mine]) if name in values else None for name in COLUMNS}
        curves = {name: _curve(values[name][mine], place[mine]) for name in CURVES if name in values}
        found.append(JobSignals(job, machine, int(time[mine[-1]]), last, curves, errors[mine[-1]] or ""))
    return found


def _last(values: NDArray[np.float64]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


def _curve(values: NDArray[np.float64], place: NDArray[np.int64]) -> NDArray[np.float64]:
    known = np.isfinite(values)
    total, count = (np.bincount(place[known], weights, POINTS) for weights in (values[known], None))
    curve = np.full(POINTS, np.nan)
    np.divide(total, count, out=curve, where=count > 0)
    return curve
