"""Smoothing: a short trimmed mean over time, which drops a lone spike and averages an iteration's phases."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.stats.arrays import Ints, Singles


@dataclass(slots=True)
class TrimmedMeanFilter:
    """The last few snapshots, a ring [step, metric, entity] of float32 with NaN where unknown."""

    ring: Singles = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    place: int = 0

    def push(self, snapshot: Singles, depth: int) -> Singles:
        """Take in [metric, entity] and return it smoothed; NaN where fewer than half of the steps, or three, are known.

        Of two there is no trimmed mean, and their mean is of other phases of an iteration than that of the peers.
        """
        if self.ring.shape != (depth, *snapshot.shape):
            self._resize(depth, snapshot.shape)
        self.ring[self.place % depth] = snapshot
        self.place += 1
        return _trimmed_mean(self.ring, max((depth + 1) // 2, min(depth, 3, self.place)))

    def mean(self, rows: Ints) -> Singles:
        """[row, entity]: the mean of all that is known of some metrics, where a lone reading is no error."""
        ring = self.ring[:, rows]
        mean: Singles = ring.sum(0) / np.float32(len(ring))
        gaps = np.isnan(mean)
        if gaps.any():
            some = ring[:, gaps]
            with np.errstate(invalid="ignore", divide="ignore"):
                mean[gaps] = np.nansum(some, 0) / (~np.isnan(some)).sum(0, dtype=np.float32)
        return mean

    def _resize(self, depth: int, shape: tuple[int, ...]) -> None:
        old, length = self.ring, self.ring.shape[0]
        self.ring = np.full((depth, *shape), np.nan, np.float32)
        recent = min(depth, length, self.place)
        for back in range(1, recent + 1):
            self.ring[-back, : old.shape[1], : old.shape[2]] = old[(self.place - back) % length]
        self.place = depth * (self.place > 0)


def _trimmed_mean(ring: Singles, least: int) -> Singles:
    """Mean over the first axis without its largest and smallest value, from three known values on."""
    depth = len(ring)
    mean: Singles = ring.sum(0)
    highest, lowest = np.fmax.reduce(ring, 0), np.fmin.reduce(ring, 0)
    # Most cells know all their steps or none, and need no counting.
    gaps = np.isnan(mean) & ~np.isnan(highest)
    if depth >= 3:
        mean -= highest
        mean -= lowest
        depth -= 2
    mean /= depth
    if gaps.any():
        mean[gaps] = _with_gaps(ring[:, gaps], least)
    return mean


def _with_gaps(ring: Singles, least: int) -> Singles:
    """The same where some steps are unknown; NaN where fewer than `least` are known."""
    count = (~np.isnan(ring)).sum(0, dtype=np.float32)
    total = np.nansum(ring, 0)
    ends = np.fmax.reduce(ring, 0) + np.fmin.reduce(ring, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Singles = np.where(count >= 3, (total - ends) / (count - 2), total / count)
    mean[count < least] = np.nan
    return mean
