"""Slowing: since when each task has lost pace, so that only who deviates since then is taken for the cause of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Ints

LOST = 0.95
"""Of the usual pace, or of the lowest since it was lost: below it the task has slowed down, or slowed down again."""


@dataclass(slots=True)
class Slowing:
    """The memory of it; arrays are [group]."""

    since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """When the pace last fell, Unix ns; 0 while it is the usual one."""
    lowest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The share of the usual pace that was left then."""

    def look(self, share: NDArray[np.float64], now: int) -> None:
        """Take in what share of its usual pace each group has; NaN, where nothing is known, is no loss."""
        if len(self.since) != len(share):
            self.since, self.lowest = np.zeros(len(share), np.int64), np.ones(len(share))
        well = ~(share < LOST)
        self.since[well], self.lowest[well] = 0, 1.0
        falls = share < LOST * self.lowest
        self.since[falls], self.lowest[falls] = now, share[falls]

    def began_with(self, since: Ints, group: Ints, slack: int) -> NDArray[np.bool_]:
        """Whether its group has slowed down since then, within `slack` (ns): what slows others does it at once."""
        lost = self.since[group]
        with_it: NDArray[np.bool_] = (lost > 0) & (np.abs(since - lost) <= slack)
        return with_it
