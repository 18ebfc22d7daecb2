"""What NCCL's rows say of a task while its devices are compared: late ranks, lost throughput, a hang."""

from __future__ import annotations

import numpy as np

from detector.methods.peers.state import Panel
from detector.stats.arrays import Array, Bools, Floats

LATENESS_METRICS = ("nccl.active_ratio", "nccl.host_blocked_seconds_total")
"""Low on a rank that comes late to a collective: the others wait for it, it waits for none."""
_OPERATIONS = "operations_total"
_HANGS = 0.1
"""Share of the usual throughput below which a task makes no progress."""


def throughput(panel: Panel, center: Array) -> Floats | None:
    """[group]: operations as a share of the usual rate; None where the table does not count any."""
    if _OPERATIONS not in panel.window.metrics:
        return None
    row = panel.window.metrics.index(_OPERATIONS)
    level = panel.groups.middle(panel.baseline.level[row : row + 1, : len(panel.group)])[0]
    share: Floats = center[row] / np.where(level > 0, level, np.nan)
    return share


def hung_tasks(panel: Panel, share: Floats | None) -> frozenset[str]:
    """The tasks in which hardly an operation is called: what is read of them now is not how they run."""
    if share is None:
        return frozenset()
    below = share < _HANGS
    moves = {task for (task, _), hangs in zip(panel.group_labels, below.tolist(), strict=False) if not hangs}
    return frozenset(panel.tasks[task] for task in {task for task, _ in panel.group_labels} - moves)


def is_lateness_metric(panel: Panel) -> Bools:
    """[metric]: whether a low reading is that of a rank that comes late."""
    return np.array([f"{panel.window.table}.{name}" in LATENESS_METRICS for name in panel.window.metrics], bool)


def straggler_explanation(panel: Panel, entity: int) -> str:
    """Why a rank comes late to its communicators, which shows as operations that are short at work there.

    The host of a slow GPU waits for it before the operation begins, so it waits less in the operation. A late host
    waits as long as its peers, as far as entries show: its own lateness is taken for waiting.
    """
    metrics, names = panel.window.metrics, [name.partition(".")[2] for name in LATENESS_METRICS]
    if not all(name in metrics for name in names):
        return ""
    active, blocked = (panel.deviation[metrics.index(name), entity] for name in names)
    if not active < 0 or np.isnan(blocked):
        return ""
    return ". Straggler: its GPU computes longer" if blocked < active / 3 else ". Straggler: its host comes late"
