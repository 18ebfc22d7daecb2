"""CUDA calls of each training process, as the probes on libcudart count them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from agent.config import CUDA_CALLS
from agent.context import Context
from agent.probes.attachments import Attachments
from agent.probes.groups import CUDA
from agent.probes.sampled_counts import SampledCounts
from agent.process.procfs import Process
from bpf.maps import Map
from store.schema.sample import Sample, Value

_GROUP_OF = {
    "launches_total": ("launches", "launches"),
    "graph_launches_total": ("graph_launches", "graphs"),
    "copy_bytes_total": ("copy_bytes", "copies"),
    "allocated_bytes": ("allocated_bytes", "allocations"),
}
"""Column: the field of the kernel's entry, and the group that must be attached for it to count."""
_OF_GROUP = (
    ("synchronize_calls_total", "synchronize"),
    ("synchronize_seconds_total", "synchronize"),
    *((column, group) for column, (_, group) in _GROUP_OF.items()),
)
"""Columns and the group of probes that they need."""
_NAMED = 2
"""Columns that say of which GPU and process the row is."""


class Cuda:
    """One row a GPU: the processes of one GPU are added up."""

    def __init__(self, context: Context, processes: Map, attachments: Attachments) -> None:
        self._training, self._attachments = context.training, attachments
        self._groups = {group for group in CUDA_CALLS if group in context.config.cuda_calls}
        self._governor = context.governor
        self._processes = processes
        self._synchronized: dict[Process, int] = {}  # ns, as last reported
        self._sampled = SampledCounts()

    def read(self, now: int) -> list[Sample]:
        """A row for each GPU with living processes."""
        entries = self._processes.rows()
        entries = entries[np.flatnonzero(entries["tgid"])]
        clock = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        living = self._training.living(now)
        there = {trainer.process for trainer in living.values()}
        self._synchronized = {process: ns for process, ns in self._synchronized.items() if process in there}
        self._sampled.forget(there)
        carrying = {name: self._attachments.carrying(group) for group, name in CUDA.items()}
        rows: dict[str, dict[str, Value]] = {}
        partial: dict[str, set[str]] = {}
        for entry in entries:
            pid = int(entry["tgid"])
            trainer = living.get(pid)
            if trainer is None:
                continue
            row = rows.setdefault(trainer.gpu, {"gpu": trainer.gpu, "pid": pid})
            values = self._values(trainer.process, entry, clock)
            if sampled := self._estimate(trainer.process, values, clock):
                row["sampled_ratio"] = min(sampled, float(row.get("sampled_ratio") or 1.0))
            unseen = {column for column, group in _OF_GROUP if trainer.process not in carrying[group]}
            partial.setdefault(trainer.gpu, set()).update(self._partial(trainer.process), unseen)
            if pid in self._training.uncounted:  # the next probed call may be long after the end of the wait
                del values["synchronize_seconds_total"]
            for column, value in values.items():
                row[column] = row.get(column, 0) + value  # type: ignore[operator]
        # A sum that lost one of its parts would look like a counter that was reset.
        whole = {gpu: {column: row[column] for column in row.keys() - partial[gpu]} for gpu, row in rows.items()}
        return [Sample("cuda", row) for row in whole.values() if len(row) > _NAMED]

    def close(self) -> None:
        """The maps are the loader's."""

    def _partial(self, process: Process) -> list[str]:
        """The columns with gaps, because probes of this process were suspended."""
        if self._governor is None:
            return []
        sampled = self._governor.windows(process)
        groups = {CUDA[group] for group in self._governor.partial(process) if group not in sampled}
        return [column for column, group in _OF_GROUP if group in groups]

    def _estimate(self, process: Process, values: dict[str, float], clock: int) -> float:
        """Add to the counters what was not counted; the share of the time that was, 0 where all of it was."""
        if self._governor is None:
            return 0.0
        windows = {CUDA[group]: window for group, window in self._governor.windows(process).items()}
        for column, group in _OF_GROUP:
            if column in values:
                on = group not in windows or windows[group].on
                values[column] = self._sampled.value(process, column, values[column], clock / 1e9, on)
        return min((window.ratio for window in windows.values()), default=0.0)

    def _values(self, process: Process, entry: Any, clock: int) -> dict[str, float]:
        values: dict[str, float] = {
            "synchronize_calls_total": int(entry["synchronize_calls"]),
            "synchronize_seconds_total": self._waited(process, entry, clock) / 1e9,
        }
        for column, (field, group) in _GROUP_OF.items():
            if group in self._groups:
                values[column] = int(entry[field])
        return values

    def _waited(self, process: Process, entry: Any, clock: int) -> int:
        """Ns of waits that are over and of the one under way. Of several threads the kernel knows when one began.

        The wait of another one is not seen until it is over: the total stays the same then, and does not fall.
        """
        since = int(entry["synchronize_since"])
        waited = int(entry["synchronize_ns"]) + (max(clock - since, 0) if since else 0)
        self._synchronized[process] = max(waited, self._synchronized.get(process, 0))
        return self._synchronized[process]


def open_source(context: Context) -> Cuda:
    """The source, ready to read. Raises SourceUnavailableError where probes cannot be had."""
    kernel, attachments = context.probes()
    return Cuda(context, kernel.maps["processes"], attachments)
