"""Reads communication from our own recordings and stores: what each communicator had in flight, a window at a time.

The probes see no end of an operation. By Little's law the share of samples that found one in flight, times the seconds
of an iteration, is how long a communicator's operations take in an iteration. So a row of the table is a communicator
of one rank in one window.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from analysis.traces.members import Members
from analysis.traces.operations import Collector, Operations, kind_of
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

COLUMNS = ("comm", "rank", "ranks", "operation", "operations_total", "bytes_total", "active_ratio", "iteration_seconds")
WINDOW_S = 4.0


_MEANS, _ENDS = ("active_ratio", "iteration_seconds"), ("operations_total", "bytes_total")


def read(store: ReadableStore, after: int, until: int) -> Operations:
    """The table of what the store holds between two times (Unix ns). Raises StoreError."""
    return _table(_windows(store, after, until))


def read_jobs(store: ReadableStore, after: int, until: int) -> list[Operations]:
    """A table for each job: processes that a chain of communicators joins. Raises StoreError."""
    rows = _windows(store, after, until)
    if not rows:
        return []
    processes, process = np.unique([f"{row['machine']}\n{row['gpu']}" for row in rows], return_inverse=True)
    comms, comm = np.unique([row["comm_max"] for row in rows], return_inverse=True)
    size = len(processes) + len(comms)
    edges = coo_array((np.ones(len(rows)), (process, len(processes) + comm)), shape=(size, size))
    count, label = connected_components(edges, directed=False)
    jobs: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for row, at in zip(rows, label[process].tolist(), strict=True):
        jobs[at].append(row)
    return [_table(job) for job in jobs]


def _table(rows: list[dict[str, Any]]) -> Operations:
    table, members, iterations = Collector(), Members(), defaultdict(list)
    for row in rows:
        window, process = row["window"], (row["machine"], f"gpu:{row['gpu']}")
        member = members.add(process, row["comm_max"], int(row["rank_max"]), int(row["ranks_max"]))
        iteration, operations = row["iteration_seconds_mean"], row["operations_total_max"] - row["operations_total_min"]
        table.add(
            table.rank(member, row["machine"]),
            row["comm_max"],
            kind_of(row["operation_max"].partition(":")[0]),
            index=window,
            step=window,
            bytes=(row["bytes_total_max"] - row["bytes_total_min"]) / operations if operations > 0 else np.nan,
            seconds=row["active_ratio_mean"] * iteration,
        )
        iterations[window].append(iteration)
    length = max(iterations, default=-1) + 1
    return table.table(members.names(), [float(np.median(iterations.get(at, [np.nan]))) for at in range(length)])


def _windows(store: ReadableStore, after: int, until: int) -> list[dict[str, Any]]:
    """One row a communicator of one process and window, where all that is needed is known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = store.read("nccl", after, until, COLUMNS)
    if not rows.num_rows or not set(COLUMNS) <= set(rows.column_names):
        return []
    time = rows.column("time")
    window = pc.divide(pc.subtract(time, pc.min(time)), int(WINDOW_S * SECOND)).cast(pa.int64())
    over = [(name, "mean") for name in _MEANS] + [(name, end) for name in _ENDS for end in ("min", "max")]
    over += [(name, "max") for name in ("comm", "operation", "rank", "ranks")]
    found = rows.append_column("window", window).group_by(["window", "machine", "gpu", "slot"]).aggregate(over)
    listed: list[dict[str, Any]] = found.sort_by("window").to_pylist()
    return [row for row in listed if all(value is not None for value in row.values())]
