"""Warming: a GPU that gets hotter than its peers while it draws no more power than before, so its cooling fails.

It is found by means before it is so hot that it slows down: what its temperature and power were beside the peers' in
the half hour before, and what they are now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.stats.arrays import Bools, Ints, Singles, grown
from detector.stats.grouped import Groups, distinct
from detector.stats.robust import NORMAL
from store.schema.time import SECOND

HEAT, POWER = "temperature_celsius", "power_watts"
"""The readings that it takes."""
_BESIDE, _OWN, _POWER = range(3)
"""Rows: a temperature less the peers' median, by itself, and power as a share of the peers'."""
_USUAL_S, _LATEST_S = 1800.0, 15.0
"""Time constants of what is usual, and of what is read just now."""
_WARM_UP_S = 240.0
"""So long an entity has to be known."""
_LEAST_K, _OWN_K = 6.0, 5.0
"""By how much it is warmer than usual, beside its peers and by itself: 6 K at the same power are about a seventh of
what a GPU is above the air at its inlet."""
_SHARED_K, _ALIKE = 10.0, 0.5
"""The same where another machine warmed as much, half of it at least: they breathe the same air, and what is
recommended for that is 9 K wide (18 to 27 °C, ASHRAE TC 9.9, "Thermal Guidelines for Data Processing Environments")."""
_SPREADS = 6.0
"""Standard deviations of the same changes over the peers."""
_SUSPECT_K = 3.0
"""From here on what is read says little of what is usual."""
_SAME_POWER, _OTHER_WORK = 1.05, 0.3
"""Times its usual power beside the peers' at most; and by how much that share differs if it does other work."""
_LASTS_S = 45.0
"""A sensor that reads 11 K too much for 40 s is no fan that fails; that takes minutes."""
_MANY = 1 / 3
"""Of a group's machines: one rack of several, of which the cooling fails, is less."""


