"""One-sided CUSUM (Page 1954) of many series at once, with hysteresis: raised at the threshold, released at zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.columns import Columns, column


@dataclass(slots=True)
class Cusum(Columns):
    """Arrays are [series]."""

    value: Floats = column()
    """The sum, in units of what is added; never negative."""
    onset: Ints = column(0, np.int64)
    """When the sum last rose from zero, Unix ns."""
    alarmed: Bools = column(0, np.bool_)

    def update(self, series: Ints, gain: Floats, now: int, threshold: float, limit: float) -> Ints:
        """Add a gain, none of them NaN, to each of these series; those that rose from zero at `now` (Unix ns).

        `limit` bounds the sum, so that an alarm that lasted for hours is released in bounded time.
        """
        before = self.value[series]
        after = np.clip(before + gain, 0.0, limit)
        rose = series[(before <= 0) & (gain > 0)]
        self.onset[rose] = now
        self.value[series] = after
        self.alarmed[series] = (after >= threshold) | (self.alarmed[series] & (after > 0))
        return rose
