"""What the methods for comparison share: a threshold over machines, and Minder's continuity of one candidate."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Floats
from store.schema.time import SECOND


def standardized(far: Floats) -> Floats:
    """Distances [machine] in standard deviations from their mean over the machines; 0 where all are alike."""
    spread = far.std()
    return (far - far.mean()) / spread if spread > 0 else np.zeros(len(far))


def in_thresholds(score: Floats, threshold: float, reach: float) -> Floats:
    """Scores [machine] in standard deviations over the machines, in multiples of the threshold.

    Among n machines the threshold is at most `reach` times the highest score there can be, the root of n - 1.
    """
    least: float = min(threshold, reach * (len(score) - 1) ** 0.5)
    return score / least


def outlier(score: Floats) -> int:
    """The machine with the highest score [machine] if that is above the threshold, else -1."""
    worst = int(score.argmax())
    return worst if score[worst] > 1 else -1


def candidate_finding(
    method: str, task: str, machine: str, metric: str, score: float, message: str, now: int, lasted_s: float
) -> list[Finding]:
    """The finding on a machine that has been the candidate for so long."""
    since = now - int(lasted_s * SECOND)
    return [Finding(Verdict(now, task, machine, None, method, metric, score, since, "crit", message), False, 1.0)]


@dataclass(slots=True)
class Candidates:
    """The candidates of the last steps of one metric, [step]; -1 where no machine was one."""

    ring: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    place: int = 0

    def note(self, candidate: int, steps: int) -> None:
        """Remember one step's candidate, over the last `steps`; the newest stay when that number changes."""
        if len(self.ring) != steps:
            self._resize(steps)
        self.ring[self.place % steps] = candidate
        self.place += 1

    def _resize(self, steps: int) -> None:
        """The newest candidates, oldest first: the estimated step jitters, and the past is no other for that."""
        held = min(self.place, len(self.ring), steps)
        oldest_first = np.roll(self.ring, -(self.place % max(len(self.ring), 1)))
        self.ring, self.place = np.full(steps, -1, np.int64), held
        self.ring[:held] = oldest_first[len(oldest_first) - held :]

    def lasting(self, share: float) -> int:
        """The candidate of at least this share of the steps; -1 where there is none."""
        known = self.ring[self.ring >= 0]
        if len(known) < share * len(self.ring) or not len(known):
            return -1
        count = np.bincount(known)
        return int(count.argmax()) if count.max() >= share * len(self.ring) else -1
