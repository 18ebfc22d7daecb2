"""Shared cause: what many machines of a group do at once is the task's doing, and nobody is blamed for it."""

from __future__ import annotations

import numpy as np

from detector.config import Config
from detector.methods.peers.cusum import Cells
from detector.methods.peers.state import Panel


def one_or_nobody(cells: Cells, panel: Panel, config: Config) -> None:
    """When many machines deviate at once, only one that deviates twice as far as any other stays incriminated."""
    group, over = panel.group[cells.entity], cells.strength >= 1
    series = (cells.side * len(panel.strength) + cells.metric) * panel.groups.count + group
    crowded = np.bincount(series[over], minlength=0)
    for number in np.flatnonzero(crowded > 1):
        those = np.flatnonzero(series == number)
        most = max(1, int(config.common_cause_share * len(np.unique(panel.machine[panel.group == group[those[0]]]))))
        if crowded[number] <= most:
            continue
        machines, place = np.unique(panel.machine[cells.entity[those]], return_inverse=True)
        worst = np.zeros(max(2, len(machines)))
        np.maximum.at(worst, place, np.nan_to_num(cells.strength[those]))
        if (worst >= 1).sum() <= most:
            continue
        first, second = np.sort(worst)[[-1, -2]]
        alone = (place == worst.argmax()) & (first >= 2 * second)
        cells.strength[those] = np.where(alone, cells.strength[those], np.minimum(cells.strength[those], 0.5))
