"""Lag: entities with a reading that follows the rhythm of the peers too late, although its mean is theirs.

The reading that swings most is correlated with the peers' median of the last minutes, shifted to and fro. A sensor that
averages or buffers, a clock that is wrong, or a rank out of step has its best correlation at another shift than none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Ints, Singles
from detector.stats.grouped import Groups

_STEPS, _TURN = 180, 30
"""Steps remembered, and steps from one look to the next."""
_MOST = 30
"""The longest shift, in steps; it leaves half of what is remembered in common."""
_LEAST = 3
"""The least shift that counts: clocks and readings differ by a step or two."""
_ALIKE, _BETTER = 0.6, 0.15
"""The least correlation at that shift, and how much more than unshifted it has to be."""
_TIMES = 2
"""Looks on end at which it is so."""


@dataclass(slots=True)
class Lag:
    """The memory of it; arrays are [step, entity] or [entity]."""

    row: int = -1
    """The metric looked at; -1: none yet."""
    readings: Singles = field(default_factory=lambda: np.zeros((_STEPS, 0), np.float32))
    middles: Singles = field(default_factory=lambda: np.zeros((_STEPS, 0), np.float32))
    place: int = 0
    times: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """By so many steps each is late; 0 where it is not, or not for sure."""
    swing: NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, 0)))
    """[sum, sum of squares, count; metric] of the peers' readings, from which the metric is chosen."""

    def update(self, values: Singles, center: Singles, groups: Groups, wanted: Ints) -> None:
        """Take in readings [metric, entity] and the peers' [metric, group]; `wanted` metrics may be looked at."""
        self._choose(center, wanted)
        if self.row < 0:
            return
        count = values.shape[1]
        if self.readings.shape[1] != count or self.middles.shape[1] != groups.count + 1:
            self._begin(count, groups.count + 1)
        at = self.place % _STEPS
        self.readings[at], self.middles[at] = values[self.row], center[self.row]
        self.place += 1
        if self.place >= _STEPS and self.place % _TURN == 0:
            self._look(groups)

    def late(self) -> Ints:
        """Entities that are late for sure."""
        return np.flatnonzero(self.times >= _TIMES)

    def _begin(self, count: int, groups: int) -> None:
        self.readings, self.middles = np.full((_STEPS, count), np.nan, np.float32), np.full((_STEPS, groups), np.nan)
        self.times, self.steps, self.place = np.zeros(count, np.int64), np.zeros(count, np.int64), 0

    def _choose(self, center: Singles, wanted: Ints) -> None:
        """Settle on the metric that swings most beside its own size."""
        if self.row >= 0 or not len(wanted):
            return
        if self.swing.shape[1] != len(wanted):
            self.swing = np.zeros((3, len(wanted)))
        now = np.nan_to_num(center[wanted, 0])
        self.swing += np.stack([now, now**2, np.ones(len(wanted))])
        total, squares, looks = self.swing
        if looks[0] >= _STEPS:
            mean = total / looks
            share = np.sqrt(np.maximum(squares / looks - mean**2, 0)) / np.maximum(np.abs(mean), 1e-12)
            self.row = int(wanted[share.argmax()]) if share.max() > 0 else -1
            self.swing[:] = 0

    def _look(self, groups: Groups) -> None:
        order = np.arange(self.place, self.place + _STEPS) % _STEPS
        readings, middles = self.readings[order], np.nan_to_num(self.middles[order])
        known = ~np.isnan(readings)
        whole = known.mean(0) > 0.8
        readings = np.where(known, readings, np.nanmean(np.where(whole, readings, 0.0), axis=0))
        inner = _scaled(readings[_MOST : _STEPS - _MOST])
        shifts = np.arange(-_MOST, _MOST + 1)
        found = np.empty((len(shifts), readings.shape[1]), np.float32)
        for at, shift in enumerate(shifts.tolist()):
            theirs = _scaled(middles[_MOST - shift : _STEPS - _MOST - shift])
            found[at] = (inner * groups.each(theirs)).sum(0)
        best = found.argmax(0)
        highest, unshifted = found[best, np.arange(len(best))], found[_MOST]
        late = whole & (np.abs(shifts[best]) >= _LEAST) & (highest >= _ALIKE) & (highest > unshifted + _BETTER)
        # Who is late among many is not: then it is the median that is an average of several rhythms.
        late &= late.mean() < 0.2
        again = (self.times == 0) | (np.abs(shifts[best] - self.steps) <= _LEAST)
        self.times = np.where(late & again, self.times + 1, 0)
        self.steps = np.where(late, shifts[best], 0)


def _scaled(series: Singles) -> Singles:
    """Columns with mean 0 and squares that add up to 1; 0 where nothing moves."""
    rest = series - series.mean(0)
    size = np.sqrt((rest**2).sum(0))
    out: Singles = np.divide(rest, size, out=np.zeros_like(rest), where=size > 0)
    return out
