"""The communicators of running jobs: what they are for, where their ranks are, and how much they send."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from detector.stats.arrays import Array, Ints
from detector.timeseries.rows import Rows
from detector.topology.parallelism import find_tasks
from store.schema.time import SECOND

_OF_TASKS = ("comm", "rank", "ranks", "pid", "operation", "operations_total", "iteration_seconds")
COLUMNS = (*_OF_TASKS, "bytes_total", "send_pending_ratio")
"""Columns of the table `nccl` that are read."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator of a task."""

    name: str
    task: str
    """The largest communicator of its task."""
    kind: str
    """world, tensor, data, pipeline or expert."""
    members: tuple[tuple[str, str], ...]
    """Machine and GPU of each rank that was read."""
    ranks: int
    bytes_per_second: float
    """Payload of all its operations that one rank enqueues; NaN: not known."""
    sending: float
    """Share of time with data on the way in the network, mean over ranks; NaN: not known."""

    @property
    def machines(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted({machine for machine, _ in self.members}))


def find_communicators(rows: Rows) -> tuple[Communicator, ...]:
    """The communicators of the tasks in rows of `nccl`, a minute or so of them."""
    rows, out = _with_processes(rows), []
    codes, names = rows.texts.get("comm", (np.zeros(len(rows.time), np.int64), ("",)))
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    number = {name: at for at, name in enumerate(names)}
    for task in find_tasks(rows):
        for group in task.groups:
            for name in group.communicators:
                at = number[name]
                places = order[bounds[at] : bounds[at + 1]]
                idents = {rows.idents[one][:2] for one in np.unique(rows.ident[places])}
                members = tuple(sorted((ident[0], ident[1] if len(ident) > 1 else "") for ident in idents))
                sending = _mean(rows.number("send_pending_ratio")[places])
                rate = _rate(rows, places)
                out.append(Communicator(name, task.communicator, group.kind, members, group.size, rate, sending))
    return tuple(out)


def _with_processes(rows: Rows) -> Rows:
    """The rows; in recordings without process numbers each GPU stands for one process."""
    if "pid" in rows.metrics:
        return rows
    numbers = {ident: at for at, ident in enumerate(dict.fromkeys(ident[:2] for ident in rows.idents))}
    process = np.array([numbers[ident[:2]] for ident in rows.idents], np.float64)[rows.ident]
    return replace(rows, metrics=(*rows.metrics, "pid"), values=np.column_stack([rows.values, process]))


def _rate(rows: Rows, places: Ints) -> float:
    """Payload per second of one rank, the median over ranks."""
    total, time, ident = rows.number("bytes_total")[places], rows.time[places], rows.ident[places]
    rates = []
    for one in np.unique(ident):
        mine = np.flatnonzero((ident == one) & ~np.isnan(total))
        if len(mine) > 1 and time[mine[-1]] > time[mine[0]]:
            rates.append(float(total[mine[-1]] - total[mine[0]]) / float(time[mine[-1]] - time[mine[0]]) * SECOND)
    return float(np.median(rates)) if rates else float("nan")


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
