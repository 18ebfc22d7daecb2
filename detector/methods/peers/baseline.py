"""Baseline: the usual distance of each entity from its peers, how much it varies, and the thresholds that follow.

Exponentially weighted means with a warm-up; values beyond two standard deviations are winsorized.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.model.metrics import Bounds
from detector.stats.arrays import Array, Bools, Ints, Singles, grown
from detector.stats.grouped import Groups
from detector.stats.robust import NORMAL

_CLIPPED_NORMAL = 1 / 0.92  # a normal variable clipped at two deviations has 0.92 of its variance
_LAG_UPDATES = 40.0
_SAME, _WITHIN_NOISE = 0.1, 0.5
"""Levels are the same if they are so near to each other: as a share, and in standard deviations of their noise."""
_MOSTLY = 2 / 3
"""Of what moves, in real peers nine in ten metrics and of machines that are none half at most (ASD, SMD)."""
MAX_DEVIATION = 99.0
"""Any deviation of a metric that never moves is this many thresholds."""
_OVER = 2.0
"""Thresholds by which an entity differed for long, to be as its peers are now because a fault is over."""
_TINY = float(np.finfo(np.float32).tiny)


def _doubles() -> NDArray[np.float64]:
    return np.zeros((0, 0))


def _singles() -> Singles:
    return np.zeros((0, 0), np.float32)


@dataclass(slots=True)
class Baseline:
    """What is usual for each entity, arrays [metric, entity], learned while it is not suspect."""

    offset: Singles = field(default_factory=_singles)
    """Usual distance from the peers: roles and bad sensors differ by a constant, and that is no fault."""
    residual_variance: Array = field(default_factory=_doubles)
    """Mean square of the distance less its offset."""
    level: Array = field(default_factory=_doubles)
    """Usual reading."""
    level_variance: Array = field(default_factory=_doubles)
    """Mean square distance of the reading from its level: how much it moves anyway."""
    past_residual: Array = field(default_factory=_doubles)
    """The residual of the last update of `lag_variance`."""
    lag_variance: Array = field(default_factory=_doubles)
    """Mean square change of the residual from one such update to the next."""
    samples: Singles = field(default_factory=_singles)
    """Steps that this was learned from."""
    threshold: Singles = field(default_factory=_singles)
    """The smallest significant distance."""
    active_threshold: Singles = field(default_factory=_singles)
    """The same where it is judged; NaN in warm-up, with too few peers, or where the peers predict nothing."""

    def resize(self, shape: tuple[int, ...]) -> None:
        """Make room for [metric, entity]."""
        for one in fields(self):
            fill = np.nan if one.name == "active_threshold" else 0.0
            setattr(self, one.name, grown(getattr(self, one.name), shape, fill))

    def reset_cells(self, batch: MetricBatch, cells: Bools) -> None:
        """Forget some cells [metric of the batch, entity]."""
        for array in self._learned():
            array[batch.rows, : cells.shape[1]][cells] = 0

    def reset(self, entities: Ints) -> None:
        """Forget some entities, as when they change their task."""
        for array in self._learned():
            array[:, entities] = 0
        self.active_threshold[:, entities] = np.nan

    def shorten(self, entities: Ints, config: Config) -> None:
        """Keep what is known of machines that are worked on, as if it were learned in a warm-up.

        What they show when they come back is judged by it, unless they then read what their peers read.
        """
        self.samples[:, entities] = np.minimum(self.samples[:, entities], config.warmup_steps)

    def _learned(self) -> tuple[Array, ...]:
        return self.samples, self.offset, self.residual_variance, self.level, self.level_variance


@dataclass(frozen=True, slots=True)
class Comparison:
    """All entities beside their peers at one step; [metric, entity]."""

    deviation: Singles
    """Signed distance in multiples of the smallest significant one; NaN where unknown or not judged."""
    residual: Singles
    """Distance from the peers' median less the usual distance, in the metric's unit."""
    center: Array
    """[metric, group]: the peers' median, the usual offsets taken off."""


def compare(values: Singles, groups: Groups, baseline: Baseline) -> Comparison:
    """Distance of each entity from the median of its group: `values` is [metric, entity], smoothed."""
    cell = tuple(slice(size) for size in values.shape)
    residual = values - baseline.offset[cell]
    center = groups.middle(residual)
    residual -= groups.each(center)
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = residual / baseline.active_threshold[cell]
    np.clip(deviation, -MAX_DEVIATION, MAX_DEVIATION, out=deviation)
    return Comparison(deviation, residual, center)


@dataclass(frozen=True, slots=True)
class MetricBatch:
    """The metrics that are learned from at this step: round robin, as baselines change slowly."""

    rows: slice
    weight: int
    """Steps from one update of a metric to the next."""


