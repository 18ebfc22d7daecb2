"""Frozen: readings that repeat themselves while the peers' readings move; they say nothing of now.

A sensor, an exporter or a driver that hangs gives its last values again and again. What is normal is learned: the share
of steps in which nothing moves on an entity. So many repetitions that chance gives them once in a thousand million
are a frozen entity. A single sensor that sticks is found in the same way, by the metric's own share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Bools, Ints, Singles, grown

_LEAST, _LEAST_OF_ONE = 8, 4
"""Repetitions, at least, of all readings of an entity, and of one while it moves on nearly all others."""
_CHANCE = float(np.log(1e-9))
_LIVELY = 0.5
"""Share of the entities on which a metric has to change from step to step, to tell whether one is frozen."""
_SOME, _MOVES = 0.1, 30.0
"""The least share of them on which it changes in a step at which they work, and the memory of it in such steps."""
_AT_WORK = 2
"""Shares of time that move on an entity that is at work, at least."""
_MEMORY = 300.0
_LONGEST = 1000


@dataclass(slots=True)
class Frozen:
    """The memory of it; arrays are [entity]."""

    last: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[metric, entity]: the values before."""
    repeats: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """How many steps on end nothing has changed."""
    changing: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """[metric]: the usual share of entities on which it changes."""
    moving: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """[metric]: the same, of the steps in which it changes on some: at rest nothing does ..."""
    moved: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """... and how many these are."""
    chance: float = 0.1
    """How often nothing changes on an entity."""
    looks: float = 0.0
    same: NDArray[np.int16] = field(default_factory=lambda: np.zeros((0, 0), np.int16))
    """[metric, entity]: how many steps on end one reading has repeated itself while those of the peers moved."""

    def mask(self, snapshot: Singles, counters: Bools, steady: Bools) -> Bools:
        """[entity]: which are frozen by the newest values [metric, entity]; these are made unknown in place.

        Of `counters` [metric] the values are rates: what grows moves, however steadily. A `steady` [metric] reading,
        such as a clock at its limit, may repeat itself on a machine that is well read.
        """
        metrics, count = snapshot.shape
        self.last = grown(self.last, (metrics, count), np.nan)
        self.repeats = grown(self.repeats, (count,), 0)
        self.changing = grown(self.changing, (metrics,), 0.0)
        before, repeats = self.last[:metrics, :count], self.repeats[:count]
        known = ~np.isnan(snapshot)
        both = known & ~np.isnan(before)
        changed = both & np.where(counters[:, None], snapshot != 0, snapshot != before)
        self._learn(changed.sum(1), both.sum(1))
        # Nothing at all is no reading that repeats itself: a counter at rest stays where it is.
        tells = (both & (snapshot != 0) & ~counters[:, None])[self.changing[:metrics] > _LIVELY]
        moves = changed[self.changing[:metrics] > _LIVELY].any(0)
        still = tells.any(0) & ~moves
        repeats += still
        repeats[moves] = 0
        self.last[:metrics, :count] = np.where(known, snapshot, before)
        frozen: Bools = repeats >= max(_LEAST, _CHANCE / np.log(self.chance))
        if tells.any():
            usual = still[~frozen & tells.any(0)]
            self.chance += (float(usual.mean() if len(usual) else 0.0) - self.chance) / max(self.looks, 10.0)
            self.chance = min(max(self.chance, 1e-3), 0.9)
        snapshot[:, frozen] = np.nan
        self._sticks(snapshot, both, changed, ~counters & ~steady)
        return frozen

    def _sticks(self, snapshot: Singles, both: Bools, changed: Bools, may: Bools) -> None:
        """Make single readings unknown that stick; at 0 and at 1 a reading stays where it is, and moves no more.

        One that is 0 sticks if other shares of time move on the same entity: it is at work.
        """
        metrics, count = snapshot.shape
        self.same = grown(self.same, (metrics, count), 0)
        self.moving, self.moved = (grown(array, (metrics,), 0.0) for array in (self.moving, self.moved))
        usual, share = self.moving[:metrics], changed.sum(1) / np.maximum(both.sum(1), 1)
        moves = (usual > _LIVELY) & (share > _LIVELY) & may
        works = ((snapshot > 0) & (snapshot < 1) & changed)[moves].sum(0) >= _AT_WORK
        for row in np.flatnonzero(may & (usual > _LIVELY)).tolist():
            value, same = snapshot[row], self.same[row, :count]
            if moves[row]:
                rests = (value == 0) & ~works
                same += np.where(rests, -np.minimum(same, 1), both[row] & ~changed[row]).astype(np.int16)
            same[changed[row] | (value == 1)] = 0
            np.minimum(same, _LONGEST, out=same)
            enough = max(_LEAST_OF_ONE, _CHANCE / np.log(np.clip(1 - usual[row], 1e-3, 0.9)))
            if same.max(initial=0) >= enough:  # and for as long as it repeats itself, whatever the peers do by then
                value[same >= enough] = np.nan
        self.moved[:metrics] += share > _SOME
        usual += np.where(share > _SOME, share - usual, 0.0) / np.clip(self.moved[:metrics], 1.0, _MOVES)

    def liveliest(self) -> int:
        """The metric that changes most."""
        return int(self.changing.argmax())

    def select(self, left: Ints) -> None:
        """Forget the entities that are not left."""
        some = left[left < len(self.repeats)]
        self.last, self.repeats = self.last[:, some], self.repeats[some]
        self.same = self.same[:, left[left < self.same.shape[1]]]

    def _learn(self, changed: Ints, both: Ints) -> None:
        self.looks = min(self.looks + 1, _MEMORY)
        share = changed / np.maximum(both, 1)
        self.changing[: len(share)] += np.where(both > 0, share - self.changing[: len(share)], 0.0) / self.looks
