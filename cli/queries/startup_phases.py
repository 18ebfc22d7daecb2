"""Start-up phases of the training processes of each machine, from the table `startup`, against their median."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from store.schema.contract import Store, StoreError
from store.schema.time import LATEST, SECOND

if TYPE_CHECKING:
    import pyarrow as pa

PHASES = {
    "late": "started after the first machine",
    "load": "loaded its libraries",
    "read": "read its checkpoint",
    "prepare": "other preparation",
    "connect": "waited for its first communicator",
    "work": "ran until its first operation",
}
BEFORE = {
    "image": "image pull and sandbox",
    "container": "container start",
    "launch": "entry point, installation and launcher",
}
"""What came before the process, as far as the container's cgroup tells."""
OWN = 4
"""The first OWN phases depend on the machine itself; in the others it waits for its peers."""
RUN_S = 600.0
"""Processes that start more than this apart (seconds) belong to different runs."""
_LATEST_S = LATEST / SECOND / 2
"""A start that is said to be later (2116) is none: times around it would not fit into the store."""
_MARKS = (
    "start_time_seconds",
    "cuda_loaded_seconds",
    "nccl_loaded_seconds",
    "checkpoint_read_seconds",
    "checkpoint_read_bytes",
    "communicator_begun_seconds",
    "communicator_made_seconds",
    "first_operation_seconds",
    *(f"{name}_seconds" for name in BEFORE),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Starts:
    """One run: machines, the slowest first, each with its slowest process. Seconds; NaN where unknown."""

    machines: NDArray[Any]
    gpus: NDArray[Any]
    start: Floats
    """Unix time."""
    phases: Floats
    """[machine, phase]"""
    read_bytes: Floats
    ready: Floats
    """From the first start in the run until the process creates its first communicator."""
    before: Floats = field(default_factory=lambda: np.empty((0, len(BEFORE))))
    """[machine, phase of BEFORE]"""
    processes: int = 0
    """Of the run, on all machines."""
    earlier: int = 0
    """Machines with processes of an earlier run only."""

    def median(self) -> Floats:
        """[phase] over the machines where it is known; NaN where none."""
        return _medians(self.phases)

    def median_before(self) -> Floats:
        """[phase of BEFORE] over the machines where it is known; NaN where none."""
        return _medians(self.before)

    def worst(self) -> tuple[NDArray[np.intp], Floats]:
        """For each machine the own phase furthest above its median, and the excess in seconds."""
        above = np.nan_to_num(self.phases[:, :OWN] - self.median()[:OWN], nan=-np.inf)
        worst = above.argmax(axis=1)
        return worst, above[np.arange(len(worst)), worst]


def read_starts(store: Store, first: int, end: int) -> Starts:
    """The latest run in the rows of (first, end] (Unix ns). Raises StoreError without any."""
    rows = store.read("startup", first, end)
    machines, gpus, marks = _youngest(rows)
    if not len(machines):
        raise StoreError(
            "no start of a job in that time: start-up phases are recorded only for jobs that start after the agent"
        )
    begins = np.sort(marks["start_time_seconds"])
    gaps = np.flatnonzero(np.diff(begins) > RUN_S)
    run = marks["start_time_seconds"] >= (begins[gaps[-1] + 1] if len(gaps) else begins[0])
    found = _compare(machines[run], gpus[run], {name: values[run] for name, values in marks.items()})
    if not np.isfinite(found.phases[:, 1:]).any():
        raise StoreError(
            f"the jobs on {len(found.machines)} machine{'s' * (len(found.machines) != 1)} started before the agent: "
            "start-up phases are recorded only for jobs that start after it; restart the job to see them"
        )
    return replace(found, earlier=len(set(machines) - set(machines[run])))


def compare_runs(rows: pa.Table) -> list[Starts]:
    """Every run in these rows of `startup`, the oldest first, split where no process starts for RUN_S."""
    machines, gpus, marks = _starts(rows)
    order = np.argsort(marks["start_time_seconds"], kind="stable")
    cuts = np.flatnonzero(np.diff(marks["start_time_seconds"][order]) > RUN_S) + 1
    parts = np.split(order, cuts) if len(order) else []
    return [_compare(machines[at], gpus[at], {name: value[at] for name, value in marks.items()}) for at in parts]


def _medians(phases: Floats) -> Floats:
    known = np.isfinite(phases).any(axis=0)
    found = np.full(phases.shape[1], np.nan)
    found[known] = np.nanmedian(phases[:, known], axis=0)
    return found


def _youngest(rows: pa.Table) -> tuple[NDArray[Any], NDArray[Any], dict[str, Floats]]:
    """For each GPU the process that started last: machines, GPUs, and times by name."""
    machines, gpus, marks = _starts(rows)
    last = _last_of_each(marks["start_time_seconds"], machines, gpus)
    return machines[last], gpus[last], {name: values[last] for name, values in marks.items()}


def _starts(rows: pa.Table) -> tuple[NDArray[Any], NDArray[Any], dict[str, Floats]]:
    """For each process its machine, GPU, and times by name."""
    there = [name for name in _MARKS if name in rows.column_names]
    wanted = [(name, "last") for name in there]
    keys = [key for key in ("machine", "gpu", "pid") if key in rows.column_names]
    each = rows.group_by(keys, use_threads=False).aggregate(wanted)
    marks = {name: np.full(each.num_rows, np.nan) for name in _MARKS}
    for name in there:
        marks[name] = np.array(each.column(f"{name}_last").to_numpy(), np.float64)
    whole = (marks["start_time_seconds"] > 0) & (marks["start_time_seconds"] < _LATEST_S)
    machines, gpus = (np.array(each.column(key).to_pylist(), object)[whole] for key in ("machine", "gpu"))
    return machines, gpus, {name: values[whole] for name, values in marks.items()}


def _last_of_each(value: Floats, *keys: NDArray[Any]) -> NDArray[np.intp]:
    """The indices of the largest value for each combination of keys."""
    numbers = [np.unique(key.astype(str), return_inverse=True)[1] for key in keys]
    order = np.lexsort((value, *reversed(numbers)))
    ends = np.zeros(len(order), bool)
    ends[-1:] = True
    for number in numbers:
        ends[:-1] |= np.diff(number[order]) != 0
    return np.asarray(order[ends])


def _compare(machines: NDArray[Any], gpus: NDArray[Any], marks: dict[str, Floats]) -> Starts:
    start, nccl = marks["start_time_seconds"], marks["nccl_loaded_seconds"]
    late = start - start.min()
    load = np.where(np.isfinite(nccl), nccl, marks["cuda_loaded_seconds"])
    begun, made = marks["communicator_begun_seconds"], marks["communicator_made_seconds"]
    read = marks["checkpoint_read_seconds"]
    prepare = np.maximum(begun - load - np.nan_to_num(read), 0)
    phases = np.stack([late, load, read, prepare, made - begun, marks["first_operation_seconds"] - made], axis=1)
    ready = late + begun
    last = _last_of_each(np.nan_to_num(ready, nan=-1.0), machines)
    order = last[np.argsort(-np.nan_to_num(ready[last], nan=-1.0), kind="stable")]
    read_bytes = marks["checkpoint_read_bytes"][order]
    before = np.stack([marks[f"{name}_seconds"][order] for name in BEFORE], axis=1)
    own = phases[order], read_bytes, ready[order]
    return Starts(machines[order], gpus[order], start[order], *own, before, len(machines))
