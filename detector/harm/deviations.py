"""Deviations: which readings stood apart from their peers' in the last minutes, and how far; sparse."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Ints

LEAST = 0.5
"""In multiples of the least difference that counts: smaller ones are taken for none."""


@dataclass(slots=True)
class Deviations:
    """Of one table: one entry for each reading that deviated, in each block of time."""

    time: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    metric: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    entity: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    strength: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    def note(self, now: int, strength: NDArray[np.float32], span: int) -> None:
        """Take in signed strengths [metric, entity] at `now`; what is older than `span` (ns) is dropped."""
        kept = self.time > now - span
        metric, entity = np.nonzero(np.abs(strength) >= LEAST)
        self.time = np.append(self.time[kept], np.full(len(metric), now))
        self.metric, self.entity = np.append(self.metric[kept], metric), np.append(self.entity[kept], entity)
        self.strength = np.append(self.strength[kept], strength[metric, entity])

    def of(self, times: Ints, metric: int, entities: Ints) -> NDArray[np.float64]:
        """[time]: how far the farthest of some entities was by a metric, either way."""
        mine = (self.metric == metric) & np.isin(self.entity, entities)
        out = np.zeros(len(times))
        at = np.searchsorted(times, self.time[mine])
        known = (at < len(times)) & (times[np.minimum(at, len(times) - 1)] == self.time[mine])
        np.maximum.at(out, at[known], np.abs(self.strength[mine][known]))
        return out

    def keep(self, left: Ints) -> None:
        """Forget the entities that are not left, and number the others anew."""
        there = np.isin(self.entity, left)
        self.time, self.metric, self.strength = self.time[there], self.metric[there], self.strength[there]
        self.entity = np.searchsorted(left, self.entity[there])
