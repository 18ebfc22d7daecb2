"""Tail: how high the rarest excursions reach, farther out than the data, as a generalized Pareto tail says.

Peaks over a threshold have a generalized Pareto tail (Pickands 1975; Davison and Smith 1990). Its shape needs hundreds
of peaks and its scale a dozen: so the shape is that of all streams together, its L-moment ratio averaged over them
(Hosking and Wallis, Regional Frequency Analysis, 1997), and only the scale is a stream's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from detector.stats.arrays import Floats

FEWEST = 10
"""Peaks over the threshold that make a tail of their own."""
TAIL_SHARE = 0.1
MOST_TAIL, LEAST_TAIL = 60, 20
HEAVIEST = 0.25
"""The heaviest shape: beyond it the fourth moment fails, and a threshold would hang on single peaks."""
_SURE = 1.2816
"""The scale is taken at the upper end of an 80 % interval."""
_EXPONENTIAL = 0.5
"""The L-moment ratio of an exponential tail ..."""
_PRIOR_TAIL = 40.0
"""... which the average begins with, as if it were that of so many peaks."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The tail of one stream: excesses over a threshold, `rate` of them in a machine-hour."""

    over: float
    rate: float
    scale: float
    shape: float

    def height(self, rate: float) -> float:
        """What excursions exceed `rate` times in a machine-hour, at most."""
        if rate >= self.rate or self.rate <= 0:
            return self.over
        times = math.log(self.rate / rate)
        if abs(self.shape) < 1e-6:
            return self.over + self.scale * times
        return self.over + self.scale * math.expm1(self.shape * times) / self.shape

    def exceeded(self, height: float) -> float:
        """How many excursions of a machine-hour are higher than `height`, which is at least `over`."""
        beyond = (height - self.over) / self.scale if self.scale else math.inf
        if abs(self.shape) < 1e-6:
            return self.rate * math.exp(-beyond)
        return self.rate * math.exp(-math.log1p(self.shape * beyond) / self.shape)


def l_ratio(excess: Floats) -> float:
    """L-moment ratio of excesses, the second over the first: 1/2 where they are exponential, more if they scatter more.

    Unbiased probability-weighted moments (Hosking, Wallis 1987). Raises ValueError for fewer than two values.
    """
    if len(excess) < 2:
        raise ValueError("it takes two values to tell how much they scatter")
    ordered = np.sort(excess)
    mean = float(ordered.mean())
    weighted = float((np.arange(len(ordered)) * ordered).mean()) / (len(ordered) - 1)
    return (2 * weighted - mean) / mean if mean > 0 else _EXPONENTIAL


def common_shape(samples: list[Floats]) -> float:
    """The shape of the tails of several streams, from their excesses; 0 is exponential, and the lightest that is used.

    A tail that seems to end says only that few peaks were seen.
    """
    known = [(len(one), l_ratio(one)) for one in samples if len(one) >= FEWEST]
    size = _PRIOR_TAIL + sum(count for count, _ in known)
    ratio = (_PRIOR_TAIL * _EXPONENTIAL + sum(count * one for count, one in known)) / size
    return min(max(2 - 1 / ratio, 0.0), HEAVIEST)


def excesses(peaks: Floats, least: float = 0.0) -> tuple[float, Floats]:
    """Where the tail of some peaks begins, at `least` or higher, and by how much those beyond are higher."""
    ordered = np.sort(peaks[peaks > least])[::-1]
    count = min(max(round(TAIL_SHARE * len(ordered)), LEAST_TAIL), MOST_TAIL, max(len(ordered) - 1, 0))
    over = float(ordered[count]) if count else least
    return over, ordered[:count] - over


def tail_of(over: float, excess: Floats, hours: float, shape: float, prior: tuple[float, float]) -> Tail:
    """The tail of one stream in `hours` machine-hours; `prior` is a mean excess, and of how many excesses it is worth.

    The mean is shrunk towards the prior and taken at its upper bound, so few peaks make a careful tail.
    """
    mean, weight = prior
    count = len(excess) + weight
    mean = (float(excess.sum()) + weight * mean) / count
    return Tail(over, (len(excess) + 1) / hours, mean * at_most(count) * (1 - shape), shape)


def at_most(count: float) -> float:
    """The upper confidence bound of an exponential's mean, over the mean of `count` values (Wilson, Hilferty 1931)."""
    part = 1 / (9 * count)
    return float((1 - part - _SURE * math.sqrt(part)) ** -3)
