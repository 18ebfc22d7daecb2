"""Fusion: deviations of many metrics of one entity, each too weak to count, added up to one reading of their own.

Squared distances add up as the log-likelihoods of normal noise do. Metrics that move together in health say one thing:
along each direction in which they do, the sum is divided by how many of them it is, so that two readings of the same
count once, and none ever counts for more than it does alone. What the strongest metric says is left out, as it is
judged by itself. The sum is then judged like any other reading, against the peers and what is usual for the entity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.methods.peers.baseline import (
    Baseline,
    Comparison,
    MetricBatch,
    compare,
    update_baseline,
    update_thresholds,
)
from detector.methods.peers.cusum import ActiveCells, CusumState, CusumUpdate, no_cells, write
from detector.model.metrics import Bounds
from detector.stats.arrays import Floats, Ints, Singles
from detector.stats.grouped import Groups, median

_TINY = float(np.finfo(np.float32).tiny)
_CORRELATED = 1.25  # uncorrelated metrics have variance 1 along every direction, and a little more by chance
_SAMPLED = 256  # entities from which the correlation is learned at each step: others the next time
BOUNDS = Bounds(np.ones(1), np.zeros(1), np.zeros(1, bool), np.ones(1, bool), np.zeros(1, bool))
"""The smallest significant sum is that of one metric with the smallest significant deviation."""


@dataclass(slots=True)
class Fusion:
    """The state of one table's sums; arrays are [1, entity] where they are not said to be otherwise."""

    correlation: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """[metric, metric]: mean products of the deviations in health."""
    samples: float = 0.0
    """Steps that it was learned from."""
    baseline: Baseline = field(default_factory=Baseline)
    cusum: CusumState = field(default_factory=CusumState)
    cells: ActiveCells = field(default_factory=no_cells)
    evidence: Floats = field(default_factory=lambda: np.zeros(0))
    """[cell], in multiples of what raises an alarm ..."""
    height: Floats = field(default_factory=lambda: np.zeros(0))
    """... and in multiples of the built-in threshold."""
    group: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[entity]: its peer group at the last step."""
    parts: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[metric, entity]: the deviations that were added up last, none beyond the smallest significant one."""

    def assign(self, group: Ints) -> None:
        """Make room for all entities; those in another peer group [entity] than before are reset."""
        shape = (1, len(group))
        self.baseline.resize(shape)
        self.cusum.resize(shape)
        moved = np.flatnonzero(self.group != group[: len(self.group)])
        self.group = group.copy()
        if len(moved):
            self.baseline.reset(moved)
            self.cusum.reset(moved)

    def suspects(self) -> Ints:
        """Entities with so much evidence that little is to be learned from them."""
        return self.cells.entity[(self.evidence > 1 / 8) | (self.cells.deviation > 1)]

    def alarms(self) -> list[tuple[int, float]]:
        """Entity and evidence of each alarm."""
        alarmed = np.flatnonzero(self.cusum.alarmed[self.cells.at])
        return [(int(self.cells.entity[at]), float(self.evidence[at])) for at in alarmed]

    def score(self, entity: int) -> float:
        """The deviation of the entity's sum, in multiples of the smallest significant one."""
        return float(np.nan_to_num(self.cells.deviation[self.cells.entity == entity][0]))

    def top_metrics(self, entity: int) -> list[int]:
        """The metrics that deviate most, the farthest first: at least half as far as that."""
        far = np.abs(self.parts[:, entity])
        return [int(metric) for metric in np.argsort(-far, kind="stable") if far[metric] >= far.max() / 2 > 0] or [0]


@dataclass(frozen=True, slots=True)
class FusedStep:
    """The sums of a step, not written to the state yet."""

    parts: Singles
    correlation: Floats
    samples: float
    comparison: Comparison
    """[1, entity]: the sums beside those of the peers."""


def fuse(fusion: Fusion, deviation: Singles, bounds: Bounds, groups: Groups, config: Config) -> FusedStep:
    """Each entity's sum beside its peers', given signed deviations [metric, entity], NaN where unknown."""
    least, most = (side[:, None].astype(np.float32) for side in (-1.0 * bounds.low, 1.0 * bounds.high))
    parts = np.clip(deviation, least, most)
    unknown = np.isnan(parts)
    parts[unknown] = 0.0
    correlation, samples = _learned(fusion, parts, config)
    directions, shared = _shared(_normalized(correlation))
    along, squares = directions @ parts, parts * parts
    # The strongest metric is judged by itself: the others have to show the same without it.
    total = np.maximum(squares.sum(0) - shared @ (along * along) - squares.max(0), 0.0)[None]
    total[:, unknown.all(0)] = np.nan
    return FusedStep(parts, correlation, samples, compare(total, groups, fusion.baseline))


def learn(fusion: Fusion, step: FusedStep, update: CusumUpdate, groups: Groups, turn: int, config: Config) -> None:
    """Make a step the state and learn from it; sums are made every `turn` steps."""
    comparison, baseline = step.comparison, fusion.baseline
    write(fusion.cusum, update)
    fusion.correlation, fusion.samples, fusion.parts = step.correlation, step.samples, step.parts
    fusion.cells, fusion.evidence, fusion.height = update.cells, update.evidence, update.height
    suspect = np.zeros(comparison.deviation.shape, bool)
    suspect[0, fusion.suspects()] = True
    batch, valid = MetricBatch(slice(0, 1), turn), np.ones((1, groups.count + 1), bool)
    values = comparison.residual + baseline.offset[:, : comparison.residual.shape[1]]
    update_baseline(baseline, values, comparison, batch, suspect, config)
    update_thresholds(baseline, comparison, groups, batch, BOUNDS, valid, config)
    fusion.cusum.retractions *= (1 - 1 / config.retraction_decay_steps) ** turn


def _learned(fusion: Fusion, parts: Singles, config: Config) -> tuple[Floats, float]:
    """[metric, metric]: mean products of the deviations over entities and time, and the steps that they are of."""
    fits = len(fusion.correlation) == len(parts)
    mean, samples = (fusion.correlation, fusion.samples) if fits else (np.zeros((len(parts), len(parts))), 0.0)
    stride = max(1, parts.shape[1] // _SAMPLED)
    some = parts[:, int(samples) % stride :: stride].astype(np.float64)
    square = np.einsum("me,me->e", some, some)
    if not len(square):
        return mean, samples
    # An entity that deviates by many metrics is to count no more than the others do.
    some *= np.sqrt(np.minimum(1.0, median(square) / np.maximum(square, _TINY)))
    samples = min(samples + 1, config.baseline_steps)
    return mean + (some @ some.T / len(square) - mean) / samples, samples


def _normalized(products: Floats) -> Floats:
    """Correlations out of mean products."""
    sigma = np.sqrt(np.diag(products))
    out: Floats = products / np.maximum(sigma[:, None] * sigma, _TINY)
    np.fill_diagonal(out, 1.0)
    return out


def _shared(correlation: Floats) -> tuple[Singles, Singles]:
    """Directions [direction, metric] in which metrics move together, and the share of a square there that says no more.

    Along a direction of variance v as many metrics say the same: of the square along it one part in v counts.
    """
    variance, directions = np.linalg.eigh(correlation)
    several = variance > _CORRELATED
    shared: Singles = (1 - 1 / variance[several]).astype(np.float32)
    return np.ascontiguousarray(directions[:, several].T, np.float32), shared