@dataclass(slots=True)
class Warming:
    """The memory of it."""

    usual: Singles = field(default_factory=lambda: np.zeros((3, 0), np.float32))
    """[row, entity]."""
    latest: Singles = field(default_factory=lambda: np.zeros((3, 0), np.float32))
    known_s: Singles = field(default_factory=lambda: np.zeros(0, np.float32))
    hot_s: Singles = field(default_factory=lambda: np.zeros(0, np.float32))
    """For how many seconds an entity is too warm."""
    at: int = 0
    """When it was looked at last, Unix ns."""

    def update(self, now: int, temperature: Singles, power: Singles, groups: Groups, machine: Ints) -> None:
        """Take in what entities, each of a machine, read at `now` (Unix ns), in °C and W."""
        seconds, count = min((now - self.at) / SECOND, _LATEST_S), len(temperature)
        self.at = now
        self.usual, self.latest = (grown(one, (3, count), 0) for one in (self.usual, self.latest))
        self.known_s, self.hot_s = (grown(one, (count,), 0) for one in (self.known_s, self.hot_s))
        middle = groups.each(groups.middle(np.stack([temperature, power])))
        with np.errstate(invalid="ignore", divide="ignore"):
            rows = np.stack([temperature - middle[0], temperature, power / middle[1]])
        self._follow(rows, seconds)
        self._judge(np.isfinite(rows).all(0), seconds, groups, machine)

    def found(self, groups: Groups) -> Ints:
        """Entities that are too warm for long enough, of those that have a group still."""
        count = min(len(self.hot_s), len(groups.of))
        return np.flatnonzero((self.hot_s[:count] >= _LASTS_S) & (groups.of[:count] >= 0))

    def since(self, entity: int) -> int:
        """Since when (Unix ns) an entity is too warm."""
        return self.at - int(self.hot_s[entity] * SECOND)

    def rise(self, entity: int) -> float:
        """By how many K an entity is warmer than usual beside its peers."""
        return float(self.latest[_BESIDE, entity] - self.usual[_BESIDE, entity])

    def before(self, entity: int) -> float:
        """What an entity usually reads, in °C."""
        return float(self.usual[_OWN, entity])

    def reset(self, entities: Ints) -> None:
        """Forget what is usual for some entities."""
        some = entities[entities < len(self.known_s)]
        self.known_s[some] = self.hot_s[some] = 0.0

    def select(self, left: Ints) -> None:
        """Forget the entities that are not left."""
        some = left[left < len(self.known_s)]
        for name in ("usual", "latest", "known_s", "hot_s"):
            setattr(self, name, getattr(self, name)[..., some])

    def _follow(self, rows: Singles, seconds: float) -> None:
        known, count = np.isfinite(rows).all(0), rows.shape[1]
        usual, latest, known_s = self.usual[:, :count], self.latest[:, :count], self.known_s[:count]
        new = known & (known_s == 0)
        usual[:, new] = latest[:, new] = rows[:, new]
        known_s[known] += seconds
        latest[:, known] += (1 - np.exp(-seconds / _LATEST_S)) * (rows - latest)[:, known]
        suspect = (np.abs(latest - usual)[_BESIDE] > _SUSPECT_K) & (known_s > _WARM_UP_S)
        rate = seconds / np.clip(known_s, max(seconds, 1e-3), _USUAL_S) * np.where(suspect, 0.05, 1.0)
        usual[:, known] += (rate * (rows - usual))[:, known]
        # What it read at other work says nothing of what is usual at this.
        known_s[np.abs(latest - usual)[_POWER] > _OTHER_WORK] = 0.0

    def _judge(self, known: Bools, seconds: float, groups: Groups, machine: Ints) -> None:
        count = len(known)
        rise = np.where(known, self.latest[:, :count] - self.usual[:, :count], np.nan)
        middle = groups.each(groups.middle(rise[:1]))
        spread = NORMAL * groups.each(groups.middle(np.abs(rise[:1] - middle)))[0]
        beside, hot_s = rise[_BESIDE], self.hot_s[:count]
        with np.errstate(invalid="ignore"):
            hot = (beside >= np.fmax(_LEAST_K, _SPREADS * spread)) & (rise[_OWN] >= _OWN_K)
        hot &= (self.latest[_BESIDE] > 0)[:count] & (self.known_s[:count] >= _WARM_UP_S)
        hot &= (self.latest <= _SAME_POWER * self.usual)[_POWER, :count]
        if hot.any():
            hot &= (beside >= _SHARED_K) | (_warmest_other(beside, groups, machine) < _ALIKE * beside)
        hot |= (hot_s >= _LASTS_S) & (beside >= _LEAST_K / 2)
        hot_s[hot] += seconds
        hot_s[~hot & known] = 0.0
        if hot_s.any():
            hot_s[_many_warm(beside, groups, machine)[groups.of]] = 0.0


def _warmest_other(rise: Singles, groups: Groups, machine: Ints) -> Singles:
    """[entity]: the largest rise, in K, on another machine of its group."""
    rises = np.nan_to_num(rise, nan=-np.inf)
    first, second = np.full((2, groups.count + 1), -np.inf, np.float32)
    np.maximum.at(first, groups.of, rises)
    at, holder = np.flatnonzero(rises == first[groups.of]), np.full(groups.count + 1, -1)
    holder[groups.of[at]] = machine[at]
    held = machine == holder[groups.of]
    np.maximum.at(second, groups.of, np.where(held, -np.inf, rises))
    return np.where(held, second[groups.of], first[groups.of])


def _many_warm(rise: Singles, groups: Groups, machine: Ints) -> Bools:
    """[group]: whether so many of its machines got warmer that it is the air: who stays warm is judged from then on."""
    warm = np.flatnonzero(rise >= _LEAST_K / 2)
    many = distinct(groups.of[warm], machine[warm], groups.count) > _MANY * distinct(groups.of, machine, groups.count)
    return np.append(many, False)
