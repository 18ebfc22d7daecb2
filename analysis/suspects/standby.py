"""Warm standbys: how many spare machines cover the failures of one repair time, from the fleet's own incidents.

ByteRobust (SOSP'25, arXiv 2509.16293) takes the 99th percentile of a binomial: each of N machines fails within the
repair time with p = 1 - exp(-rate · time), independently. Real failures come in bursts (a switch, a bad batch, a hot
day), so the counts of windows of that length in the fleet's own past vary more than that: where they do, a negative
binomial of the same mean and variance is used beside it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, nbinom

Floats = NDArray[np.float64]
_STEPS = 20
"""Windows that begin within one repair time: they overlap."""


@dataclass(frozen=True, slots=True)
class Standby:
    """A recommendation; counts of machines."""

    machines: int
    incidents: int
    days: float
    repair_hours: float
    share: float
    """Share of the time in which there are spares enough."""
    chance: float
    """Probability that a machine fails within the repair time."""
    binomial: int
    """Spares if machines fail independently."""
    bursts: int
    """Spares for counts as uneven as those of the past; no fewer than `binomial`."""
    most: int
    """Most failures within one repair time in the past."""
    covered: float
    """Share of the past in which `bursts` would have been enough."""

    def as_json(self) -> dict[str, object]:
        """The object of `suspects standby --json`."""
        return asdict(self)


def counts_within(times: Floats, first: float, end: float, span: float) -> NDArray[np.intp]:
    """How many of the sorted times fall into each window of length `span` between `first` and `end` (same unit)."""
    begins = np.arange(first, max(end - span, first) + span / _STEPS / 2, span / _STEPS)
    return np.searchsorted(times, begins + span) - np.searchsorted(times, begins)


def size_standby(
    times: Floats,
    first: float,
    end: float,
    fleet: int,
    repair_hours: float,
    share: float = 0.99,
    job: int | None = None,
) -> Standby:
    """The spares for a job of so many machines (default: the fleet) from a fleet's own past.

    `times` are the onsets (hours) of its incidents, of which those between `first` and `end` (hours) count. A job's
    share of a burst is taken as that of its machines in the fleet. Raises ValueError for a repair time that is longer
    than a quarter of the past.
    """
    if repair_hours <= 0:
        raise ValueError("a repair takes longer than no time: write for example 12h or 2d")
    if repair_hours > (end - first) / 4:
        raise ValueError(
            f"a repair of {repair_hours:g} h needs {4 * repair_hours:g} h of history, and there are "
            f"{end - first:.3g} h: use a shorter --repair, more --days, or wait"
        )
    times = np.sort(times[(times >= first) & (times < end)])
    machines = job or fleet
    chance = float(-np.expm1(-len(times) / ((end - first) * fleet) * repair_hours))
    plain = int(binom.ppf(share, machines, chance))
    counts = counts_within(times, first, end, repair_hours)
    part, mean, spread = machines / fleet, float(counts.mean()), float(counts.var())
    uneven = plain
    if spread > mean > 0:  # a part of a negative binomial has the same shape
        shape = mean**2 / (spread - mean)
        uneven = int(nbinom.ppf(share, shape, shape / (shape + part * mean)))
    bursts = max(plain, uneven)
    covered = float((counts <= bursts).mean())
    days = (end - first) / 24
    return Standby(
        machines, len(times), days, repair_hours, share, chance, plain, bursts, int(counts.max(initial=0)), covered
    )
