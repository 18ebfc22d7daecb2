"""Denoising: a short trimmed mean over time, which drops a lone spike and averages an iteration's phases."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.config import Config

Array = NDArray[np.float32]


def depth_of(step_s: float, config: Config) -> int:
    """How many steps are averaged: `smooth_s` worth, but never so few that a spike cannot be dropped."""
    most = max(config.min_smoothing_samples, math.ceil(config.smoothing_seconds))
    return int(np.clip(math.ceil(config.smoothing_seconds / max(step_s, 1e-3)), config.min_smoothing_samples, most))


@dataclass(slots=True)
class Embedding:
    """The last few snapshots, a ring [step, metric, entity] of float32 with NaN where unknown."""

    ring: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    place: int = 0

    def push(self, snapshot: Array, depth: int) -> Array:
        """Take in [metric, entity], give it back denoised; NaN where less than a third of the steps is known."""
        if self.ring.shape != (depth, *snapshot.shape):
            self._resize(depth, snapshot.shape)
        self.ring[self.place % depth] = snapshot
        self.place += 1
        return _trimmed_mean(self.ring, max(1, depth // 3))

    def forget(self, entities: NDArray[np.int64]) -> None:
        """Let go of what was seen of some entities."""
        self.ring[:, :, entities] = np.nan

    def _resize(self, depth: int, shape: tuple[int, ...]) -> None:
        old, held = self.ring, self.ring.shape[0]
        self.ring = np.full((depth, *shape), np.nan, np.float32)
        keep = min(depth, held, self.place)
        for back in range(1, keep + 1):
            self.ring[-back, : old.shape[1], : old.shape[2]] = old[(self.place - back) % held]
        self.place = depth * (self.place > 0)


def _trimmed_mean(ring: Array, least: int) -> Array:
    """Mean over the first axis without its largest and smallest value, from three known values on."""
    depth = len(ring)
    mean: Array = ring.sum(0)
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


def _with_gaps(ring: Array, least: int) -> Array:
    """The same where some steps are unknown; NaN where fewer than `least` are known."""
    count = (~np.isnan(ring)).sum(0, dtype=np.float32)
    total = np.nansum(ring, 0)
    ends = np.fmax.reduce(ring, 0) + np.fmin.reduce(ring, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Array = np.where(count >= 3, (total - ends) / (count - 2), total / count)
    mean[count < least] = np.nan
    return mean
