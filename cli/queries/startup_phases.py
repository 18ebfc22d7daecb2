"""How the training processes of each machine came up, as the table `startup` has it: phases against their median."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from store.schema.contract import Store, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

PHASES = {
    "late": "started after the first",
    "load": "loaded its libraries",
    "read": "read its checkpoint",
    "prepare": "prepared otherwise",
    "connect": "waited for its first communicator",
    "work": "went on to its first operation",
}
OWN = 4
"""So many phases are a machine's own; the others it spends waiting for its peers."""
RUN_S = 600.0
"""Processes that start further apart than this belong to different runs."""
_MARKS = (
    "start_time_seconds",
    "cuda_loaded_seconds",
    "nccl_loaded_seconds",
    "checkpoint_read_seconds",
    "checkpoint_read_bytes",
    "communicator_begun_seconds",
    "communicator_made_seconds",
    "first_operation_seconds",
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Starts:
    """One run: its machines, the slowest first, each with the process that was ready last. Seconds; NaN: not known."""

    machines: NDArray[Any]
    gpus: NDArray[Any]
    start: Floats
    """Unix time."""
    phases: Floats
    """[machine, phase]"""
    read_bytes: Floats
    ready: Floats
    """From the run's first start until the process asked for its first communicator."""
    earlier: int = 0
    """Machines whose processes started in an earlier run."""

    def median(self) -> Floats:
        """Of each phase, over the machines of which it is known; NaN where of none."""
        known = np.isfinite(self.phases).any(axis=0)
        found = np.full(len(PHASES), np.nan)
        found[known] = np.nanmedian(self.phases[:, known], axis=0)
        return found

    def worst(self) -> tuple[NDArray[np.intp], Floats]:
        """Of each machine the own phase that is furthest above its median, and by how much (seconds)."""
        above = np.nan_to_num(self.phases[:, :OWN] - self.median()[:OWN], nan=-np.inf)
        worst = above.argmax(axis=1)
        return worst, above[np.arange(len(worst)), worst]


def read_starts(store: Store, first: int, end: int) -> Starts:
    """The latest run among the rows of (first, end] (Unix ns). Raises StoreError where there is none."""
    rows = store.read("startup", first, end)
    machines, gpus, marks = _youngest(rows)
    if not len(machines):
        raise StoreError(
            "nothing is known of any start in that time: the agent's source startup sees processes that start after it"
        )
    begins = np.sort(marks["start_time_seconds"])
    gaps = np.flatnonzero(np.diff(begins) > RUN_S)
    run = marks["start_time_seconds"] >= (begins[gaps[-1] + 1] if len(gaps) else begins[0])
    found = _compare(machines[run], gpus[run], {name: values[run] for name, values in marks.items()})
    if not np.isfinite(found.phases[:, 1:]).any():
        raise StoreError(
            f"the training processes of {len(found.machines)} machines are older than the agents there, "
            "which see phases of the next start"
        )
    return replace(found, earlier=len(set(machines) - set(machines[run])))


def _youngest(rows: pa.Table) -> tuple[NDArray[Any], NDArray[Any], dict[str, Floats]]:
    """Of each GPU the process that started last: machine, GPU, and its marks."""
    there = [name for name in _MARKS if name in rows.column_names]
    wanted = [(name, "last") for name in there]
    keys = [key for key in ("machine", "gpu", "pid") if key in rows.column_names]
    each = rows.group_by(keys, use_threads=False).aggregate(wanted)
    marks = {name: np.full(each.num_rows, np.nan) for name in _MARKS}
    for name in there:
        marks[name] = np.array(each.column(f"{name}_last").to_numpy(), np.float64)
    whole = np.isfinite(marks["start_time_seconds"])
    machines, gpus = (np.array(each.column(key).to_pylist(), object)[whole] for key in ("machine", "gpu"))
    marks = {name: values[whole] for name, values in marks.items()}
    last = _last_of_each(marks["start_time_seconds"], machines, gpus)
    return machines[last], gpus[last], {name: values[last] for name, values in marks.items()}


def _last_of_each(value: Floats, *keys: NDArray[Any]) -> NDArray[np.intp]:
    """The places of the largest value for each combination of keys."""
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
    return Starts(machines[order], gpus[order], start[order], phases[order], read_bytes, ready[order])
