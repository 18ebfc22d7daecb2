"""What NCCL's rows say of a task while its devices are compared: late ranks, lost pace, a standstill."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.methods.peers.cusum import LOW, Cells
from detector.methods.peers.state import Panel

_BLOCKED = "host_blocked_seconds_total"


_PACE = "operations_total"


_STANDS = 0.1  # of the usual pace


COMES_LATE = ("nccl.active_ratio", f"nccl.{_BLOCKED}")
"""Low on whoever comes late to a collective: the others wait for it, it waits for nobody."""


def reason(panel: Panel, cell: tuple[int, int, int]) -> str:
    """Why a rank comes late to its communicators, which shows as operations that are short at work there.

    A slow GPU is waited for by its own host before the operation begins, so the host waits less behind it. A late
    host waits as long as its peers, as far as entries tell: its own lateness is taken for waiting.
    """
    _, _, entity = cell
    metrics = panel.window.metrics
    if not all(metric in metrics for metric in ("active_ratio", _BLOCKED)):
        return ""
    active, blocked = (panel.strength[metrics.index(metric), entity] for metric in ("active_ratio", _BLOCKED))
    if not active < 0 or np.isnan(blocked):
        return ""
    return ". Straggler: its GPU computes longer" if blocked < active / 3 else ". Straggler: its host comes late"


def look_at_pace(panel: Panel, center: NDArray[Any], now: int) -> None:
    """Note which tasks have lost pace, as far as the peers' operations tell; `center` is [metric, group]."""
    if _PACE in panel.window.metrics:
        panel.slowing.look(_pace(panel, center), now)


def slows(panel: Panel, cells: Cells, now: int, slack: int) -> NDArray[np.bool_]:
    """[cell]: whether its task may have lost pace by it: both began within `slack` ns, and nobody else comes late.

    What a rank reads that slows nobody is no fault yet, be it odd: congestion and bursts pass.
    """
    if _PACE not in panel.window.metrics:
        return np.ones(len(cells.entity), bool)
    since = np.where(panel.streaks.evidence[cells.at] > 0, panel.streaks.since[cells.at], now)
    late = is_prompt(panel)[cells.metric] & (cells.side == LOW) & (cells.strength >= 1)
    elsewhere = np.zeros(len(late), bool)
    for entity in cells.entity[late]:
        elsewhere |= (panel.team[cells.entity] == panel.team[entity]) & (
            panel.machine[cells.entity] != panel.machine[entity]
        )
    return panel.slowing.began_with(since, panel.group[cells.entity], slack) & ~elsewhere


def is_prompt(panel: Panel) -> NDArray[np.bool_]:
    """[metric]: whether a low reading is that of whoever comes late."""
    return np.array([f"{panel.window.table}.{name}" in COMES_LATE for name in panel.window.metrics], bool)


def standing_tasks(panel: Panel, center: NDArray[Any]) -> list[str]:
    """The tasks in which hardly an operation is called: what is read of them now is not how they run."""
    if panel.window.table != "nccl" or _PACE not in panel.window.metrics:
        return []
    below = _pace(panel, center) < _STANDS
    move = {task for (task, _), stands in zip(panel.titles, below.tolist(), strict=False) if not stands}
    return [panel.tasks[task] for task in {task for task, _ in panel.titles} - move]


def _pace(panel: Panel, center: NDArray[Any]) -> NDArray[np.float64]:
    """[group]: its operations as a share of what is usual."""
    row = panel.window.metrics.index(_PACE)
    level = panel.groups.middle(panel.norm.level[row : row + 1, : len(panel.group)])[0]
    share: NDArray[np.float64] = center[row] / np.where(level > 0, level, np.nan)
    return share
