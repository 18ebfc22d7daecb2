"""Which function behaves otherwise in which rank, after PerfTracker (NSDI'26), from samples of one window.

The pattern of a function f in a rank w is (β, μ, σ): the share of the window that the main thread spends in f; mean
and standard deviation of that share in bins of a tenth of a second, over the part of the window in which f is at work.
Δ(f, w) is the share of sampled other ranks with a pattern that is at least 0.4 away (Manhattan). A pattern is abnormal
with β > 0.01 where Δ exceeds the median over ranks by 5 MAD, or β exceeds what is expected of its class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.profile.samples import Samples
from detector.stats.arrays import Floats, Ints

BIN_S = 0.1
DISTANCE, DEVIATIONS, LEAST_SHARE = 0.4, 5.0, 0.01
EXPECTED = {"gc": 0.01, "loader": 0.01}
"""Class -> the largest β that is expected; others are not known beforehand."""
PEERS = 32
"""Other ranks that each is compared with."""
LEAST_RANKS = 3
_MASS = 0.8  # of a function's time lies in the part of the window in which it is at work
_ODD = 0.5  # of the peers must differ, whatever the MAD


@dataclass(frozen=True, slots=True)
class Abnormal:
    """A function that behaves otherwise in a rank."""

    function: str
    kind: str
    """Class of the function."""
    rank: str
    beta: float
    mu: float
    sigma: float
    delta: float
    """Share of the peers that differ."""
    usual: float
    """Median β over all ranks."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """How each rank uses each function."""

    ranks: tuple[str, ...]
    functions: tuple[str, ...]
    classes: tuple[str, ...]
    """[function]"""
    values: Floats
    """[rank, function, (β, μ, σ)]."""

    def with_series(self, function: str, kind: str, series: dict[str, Floats]) -> Patterns:
        """These and what was measured as shares at even distances, by rank; these alone where a rank has none."""
        if any(not np.isfinite(series.get(rank, np.array([np.nan]))).any() for rank in self.ranks):
            return self
        rows = [series[rank][np.isfinite(series[rank])] for rank in self.ranks]
        values = np.array([[(row.mean(), *(_at_work(row) if row.any() else (0.0, 0.0)))] for row in rows])
        joined = np.concatenate([self.values, values], axis=1)
        return Patterns(self.ranks, (*self.functions, function), (*self.classes, kind), joined)


def patterns(samples: Samples) -> Patterns:
    """The patterns of all functions."""
    found = np.zeros((len(samples.ranks), len(samples.functions), 3))
    bins = max(1, round(samples.seconds / BIN_S))
    for rank, seen in enumerate(samples.seen):
        share = _binned(seen, len(samples.functions), bins)
        for function in np.unique(seen):
            found[rank, function] = ((seen == function).mean(), *_at_work(share[function]))
    return Patterns(samples.ranks, samples.functions, samples.classes, found)


def _binned(seen: Ints, functions: int, bins: int) -> Floats:
    """[function, bin]: share of the bin."""
    at = np.arange(len(seen)) * bins // len(seen)
    counts = np.bincount(seen * bins + at, minlength=functions * bins).reshape(functions, bins)
    return counts / np.maximum(np.bincount(at, minlength=bins), 1)


def _at_work(share: Floats) -> tuple[float, float]:
    """Mean and deviation over the part that holds most of the total, with the shortest pauses that allow it."""
    used = np.flatnonzero(share)
    gaps = np.diff(used) - 1
    low, high = 0, int(gaps.max(initial=0))
    while low < high:  # the longest pause that is allowed, by bisection
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _heaviest(share, used, gaps, middle)[2] >= _MASS * share.sum() else (middle + 1, high)
        )
    first, last, _ = _heaviest(share, used, gaps, low)
    part = share[first : last + 1]
    return float(part.mean()), float(part.std())


def _heaviest(share: Floats, used: Ints, gaps: Ints, pause: int) -> tuple[int, int, float]:
    """First and last bin, and total, of the part with the most in it that has no longer pause than this."""
    edges = np.concatenate([[0], np.flatnonzero(gaps > pause) + 1, [len(used)]])
    totals = np.add.reduceat(share[used], edges[:-1])
    best = int(totals.argmax())
    return int(used[edges[best]]), int(used[edges[best + 1] - 1]), float(totals[best])


def differing(found: Floats, seed: int = 0) -> Floats:
    """[rank, function]: share of sampled other ranks with a pattern that is DISTANCE away or further."""
    ranks = len(found)
    chance = np.random.default_rng(seed)
    delta = np.zeros(found.shape[:2])
    for rank in range(ranks):
        others = np.delete(np.arange(ranks), rank)
        others = chance.choice(others, PEERS, replace=False) if len(others) > PEERS else others
        if len(others):
            delta[rank] = (np.abs(found[others] - found[rank]).sum(2) >= DISTANCE).mean(0)
    return delta


def abnormal(found: Patterns) -> list[Abnormal]:
    """Every abnormal pattern: first those in which a rank spends more than usual, the longest first."""
    values = found.values
    delta, usual = differing(values), np.median(values[..., 0], axis=0)
    middle = np.median(delta, axis=0)
    spread = np.median(np.abs(delta - middle), axis=0)
    odd = (delta > middle + DEVIATIONS * spread) & (delta >= _ODD) & (len(found.ranks) >= LEAST_RANKS)
    most = np.array([EXPECTED.get(kind, 1.0) for kind in found.classes])
    wrong = (values[..., 0] > LEAST_SHARE) & (odd | (values[..., 0] > most))
    listed = []
    for rank, function in np.argwhere(wrong).tolist():
        names = found.functions[function], found.classes[function], found.ranks[rank]
        beta, mu, sigma = values[rank, function].tolist()
        listed.append(Abnormal(*names, beta, mu, sigma, float(delta[rank, function]), float(usual[function])))
    return sorted(listed, key=lambda one: one.usual - one.beta)
