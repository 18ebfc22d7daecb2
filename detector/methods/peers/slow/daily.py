"""Daily: what each reading did at this hour of day on the days before."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.stats.arrays import Ints, Singles, fitted
from store.schema.time import SECOND

DAY_NS = 86_400 * SECOND
_BINS, _WAITS = 48, 3
"""Half hours of a day, and those that are held back: what begins in one and lasts into the next is not usual yet."""
_FADES = 0.5
"""What is left of a change after a day without it."""


@dataclass(slots=True)
class Daily:
    """The largest changes by half hour; arrays are [.., up and down, metric, entity]."""

    usual: Singles = field(default_factory=lambda: np.zeros((_BINS, 2, 0, 0), np.float32))
    """[half hour of the day, ..]: of the days before."""
    latest: Singles = field(default_factory=lambda: np.zeros((_WAITS, 2, 0, 0), np.float32))
    """The same of the last half hours, the present one last."""
    half_hour: int = -1
    """The present one, since 1970."""

    def turn(self, now: int, shape: tuple[int, ...]) -> None:
        """Go on to a time (Unix ns), and make room for [metric, entity]."""
        if self.usual.shape[2:] != shape:
            self.usual, self.latest = fitted(self.usual, (_BINS, 2, *shape)), fitted(self.latest, (_WAITS, 2, *shape))
        here = now * _BINS // DAY_NS
        first = here if self.half_hour < 0 else max(self.half_hour, here - _BINS)
        for over in range(first, here):
            place = (over - _WAITS + 1) % _BINS
            self.usual[place] = np.maximum(self.latest[0], _FADES * self.usual[place])
            self.latest = np.concatenate([self.latest[1:], np.zeros_like(self.latest[:1])])
        self.half_hour = here

    def without(self, change: Singles) -> Singles:
        """Changes [metric, entity] less those of the same half hour, the one before and the one after."""
        up, down = self.usual[[(self.half_hour + step) % _BINS for step in (-1, 0, 1)]].max(0)
        rest: Singles = np.maximum(change - up, 0) - np.maximum(-change - down, 0)
        return rest

    def note(self, change: Singles) -> None:
        """Remember changes [metric, entity]."""
        sides = np.stack([np.maximum(change, 0), np.maximum(-change, 0)])
        self.latest[-1] = np.maximum(self.latest[-1], sides)

    def select(self, left: Ints) -> None:
        """Forget the entities that are not left."""
        some = left[left < self.usual.shape[-1]]
        self.usual, self.latest = self.usual[..., some], self.latest[..., some]
