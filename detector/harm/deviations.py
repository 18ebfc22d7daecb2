"""Deviations of the last minutes, sparse: which readings differed from their peers', when and how far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.stats.arrays import Floats, Ints, Singles

LEAST = 0.5
"""In multiples of the smallest significant one: smaller ones are taken for none."""


@dataclass(slots=True)
class Deviations:
    """Of one table: one entry for each reading that deviated, in each block of time."""

    time: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    metric: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    entity: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    deviation: Singles = field(default_factory=lambda: np.zeros(0, np.float32))

    def update(self, now: int, deviation: Singles, span: int) -> None:
        """Add the signed deviations [metric, entity] at `now`; what is older than `span` (ns) is dropped."""
        recent = self.time > now - span
        metric, entity = np.nonzero(np.abs(deviation) >= LEAST)
        self.time = np.append(self.time[recent], np.full(len(metric), now))
        self.metric, self.entity = np.append(self.metric[recent], metric), np.append(self.entity[recent], entity)
        self.deviation = np.append(self.deviation[recent], deviation[metric, entity])

    def of(self, times: Ints, metric: int, entities: Ints) -> Floats:
        """[time]: the largest deviation of some entities by a metric, either way."""
        mine = (self.metric == metric) & np.isin(self.entity, entities)
        out = np.zeros(len(times))
        at = np.searchsorted(times, self.time[mine])
        known = (at < len(times)) & (times[np.minimum(at, len(times) - 1)] == self.time[mine])
        np.maximum.at(out, at[known], np.abs(self.deviation[mine][known]))
        return out

    def began(self, time: int, metric: int, near: int, least: float) -> Ints:
        """The entities that began to deviate by a metric, by `least`, within `near` (ns) of a time (Unix ns)."""
        mine = (self.metric == metric) & (np.abs(self.deviation) >= least)
        apart = self.time[mine] - time
        here, before = np.abs(apart) <= near, (apart < -near) & (apart >= -4 * near)
        return np.setdiff1d(self.entity[mine][here], self.entity[mine][before])
