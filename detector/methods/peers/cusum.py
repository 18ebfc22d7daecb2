"""Continuity: evidence added up over steps; a strong deviation convicts in seconds, a weak one needs minutes.

A cumulative sum (Page 1954) of log-likelihood ratios: a deviation of twice the bound against one that sits at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.stats.arrays import Ints, grown
from store.schema.time import SECOND

Nats = NDArray[np.floating[Any]]
HIGH, LOW = 0, 1
MOST_DOUBLINGS = 3


@dataclass(slots=True)
class Streaks:
    """How much speaks against each entity and since when; arrays [direction, metric, entity], direction 0 is high."""

    evidence: NDArray[np.float32] = field(default_factory=lambda: np.zeros((2, 0, 0), np.float32))
    """In nats."""
    since: Ints = field(default_factory=lambda: np.zeros((2, 0, 0), np.int64))
    convicted: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((2, 0, 0), bool))
    cleared: NDArray[np.float32] = field(default_factory=lambda: np.zeros((2, 0, 0), np.float32))
    """Convictions that passed by themselves, fading: each doubles what the next one takes."""

    def fit(self, shape: tuple[int, ...]) -> None:
        """Make room for [metric, entity]."""
        self.evidence = grown(self.evidence, (2, *shape), 0.0)
        self.since = grown(self.since, (2, *shape), 0)
        self.convicted = grown(self.convicted, (2, *shape), 0)
        self.cleared = grown(self.cleared, (2, *shape), 0)

    def forget(self, entities: NDArray[np.int64]) -> None:
        """Begin anew for some entities."""
        self.evidence[:, :, entities] = 0
        self.convicted[:, :, entities] = False


@dataclass(slots=True)
class Cells:
    """The few of all (direction, metric, entity) against which something speaks, or did a moment ago."""

    side: Ints
    metric: Ints
    entity: Ints
    strength: Nats
    """In multiples of the least that counts: at least 1 incriminates, NaN is unknown."""
    urgency: Nats
    """How fast this may convict, as a share of the table's pace."""

    @property
    def at(self) -> tuple[Ints, Ints, Ints]:
        """Their place in the arrays of the streaks."""
        return self.side, self.metric, self.entity

    def cell(self, at: int) -> tuple[int, int, int]:
        """One of them: direction, metric, entity."""
        return int(self.side[at]), int(self.metric[at]), int(self.entity[at])


def nothing() -> Cells:
    """No cells."""
    none = np.zeros(0, np.int64)
    return Cells(none, none, none, np.zeros(0), np.zeros(0))


def suspects(streaks: Streaks, strength: Nats, high: NDArray[np.bool_], low: NDArray[np.bool_]) -> Cells:
    """Where evidence stands or begins; `strength` is signed [metric, entity], `high` and `low` [metric] what is bad."""
    rows, entities = strength.shape
    active = streaks.evidence[:, :rows, :entities] > 0
    active[HIGH] |= strength >= np.where(high, 1, np.inf)[:, None].astype(np.float32)
    active[LOW] |= strength <= np.where(low, -1, -np.inf)[:, None].astype(np.float32)
    side, metric, entity = np.unravel_index(np.flatnonzero(active), active.shape)
    value = strength[metric, entity] * np.where(side == HIGH, 1, -1)
    return Cells(side, metric, entity, np.maximum(value, 0), np.ones(len(side)))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast evidence grows in one table, and how much of it convicts."""

    share: float
    """Of a step's nats that count, as readings closer than `correlation_seconds` say the same thing."""
    most: Nats
    """[group]: nats that one step can add."""
    enough: Nats
    """[group]: nats that convict."""
    step_ns: int
    nats: float
    strongest: float
    caution: float
    """Times the nats of `enough` that convict; what one step can add stays, so each of them costs time."""


def pace_of(table: str, step_ns: int, streams: Ints, config: Config) -> Pace:
    """The threshold is the log of how many independent looks at `streams` [group] fall into the false-alarm budget."""
    factor = config.fast_factor if table in config.fast_tables else 1.0
    step_s = max(step_ns / SECOND, 1e-3)
    independent = max(config.correlation_seconds * factor, step_s)
    looks = np.maximum(streams, 1) * config.false_alarm_days * 86400 / independent
    enough = np.maximum(np.log(looks), config.cusum_gain_nats)
    shortest_steps = max(3.0, config.min_alarm_seconds * factor / step_s)
    share, most, caution = step_s / independent, enough / shortest_steps, config.threshold_multiplier(table)
    return Pace(share, most, enough, step_ns, config.cusum_gain_nats, config.max_deviation, caution)


def enough_of(streaks: Streaks, cells: Cells, group: Ints, pace: Pace, unknown: NDArray[np.bool_]) -> Nats:
    """[cell]: nats that convict. What cleared by itself before has to last longer to be believed.

    A metric that no catalogue knows (`unknown`, [metric]) answers for all machines on which it cried wolf.
    """
    own = 2.0 ** np.minimum(streaks.cleared[cells.at], MOST_DOUBLINGS)
    strange = unknown[cells.metric]
    if strange.any():
        wolf = streaks.cleared[:, : len(unknown)].sum(-1)[cells.side, cells.metric]
        own = np.where(strange, np.maximum(own, np.minimum(1 + wolf / 2, 2.0**MOST_DOUBLINGS)), own)
    enough: Nats = pace.enough[group[cells.entity]] * own * pace.caution
    return enough


def add_up(streaks: Streaks, cells: Cells, group: Ints, pace: Pace, enough: Nats, now: int) -> None:
    """Add one step's evidence; `enough` is [cell], `group` [entity]."""
    before, slack = streaks.evidence[cells.at], pace.enough[group[cells.entity]] / 2
    gain = pace.nats * (np.minimum(cells.strength, pace.strongest) - 1) * pace.share
    most = pace.most[group[cells.entity]]
    # Nothing seen speaks neither way, but does not keep a suspicion for ever.
    gain = np.where(np.isnan(gain), -pace.nats * pace.share / 10, np.minimum(gain, most))
    gain = np.where(gain > 0, gain * cells.urgency, gain)
    after = np.clip(before + gain, 0.0, enough + slack)
    begins = (before <= 0) & (after > 0)
    streaks.since[cells.at] = np.where(begins, now - pace.step_ns, streaks.since[cells.at])
    stood = streaks.convicted[cells.at]
    stands = (stood & (after > enough - slack)) | (after >= enough)
    streaks.cleared[cells.at] += stood & ~stands
    streaks.convicted[cells.at] = stands
    streaks.evidence[cells.at] = after
