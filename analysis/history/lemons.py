"""Lemons: machines with incidents more often than chance explains, by empirical Bayes.

Machine i has incidents at a rate of its own, drawn from Gamma(a, b) over the fleet; in T_i hours it has
Poisson(rate_i T_i) of them. Given n_i the rate is Gamma(a + n_i, b + T_i): its mean is pulled towards the fleet's base
rate a / b, the more so the less was seen (Robbins 1956; Gelman et al., Bayesian Data Analysis, section 2.7). The name
and the window of 28 days are those of Meta's study (HPCA'25, arXiv 2410.21680), which has no such correction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammainc, gammaincc, gammaln

Floats = NDArray[np.float64]

FACTOR = 2.0
"""A lemon's rate is more than so many times the base rate."""
FALSE_SHARE = 0.2
"""Lemons are named as long as no larger share of them is expected to be none."""
LEAST = 2
"""Incidents below which no machine is a lemon."""
_SPREAD = 1.5
"""Standard deviation of log(a) before anything is seen, around log(1): the unevenness of an unknown fleet."""
_BASE_COUNT = 0.5
"""Incidents added where a fleet had none, so that its base rate is not zero."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Rates over the fleet: Gamma with this shape and rate (hours)."""

    shape: float
    hours: float

    @property
    def base_rate(self) -> float:
        """Mean incidents per machine-hour."""
        return self.shape / self.hours


@dataclass(frozen=True, slots=True)
class Ranking:
    """All machines [machine], the likeliest lemon first."""

    order: NDArray[np.intp]
    """[place]: index of the machine."""
    rate: Floats
    """Shrunken incidents per machine-hour, by machine."""
    chance: Floats
    """Probability that the rate is more than FACTOR times the base rate, by machine."""
    named: int
    """How many of the first are lemons."""
    false_share: float
    """Share of those that is expected to be none (Bayesian false discovery rate); 0 without any."""
    prior: Prior


def fit_prior(counts: Floats, hours: Floats) -> Prior:
    """Maximum a posteriori of shape and mean over the machines, [machine] incidents and hours watched (> 0).

    Of a shape that the data say little of, log(a) is Normal(0, 1.5).
    """
    start = np.log([1.0, (counts.sum() or _BASE_COUNT) / hours.sum()])

    def loss(point: Floats) -> float:
        shape = np.exp(point[0])
        rate = shape / np.exp(point[1])
        each = gammaln(shape + counts) - gammaln(shape) + shape * np.log(rate / (rate + hours))
        each = each + counts * np.log(hours / (rate + hours))
        return float(point[0] ** 2 / (2 * _SPREAD**2) - each.sum())

    if not counts.sum():
        return Prior(1.0, float(np.exp(-start[1])))
    bounds = [(-4.0, 6.0), (start[1] - 5, start[1] + 5)]
    found = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    return Prior(float(np.exp(found[0])), float(np.exp(found[0] - found[1])))


def rank_lemons(counts: Floats, hours: Floats) -> Ranking:
    """Rank machines by their incidents [machine] in hours watched [machine]."""
    prior = fit_prior(counts, hours)
    shape, seen = prior.shape + counts, prior.hours + hours
    limit = FACTOR * prior.base_rate * seen
    chance, rest = gammaincc(shape, limit), gammainc(shape, limit)
    rate = shape / seen
    order = np.lexsort((-rate, -chance))
    false = np.cumsum(rest[order]) / np.arange(1, len(order) + 1)
    eligible = counts[order] >= LEAST
    within = np.flatnonzero((false <= FALSE_SHARE) & np.logical_and.accumulate(eligible))
    named = int(within[-1]) + 1 if len(within) else 0
    return Ranking(order, rate, chance, named, float(false[named - 1]) if named else 0.0, prior)
