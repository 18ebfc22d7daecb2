"""The last samples of one task, filled and scaled as Minder prepares them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.stats.arrays import Floats


@dataclass(slots=True)
class Samples:
    """A ring of samples, oldest first, and the bounds that Min-Max normalisation needs."""

    machines: tuple[str, ...]
    metrics: tuple[str, ...]
    ring: Floats
    """[sample, metric, machine]"""
    least: Floats
    most: Floats
    """[metric, 1]: bounds seen so far."""
    steps: int = 0

    def add(self, values: Floats) -> None:
        """Take in values [metric, machine]; what is missing is the last before it, or the others' median."""
        if self.steps:
            values = np.where(np.isnan(values), self.ring[-1], values)
        known = ~np.isnan(values).all(1)
        fill = np.zeros(len(values))
        fill[known] = np.nanmedian(values[known], axis=1)
        values = np.where(np.isnan(values), fill[:, None], values)
        self.ring = np.concatenate([self.ring[1:], values[None]])
        self.least = np.minimum(self.least, values.min(1, keepdims=True))
        self.most = np.maximum(self.most, values.max(1, keepdims=True))
        self.steps += 1

    def windows(self) -> Floats:
        """[metric, machine, sample]: between 0 and 1, the bounds of this task so far."""
        scale = np.where(self.most > self.least, self.most - self.least, 1.0)
        return ((self.ring - self.least) / scale).transpose(1, 2, 0)


def empty(machines: tuple[str, ...], metrics: tuple[str, ...], window: int) -> Samples:
    """Room for `window` samples; nothing seen yet."""
    ends = np.full((len(metrics), 1), np.inf)
    return Samples(machines, metrics, np.zeros((window, len(metrics), len(machines))), ends, -ends)
