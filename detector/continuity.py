"""Continuity: evidence added up over steps; a strong deviation convicts in seconds, a weak one needs minutes.

A cumulative sum (Page 1954) of log-likelihood ratios: a deviation of twice the bound against one that sits at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.config import SECOND, Config
from detector.window import grown

Nats = NDArray[np.float64]
Members = NDArray[np.int64] | slice
HIGH, LOW = 0, 1
MOST_DOUBLINGS = 3


@dataclass(slots=True)
class Streaks:
    """How much speaks against each entity and since when; arrays [direction, metric, entity], direction 0 is high."""

    evidence: NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, 0, 0)))
    """In nats."""
    since: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, 0, 0), np.int64))
    convicted: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((2, 0, 0), bool))
    cleared: Nats = field(default_factory=lambda: np.zeros((2, 0, 0)))
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


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast evidence grows in one table, and how much of it convicts."""

    share: float
    """Of a step's nats that count, as readings closer than `independent_s` say the same thing."""
    most: float
    """Nats that one step can add."""
    enough: float
    """Nats that convict."""
    step_ns: int
    nats: float
    strongest: float


def pace_of(table: str, step_ns: int, streams: int, config: Config) -> Pace:
    """The threshold is the log of how many independent looks fall into the false-alarm budget."""
    factor = config.prompt_factor if table in config.prompt_tables else 1.0
    step_s = max(step_ns / SECOND, 1e-3)
    independent = max(config.independent_s * factor, step_s)
    looks = max(streams, 1) * config.false_alarm_days * 86400 / independent
    enough = max(math.log(looks), config.nats)
    shortest_steps = max(3.0, config.shortest_s * factor / step_s)
    return Pace(step_s / independent, enough / shortest_steps, enough, step_ns, config.nats, config.strength_most)


def enough_of(streaks: Streaks, members: Members, pace: Pace, unknown: NDArray[np.bool_]) -> Nats:
    """[direction, metric, member]: nats that convict. What cleared by itself before has to last longer to be believed.

    A metric that no catalogue knows (`unknown`, [metric]) answers for all machines on which it cried wolf.
    """
    cleared = streaks.cleared[:, : len(unknown)][:, :, members]
    own = 2.0 ** np.minimum(cleared, MOST_DOUBLINGS)
    together = np.minimum(1 + cleared.sum(-1, keepdims=True) / 2, 2.0**MOST_DOUBLINGS)
    enough: Nats = pace.enough * np.where(unknown[:, None], np.maximum(own, together), own)
    return enough


def add_up(streaks: Streaks, strength: Nats, members: Members, pace: Pace, enough: Nats, now: int) -> None:
    """Add one step's evidence; `strength` is [direction, metric, member], at least 1 where it incriminates."""
    cell = (slice(None), slice(strength.shape[1]), members)
    before = streaks.evidence[cell]
    gain = pace.nats * (np.clip(strength, 0, pace.strongest) - 1) * pace.share
    # Nothing seen speaks neither way, but does not keep a suspicion for ever.
    gain = np.where(np.isnan(gain), -pace.nats * pace.share / 10, np.minimum(gain, pace.most))
    after = np.clip(before + gain, 0.0, enough + pace.enough / 2)
    begins = (before <= 0) & (after > 0)
    streaks.since[cell] = np.where(begins, now - pace.step_ns, streaks.since[cell])
    stood = streaks.convicted[cell]
    stands = (stood & (after > enough - pace.enough / 2)) | (after >= enough)
    streaks.cleared[cell] += stood & ~stands  # before `convicted` changes: `stood` may be a view of it
    streaks.convicted[cell] = stands
    streaks.evidence[cell] = after
