"""CUSUM over steps: a strong deviation raises an alarm in seconds, a weak one needs minutes.

A cumulative sum (Page 1954) of log-likelihood ratios: a deviation of twice the threshold against one that sits at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.stats.arrays import Bools, Floats, Ints, Singles, grown
from store.schema.time import SECOND

Nats = NDArray[np.floating[Any]]
HIGH, LOW = 0, 1
MAX_DOUBLINGS = 3


@dataclass(slots=True)
class CusumState:
    """The sums and alarms; arrays [direction, metric, entity], direction 0 is high."""

    value: Singles = field(default_factory=lambda: np.zeros((2, 0, 0), np.float32))
    """In nats."""
    onset: Ints = field(default_factory=lambda: np.zeros((2, 0, 0), np.int64))
    """When the sum last rose from zero, Unix ns."""
    alarmed: Bools = field(default_factory=lambda: np.zeros((2, 0, 0), bool))
    retractions: Singles = field(default_factory=lambda: np.zeros((2, 0, 0), np.float32))
    """Alarms that ended by themselves, decaying: each doubles the threshold of the next."""

    def resize(self, shape: tuple[int, ...]) -> None:
        """Make room for [metric, entity]."""
        for name in ("value", "onset", "alarmed", "retractions"):
            setattr(self, name, grown(getattr(self, name), (2, *shape), 0))

    def reset(self, entities: Ints) -> None:
        """Forget the sums and alarms of some entities."""
        self.value[:, :, entities] = 0
        self.alarmed[:, :, entities] = False


@dataclass(frozen=True, slots=True)
class ActiveCells:
    """Sparse index of the (direction, metric, entity) cells with a CUSUM above zero or a significant deviation."""

    side: Ints
    metric: Ints
    entity: Ints
    deviation: Nats
    """In multiples of the smallest significant one, never negative; NaN is unknown."""
    gain_factor: Nats
    """Share of the table's gain that counts."""

    @property
    def at(self) -> tuple[Ints, Ints, Ints]:
        """Their place in the arrays of the CUSUM."""
        return self.side, self.metric, self.entity

    def cell(self, at: int) -> tuple[int, int, int]:
        """One of them: direction, metric, entity."""
        return int(self.side[at]), int(self.metric[at]), int(self.entity[at])

    def where(self, some: Bools) -> ActiveCells:
        """Those that are marked in `some` [cell]."""
        side, metric, entity = (part[some] for part in self.at)
        return ActiveCells(side, metric, entity, self.deviation[some], self.gain_factor[some])


def no_cells() -> ActiveCells:
    """An empty index."""
    none = np.zeros(0, np.int64)
    return ActiveCells(none, none, none, np.zeros(0), np.zeros(0))


def active_cells(cusum: CusumState, deviation: Nats, high: Bools, low: Bools) -> ActiveCells:
    """Where a sum is above zero or begins; `deviation` is signed [metric, entity], `high`, `low` [metric] is bad."""
    rows, entities = deviation.shape
    active = cusum.value[:, :rows, :entities] > 0
    active[HIGH] |= deviation >= np.where(high, 1, np.inf)[:, None].astype(np.float32)
    active[LOW] |= deviation <= np.where(low, -1, -np.inf)[:, None].astype(np.float32)
    side, metric, entity = np.unravel_index(np.flatnonzero(active), active.shape)
    value = deviation[metric, entity] * np.where(side == HIGH, 1, -1)
    return ActiveCells(side, metric, entity, np.maximum(value, 0), np.ones(len(side)))


@dataclass(frozen=True, slots=True)
class CusumParams:
    """How fast the sums of one table grow, and where they raise an alarm."""

    independence: float
    """Share of a step's nats that counts: readings closer than `correlation_seconds` are correlated."""
    max_gain: Nats
    """[group]: nats that one step can add."""
    threshold: Nats
    """[group]: nats that raise an alarm."""
    step_ns: int
    gain_nats: float
    max_deviation: float
    threshold_scale: float
    """Multiplier on the threshold; `max_gain` stays, so each multiple costs time."""