def reset_on_level_shift(
    baseline: Baseline, values: Array, groups: Groups, batch: MetricBatch, bounds: Bounds, config: Config
) -> None:
    """While a task is young, reset every metric in which all peers have gone to a level not seen before.

    What was learned while the task loaded says nothing of how it runs; later, a common jump may be a fault's effect.
    """
    cell = _cells(batch, values)
    samples = groups.middle(baseline.samples[cell])
    young = (samples >= config.warmup_steps / 2) & (samples < config.startup_steps)
    if not young.any():
        return
    level, sigma = groups.middle(baseline.level[cell]), np.sqrt(groups.middle(baseline.level_variance[cell]))
    now, floor = groups.middle(values[batch.rows]), bounds.floor[batch.rows, None]
    with np.errstate(invalid="ignore"):
        jump = np.abs(now - level) > np.fmax(config.deviation_sigmas * sigma, np.fmax(floor, 0.5 * np.abs(level)))
    shifted = np.broadcast_to(groups.each(young & jump), baseline.samples[cell].shape)
    if shifted.any():
        baseline.reset_cells(batch, shifted)


def reset_contaminated(
    baseline: Baseline, values: Array, comparison: Comparison, groups: Groups, batch: MetricBatch, config: Config
) -> None:
    """Reset the baseline of an entity that deviates from it and yet reads what its peers read.

    It was learned from a burst, or from a fault that is over: the baseline is wrong, not the entity.
    """
    cell = _cells(batch, values)
    strange = np.abs(comparison.deviation[batch.rows]) > 1
    rows = np.flatnonzero(strange.any(1))
    if not len(rows):
        return
    readings, threshold = values[batch.rows][rows], baseline.threshold[cell][rows]
    alike = np.abs(readings - groups.each(groups.middle(readings))) < threshold / 2
    old = baseline.samples[cell][rows] >= config.startup_steps
    alike &= np.abs(baseline.offset[cell][rows]) > np.where(old, _OVER, 0.5) * threshold
    strange[rows] &= alike
    baseline.reset_cells(batch, strange)


def _cells(batch: MetricBatch, values: Array) -> tuple[slice, slice]:
    return batch.rows, slice(values.shape[1])


def update_baseline(
    baseline: Baseline, values: Array, comparison: Comparison, batch: MetricBatch, suspect: Bools, config: Config
) -> None:
    """Move the baseline towards the newest readings; a `suspect` cell [metric, entity] moves it a tenth as much.

    Noise is what is usual, not what checkpoints and bursts do at times (the CUSUM sees to those): beyond two standard
    deviations values are clipped. What never moved has no deviation to be clipped at.
    """
    cell = _cells(batch, values)
    readings, residual, samples = values[batch.rows], comparison.residual[batch.rows], baseline.samples[cell]
    known, warm, seen = ~np.isnan(residual), samples >= config.warmup_steps, samples > 0
    rate = np.where(known, np.where(suspect, 0.1 * batch.weight, batch.weight) / (samples + batch.weight), 0.0)
    sigma = np.sqrt(baseline.residual_variance[cell])
    clipped = (sigma > 0) & warm
    limit = np.where(clipped, 2 * sigma, np.inf)
    residual = np.where(known, np.clip(residual, -limit, limit), 0.0)
    baseline.offset[cell] += (rate * residual).astype(np.float32)
    square = np.where(samples > batch.weight, residual, 0.0) ** 2 * np.where(clipped, _CLIPPED_NORMAL, 1.0)
    variance = baseline.residual_variance[cell]
    baseline.residual_variance[cell] = np.where(seen, variance + rate * (square - variance), 0.0)
    _update_level(baseline, cell, readings, known, rate, warm)
    baseline.samples[cell] = np.minimum(samples + batch.weight * known, config.baseline_steps)


def _update_level(
    baseline: Baseline, cell: tuple[slice, slice], readings: Array, known: Bools, rate: Array, warm: Bools
) -> None:
    sigma = np.sqrt(baseline.level_variance[cell])
    limit = np.where((sigma > 0) & warm, 2 * sigma, np.inf)
    away = np.where(known, np.clip(readings - baseline.level[cell], -limit, limit), 0.0)
    baseline.level[cell] += rate * away
    variance = baseline.level_variance[cell]
    baseline.level_variance[cell] = np.where(baseline.samples[cell] > 0, variance + rate * (away**2 - variance), 0.0)


def update_lag_variance(baseline: Baseline, comparison: Comparison, batch: MetricBatch) -> None:
    """Note how far each residual has gone since the last update, which is to be one smoothing window ago."""
    cell = _cells(batch, comparison.residual)
    threshold = baseline.threshold[cell].astype(np.float64)
    limit = np.where(threshold > 0, 2 * threshold, np.inf)
    residual = np.clip(np.nan_to_num(comparison.residual[batch.rows]), -limit, limit)
    rate = 1 / (np.minimum(baseline.samples[cell] / batch.weight, _LAG_UPDATES) + 1)
    change = (residual - baseline.past_residual[cell]) ** 2
    baseline.lag_variance[cell] += rate * (change - baseline.lag_variance[cell])
    baseline.past_residual[cell] = residual


