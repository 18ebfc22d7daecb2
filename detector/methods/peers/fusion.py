"""Fusion: deviations of many metrics of one entity, each too weak to count, added up to one reading of their own.

Squared distances add up as the log-likelihoods of normal noise do. Metrics that move together in health say one thing:
along each direction in which they do, the sum is divided by how many of them it is, so that two readings of the same
count once, and none ever counts for more than it does alone. What the strongest metric says is left out, as it is
judged by itself. The sum is then judged like any other reading, against the peers and what is usual for the entity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.methods.peers.baseline import Distance, Norm, Part, compare, learn, rule
from detector.methods.peers.cusum import Cells, Pace, Streaks, add_up, enough_of, nothing
from detector.model.metrics import Bounds
from detector.stats.arrays import Ints, Singles
from detector.stats.grouped import Groups

_TINY = float(np.finfo(np.float32).tiny)
_TOGETHER = 1.25  # metrics that move by themselves give 1, and a little more by chance
_SOME = 256  # entities looked at each time to learn what moves together: others the next time
_BOUNDS = Bounds(np.ones(1), np.zeros(1), np.zeros(1, bool), np.ones(1, bool), np.zeros(1, bool))
"""The least sum that counts is what one metric says that deviates by the least that counts of it."""


@dataclass(slots=True)
class Fusion:
    """What is remembered of one table's sums; arrays are [1, entity] where they are not said to be otherwise."""

    together: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """[metric, metric]: mean products of the strengths in health."""
    looks: float = 0.0
    norm: Norm = field(default_factory=Norm)
    streaks: Streaks = field(default_factory=Streaks)
    cells: Cells = field(default_factory=nothing)
    weight: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """[cell], in multiples of what convicts."""
    group: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[entity]: with whom each was compared last."""
    parts: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[metric, entity]: the strengths that were added up last, none beyond the least that counts."""

    def look(self, strength: Singles, bounds: Bounds, groups: Groups, config: Config) -> Distance:
        """How far each entity's sum is from its peers', given signed strengths [metric, entity], NaN where unknown."""
        least, most = (side[:, None].astype(np.float32) for side in (-1.0 * bounds.low, 1.0 * bounds.high))
        self.parts = parts = np.clip(strength, least, most)
        unknown = np.isnan(parts)
        parts[unknown] = 0.0
        directions, shared = _shared(self._learned(parts, config))
        along, squares = directions @ parts, parts * parts
        # What the strongest says is judged by itself: the others have to tell the same without it.
        total = np.maximum(squares.sum(0) - shared @ (along * along) - squares.max(0), 0.0)[None]
        total[:, unknown.all(0)] = np.nan
        self.norm.fit(total.shape)
        self.streaks.fit(total.shape)
        self._reseat(groups.of)
        return compare(total, groups, self.norm)

    def study(self, distance: Distance, groups: Groups, turn: int, config: Config) -> None:
        """Look after the norm of the sums, which are made every `turn` steps."""
        suspect = np.zeros(distance.strength.shape, bool)
        suspect[0, self.suspected()] = True
        part = Part(slice(0, 1), turn)
        values = distance.residual + self.norm.offset[:, : distance.residual.shape[1]]
        learn(self.norm, values, distance, part, suspect, config)
        rule(self.norm, distance, groups, part, _BOUNDS, np.ones((1, groups.count + 1), bool), config)
        self.streaks.cleared *= (1 - 1 / config.retraction_decay_steps) ** turn

    def judge(self, cells: Cells, pace: Pace, group: Ints, now: int) -> None:
        """Add up what speaks against some entities, for as long as it lasts."""
        enough = enough_of(self.streaks, cells, group, pace, _BOUNDS.unknown)
        add_up(self.streaks, cells, group, pace, enough, now)
        self.cells, self.weight = cells, self.streaks.evidence[cells.at] / enough

    def suspected(self) -> Ints:
        """Entities against which so much speaks that little is to be learned from them."""
        return self.cells.entity[(self.weight > 1 / 8) | (self.cells.strength > 1)]

    def convicted(self) -> list[tuple[int, float]]:
        """Entity and weight of all that stand convicted."""
        stands = np.flatnonzero(self.streaks.convicted[self.cells.at])
        return [(int(self.cells.entity[at]), float(self.weight[at])) for at in stands]

    def score(self, entity: int) -> float:
        """How far the entity's sum is from its peers', in multiples of the least that counts."""
        return float(np.nan_to_num(self.cells.strength[self.cells.entity == entity][0]))

    def foremost(self, entity: int) -> list[int]:
        """The metrics that deviate most, the farthest first: at least half as far as that."""
        far = np.abs(self.parts[:, entity])
        return [int(metric) for metric in np.argsort(-far, kind="stable") if far[metric] >= far.max() / 2 > 0] or [0]

    def _reseat(self, group: Ints) -> None:
        """Begin anew with who is compared with others than before."""
        moved = np.flatnonzero(self.group != group[: len(self.group)])
        self.group = group.copy()
        if len(moved):
            self.norm.forget(moved)
            self.streaks.forget(moved)

    def _learned(self, parts: Singles, config: Config) -> NDArray[np.float64]:
        """[metric, metric]: correlations of the strengths over entities and time."""
        size = len(parts)
        if len(self.together) != size:
            self.together, self.looks = np.zeros((size, size)), 0.0
        stride = max(1, parts.shape[1] // _SOME)
        some = parts[:, int(self.looks) % stride :: stride].astype(np.float64)
        square = np.einsum("me,me->e", some, some)
        if len(square):
            # Who is far by many metrics is to say no more of what goes together than the others do.
            some *= np.sqrt(np.minimum(1.0, np.median(square) / np.maximum(square, _TINY)))
            self.looks = min(self.looks + 1, config.baseline_steps)
            self.together += (some @ some.T / len(square) - self.together) / self.looks
        sigma = np.sqrt(np.diag(self.together))
        out: NDArray[np.float64] = self.together / np.maximum(sigma[:, None] * sigma, _TINY)
        np.fill_diagonal(out, 1.0)
        return out


def _shared(correlation: NDArray[np.float64]) -> tuple[Singles, Singles]:
    """Directions [direction, metric] in which metrics move together, and the share of a square there that says no more.

    Along a direction of variance v as many metrics say the same: of the square along it one part in v counts.
    """
    variance, directions = np.linalg.eigh(correlation)
    several = variance > _TOGETHER
    shared: Singles = (1 - 1 / variance[several]).astype(np.float32)
    return np.ascontiguousarray(directions[:, several].T, np.float32), shared