def cusum_params(table: str, step_ns: int, streams: Ints, config: Config) -> CusumParams:
    """The threshold is the log of the number of independent samples of `streams` [group] in the false-alarm budget."""
    factor = config.fast_factor if table in config.fast_tables else 1.0
    step_s = max(step_ns / SECOND, 1e-3)
    independent_s = max(config.correlation_seconds * factor, step_s)
    samples = np.maximum(streams, 1) * config.false_alarm_days * 86400 / independent_s
    threshold = np.maximum(np.log(samples), config.cusum_gain_nats)
    fewest_steps = max(3.0, config.earliest_alarm_seconds(table) / step_s)
    return CusumParams(
        step_s / independent_s,
        threshold / fewest_steps,
        threshold,
        step_ns,
        config.cusum_gain_nats,
        config.max_deviation,
        config.threshold_multiplier(table),
    )


def thresholds(
    cusum: CusumState, cells: ActiveCells, group: Ints, params: CusumParams, unknown: Bools, learned: Nats
) -> Nats:
    """[cell]: nats that raise an alarm. Alarms that ended by themselves raise the threshold.

    `learned` [cell] are multiples of the built-in threshold that the fleet has taught.

    For a metric that no catalogue knows (`unknown`, [metric]) retractions on any machine raise that of all.
    """
    factor = 2.0 ** np.minimum(cusum.retractions[cells.at], MAX_DOUBLINGS)
    strange = unknown[cells.metric]
    if strange.any():
        total = cusum.retractions[:, : len(unknown)].sum(-1)[cells.side, cells.metric]
        factor = np.where(strange, np.maximum(factor, np.minimum(1 + total / 2, 2.0**MAX_DOUBLINGS)), factor)
    found: Nats = params.threshold[group[cells.entity]] * factor * params.threshold_scale * learned
    return found


@dataclass(frozen=True, slots=True)
class CusumUpdate:
    """The sums of the active cells after a step; arrays [cell], not written to the state yet."""

    cells: ActiveCells
    value: Nats
    onset: Ints
    alarmed: Bools
    evidence: Floats
    """The sums in multiples of what raises an alarm ..."""
    height: Floats
    """... and in multiples of the built-in threshold."""


def accumulate(
    cusum: CusumState, cells: ActiveCells, group: Ints, params: CusumParams, threshold: Nats, now: int
) -> CusumUpdate:
    """Add one step's gain; `threshold` is [cell], `group` [entity], `now` Unix ns.

    An alarm is released half a table's threshold below its own (hysteresis), or half its own if that is less.
    """
    before, built_in = cusum.value[cells.at], params.threshold[group[cells.entity]]
    release_margin = np.minimum(built_in, threshold) / 2
    gain = params.gain_nats * (np.minimum(cells.deviation, params.max_deviation) - 1) * params.independence
    # A lower threshold is no less time: `fewest_steps` are those of what has to be reached.
    most = params.max_gain[group[cells.entity]] * np.minimum(threshold / built_in, 1.0)
    # An unknown reading is no evidence either way, but a sum must not stand for ever.
    gain = np.where(np.isnan(gain), -params.gain_nats * params.independence / 10, np.minimum(gain, most))
    gain = np.where(gain > 0, gain * cells.gain_factor, gain)
    after = np.clip(before + gain, 0.0, threshold + release_margin)
    onset = np.where((before <= 0) & (after > 0), now - params.step_ns, cusum.onset[cells.at])
    alarmed = (cusum.alarmed[cells.at] & (after > threshold - release_margin)) | (after >= threshold)
    return CusumUpdate(cells, after, onset, alarmed, after.astype(np.float32) / threshold, after / built_in)


def write(cusum: CusumState, update: CusumUpdate) -> None:
    """Make the sums of a step the state; an alarm that ended counts as a retraction."""
    at = update.cells.at
    cusum.retractions[at] += cusum.alarmed[at] & ~update.alarmed
    cusum.value[at], cusum.onset[at], cusum.alarmed[at] = update.value, update.onset, update.alarmed


def no_update() -> CusumUpdate:
    """The update of no cells."""
    none = no_cells()
    return CusumUpdate(none, none.deviation, none.entity, np.zeros(0, bool), np.zeros(0), np.zeros(0))
