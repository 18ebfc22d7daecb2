"""What is said of the learned thresholds: in one line for people, as numbers for programs, as a row in the store."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from detector.config import Config
from detector.thresholds.fit import LOWERS, MOST
from detector.thresholds.learner import Thresholds, rate_of
from store.schema.sample import Sample, Value

TABLE = "threshold"
_CHANGED = 0.05
"""Thresholds that differ less than this from the built-in ones count as unchanged."""


@dataclass(frozen=True, slots=True)
class LearningReport:
    """How far the fleet has taught its thresholds."""

    asked: float
    """False pages in 1,000 machine-hours that the operator allows."""
    machine_hours: float
    """Of health, in the last week."""
    excursions: int
    readings: int
    """Readings with a threshold of their own; in many tables one for a small lasting difference too."""
    raised: int
    lowered: int
    bounded: int
    """Readings that would need more than the highest threshold: they may give more false pages than asked."""
    trust: float
    """How much of the way from the built-in to a lower threshold is gone, 0 to 1."""

    def sample(self) -> Sample:
        """The row for the store."""
        values: dict[str, Value] = asdict(self) | {"message": self.words()}
        return Sample(TABLE, values)

    def words(self) -> str:
        """One line."""
        seen = f"{self.excursions:,} excursions in {self.machine_hours:,.1f} machine-hours"
        if not self.asked:
            return "built-in; detector.false_pages_per_1000_machine_hours is 0"
        if not self.readings:
            return f"built-in, learning; {seen} so far"
        held = f", {self.bounded} at the upper bound" if self.bounded else ""
        return (
            f"learned from {seen} for {self.asked:g} false pages in 1,000 machine-hours: of {self.readings} readings "
            f"{self.raised} raised{held}, {self.lowered} lowered; lower ones are used to {self.trust:.0%}"
        )


def report(thresholds: Thresholds, config: Config) -> LearningReport:
    """The state of what is learned."""
    asked, rate = config.false_pages_per_1000_machine_hours, rate_of(config)
    histories = [one.history for one in thresholds.tables.values()]
    hours = max((float(one.hours.sum(0).max(initial=0.0)) for one in histories), default=0.0)
    excursions = sum(int((one.peaks > 0).sum()) for one in histories)
    known = [one.multiplier[one.known] for one in thresholds.learned.values()]
    wanted = [one.wanted[one.known] for one in thresholds.learned.values()]
    limits, needs = (np.concatenate(parts) if parts else np.zeros(0) for parts in (known, wanted))
    raised, lowered = int((limits > 1 + _CHANGED).sum()), int((limits < 1 - _CHANGED).sum())
    bounded = int(((limits >= MOST) & (needs > MOST)).sum())
    trust = hours / (hours + LOWERS / rate) if rate else 0.0
    return LearningReport(asked, round(hours, 2), excursions, len(limits), raised, lowered, bounded, round(trust, 3))
