"""Since when each task has lost throughput: only what deviates since then is taken for the cause of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.stats.arrays import Bools, Floats, Ints

LOST = 0.95
"""Share of the usual throughput, or of the lowest since it fell: below it the task has slowed down, or again."""


@dataclass(frozen=True, slots=True)
class ThroughputLoss:
    """Since when each peer group has lost throughput; arrays are [group]."""

    since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """When the throughput last fell, Unix ns; 0 while it is the usual one."""
    lowest: Floats = field(default_factory=lambda: np.zeros(0))
    """The share of the usual throughput that was left then."""

    def after(self, share: Floats, now: int) -> ThroughputLoss:
        """The same after a step at `now` with this share of the usual throughput; NaN (unknown) is no loss."""
        fits = len(self.since) == len(share)
        since, lowest = (self.since, self.lowest) if fits else (np.zeros(len(share), np.int64), np.ones(len(share)))
        well = ~(share < LOST)
        since, lowest = np.where(well, 0, since), np.where(well, 1.0, lowest)
        falls = share < LOST * lowest
        return ThroughputLoss(np.where(falls, now, since), np.where(falls, share, lowest))

    def began_with(self, since: Ints, group: Ints, tolerance: int) -> Bools:
        """Whether a group has slowed down at that time, within `tolerance` (ns): a cause slows others at once."""
        lost = self.since[group]
        together: Bools = (lost > 0) & (np.abs(since - lost) <= tolerance)
        return together
