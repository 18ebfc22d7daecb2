"""What NCCL's rows say of a window: shares of time by rank, and how long iterations took before and during it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from detector.explain.rank_snapshot import Process, RankSnapshot
from detector.stats.arrays import Bools, Floats
from detector.timeseries.rows import Rows

COLUMNS = ("comm", "rank", "ranks", "pid", "active_ratio", "send_pending_ratio", "iteration_seconds")
"""Of table `nccl`."""
SHARES = {"NCCL operation in flight": "active_ratio", "NCCL data on the way in the network": "send_pending_ratio"}
"""Functions that are measured from outside of the process, and their columns."""


@dataclass(frozen=True, slots=True)
class NcclWindow:
    """Ranks by name, and what they did in the window."""

    names: Mapping[Process, str]
    """Machine, GPU and process number -> `rank 3 (m01 gpu:1)`."""
    shares: Mapping[str, Mapping[str, Floats]]
    """[function][rank]: one a reading, of the communicator that has most; NaN: not known."""
    iteration_before: float
    """Median time of an iteration before the window, s; NaN: not known."""
    iteration_during: float


def read_window(rows: Rows, begin: int, until: int) -> NcclWindow:
    """The window between two times (Unix ns), from rows of `nccl` that begin before it."""
    ranks = RankSnapshot(rows).ranks()
    names = {process: f"rank {rank} ({process[0]} gpu:{process[1]})" for process, rank in ranks.items()}
    inside = (rows.time > begin) & (rows.time <= until)
    shares = {function: _shares(rows, inside, names, column) for function, column in SHARES.items()}
    iteration = rows.number("iteration_seconds").astype(np.float64)
    before, during = (_median(iteration[at]) for at in (rows.time <= begin, inside))
    return NcclWindow(names, shares, before, during)


def _shares(rows: Rows, inside: Bools, names: Mapping[Process, str], column: str) -> dict[str, Floats]:
    """[rank]: at each time the largest share among the communicators of its GPU."""
    gpus = {process[:2]: name for process, name in names.items()}
    machine, gpu, values = rows.who(0), rows.who(1), rows.number(column).astype(np.float64)
    found = {}
    for (one, card), name in gpus.items():
        at = np.flatnonzero(inside & (machine == one) & (gpu == card))
        if len(at):
            _, first = np.unique(rows.time[at], return_index=True)  # rows are in order of time
            found[name] = np.fmax.reduceat(values[at], first)
    return found


def _median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
