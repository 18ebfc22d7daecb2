"""Exponentially weighted mean and variance of many series at once (West 1979)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from detector.stats.arrays import Floats
from detector.stats.columns import Columns, column


@dataclass(slots=True)
class Ewma(Columns):
    """Arrays are [series], or [row, series]; what has no samples has mean 0, variance 0 and count 0.

    Each method takes the index of the cells that it is about, as numpy reads it; no cell may occur twice in one.
    """

    mean: Floats = column()
    variance: Floats = column()
    count: Floats = column()
    """Samples since the last reset."""

    def update(self, index: Any, values: Floats, weight: Floats) -> None:
        """Add one sample, none of them NaN, to each of these cells; `weight` is its share in the mean, 0 to 1."""
        difference = values - self.mean[index]
        self.mean[index] += weight * difference
        self.variance[index] = (1 - weight) * (self.variance[index] + weight * difference * difference)
        self.count[index] += 1

    def reset(self, index: Any) -> None:
        """Forget all samples of these cells."""
        for array in (self.mean, self.variance, self.count):
            array[index] = 0.0

    def warmup_weight(self, index: Any, memory: float = np.inf) -> Floats:
        """The weight that gives the mean of all samples so far, and from `memory` samples on an EWMA over these."""
        weight: Floats = 1 / np.minimum(self.count[index] + 1, memory)
        return weight


def ewma_rows(rows: int) -> Ewma:
    """An `Ewma` with arrays [row, series], and no series yet."""
    return Ewma(*(np.zeros((rows, 0)) for _ in range(3)))