def update_thresholds(
    baseline: Baseline,
    comparison: Comparison,
    groups: Groups,
    batch: MetricBatch,
    bounds: Bounds,
    peers_valid: Bools,
    config: Config,
) -> None:
    """Set the smallest significant distances; `peers_valid` [metric, group] is whether the peers predict a metric."""
    cell = _cells(batch, comparison.residual)
    samples, residual = baseline.samples[cell], comparison.residual[batch.rows]
    # Estimated from few steps the noise itself is uncertain.
    noise = _noise(baseline, cell, residual, groups) * (1 + config.warmup_steps / 2 / np.maximum(samples, 1))
    floor = least_distance(comparison, baseline, groups, bounds, batch.rows, config)
    threshold = np.maximum(np.fmax(config.deviation_sigmas * noise, groups.each(floor)), _TINY)
    enough = groups.total(~np.isnan(residual)) >= config.min_peers
    active = (samples >= config.warmup_steps) & groups.each(enough & peers_valid[batch.rows])
    baseline.threshold[cell] = threshold
    baseline.active_threshold[cell] = np.where(active, threshold, np.nan)


def least_distance(
    comparison: Comparison, baseline: Baseline, groups: Groups, bounds: Bounds, rows: slice, config: Config
) -> Array:
    """[metric of the rows, group]: the smallest distance that says anything, however quiet a metric is."""
    center = np.abs(comparison.center[rows])
    floor: Array = np.fmax(bounds.floor[rows, None], bounds.relative[rows, None] * center)
    unknown = np.flatnonzero(bounds.unknown[rows])
    if len(unknown):
        shape = comparison.residual.shape
        level = baseline.level_variance[: shape[0], : shape[1]][rows]
        sigma = np.sqrt(groups.middle(level[unknown]))
        floor[unknown] = np.fmax(floor[unknown], config.unknown_metric_spread_floor * sigma)
    return floor


def _noise(baseline: Baseline, cell: tuple[slice, slice], residual: Array, groups: Groups) -> Array:
    """Standard deviation of each residual, and at least that of its group.

    A metric that jumps at times on some machine will do so on the others: the mean keeps what the median forgets.
    """
    samples, variance = baseline.samples[cell], baseline.residual_variance[cell]
    usual = np.sqrt(groups.total(variance) / np.maximum(groups.total(samples > 0), 1))
    common = np.fmax(usual, NORMAL * groups.middle(np.abs(residual)))
    noise: Array = np.fmax(np.sqrt(variance), groups.each(common))
    return noise


def peers_are_predictive(baseline: Baseline, shape: tuple[int, ...], groups: Groups, config: Config) -> Bools:
    """[metric, group]: whether the peers predict a member's reading; False until enough steps were seen.

    Where the residual wanders as far as the reading itself, and wanders slowly (noise does not), the entities have
    nothing to do with each other. Peers are alike in most of what moves: it follows theirs, or is at the same level. A
    group of which that does not hold is compared by no metric.
    """
    cell = tuple(slice(size) for size in shape)
    seen = groups.middle(baseline.samples[cell]) >= config.comparability_steps
    residual = groups.middle(baseline.residual_variance[cell])
    level = groups.middle(baseline.level_variance[cell])
    tiny = np.finfo(np.float64).tiny
    with np.errstate(over="ignore", invalid="ignore"):
        explained = 1 - np.sqrt(residual / np.maximum(level, tiny))
        lag = baseline.lag_variance[cell] / np.maximum(2 * baseline.residual_variance[cell], tiny)
        autocorrelation = 1 - groups.middle(lag)
        moves = residual > tiny
        alone = moves & (explained < config.min_explained_variance)
        alone &= autocorrelation > config.max_residual_autocorrelation
    related = (explained >= config.min_explained_variance) | _are_level(baseline, cell, residual, groups)
    strangers = (related & moves & seen).sum(0) < _MOSTLY * (moves & seen).sum(0)
    valid: Bools = seen & ~alone & ~strangers
    return valid


def _are_level(baseline: Baseline, cell: tuple[slice, ...], residual: Array, groups: Groups) -> Bools:
    """[metric, group]: whether members read the same; beside their noise, of which `residual` is the mean square."""
    level = baseline.level[cell]
    middle = groups.middle(level)
    apart = NORMAL * groups.middle(np.abs(level - groups.each(middle)))
    alike: Bools = apart <= np.fmax(_SAME * np.abs(middle), _WITHIN_NOISE * np.sqrt(residual))
    return alike
