"""Which measures are worse than those of peers, and than those of a healthy run, by Wasserstein distance.

After Flare (NSDI'26) and ARGUS: distributions are compared, as vectors of quantiles. The first Wasserstein distance of
two such vectors is the mean of their absolute differences, in the unit of the measure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.behaviour.measures import Behaviour, Measure, measure_of
from detector.stats.arrays import Floats

QUANTILES = np.linspace(0.01, 0.99, 99)
_SHARE = 0.05  # of the usual value: a smaller shift is no regression
_SPREADS = 3.0  # times what healthy ranks differ among each other
_FENCE = 3.0  # times the distance of the quartiles over the third (Tukey)
LEAST_PEERS = 4
"""Ranks, of fewer none is odd."""
_MOST = 0.8  # of the ranks: all of them


@dataclass(frozen=True, slots=True)
class Finding:
    """A measure that is worse than it should be."""

    measure: str
    against: str
    """peers or history"""
    ranks: tuple[str, ...]
    everywhere: bool
    """Whether nearly all ranks have it."""
    distance: float
    """Wasserstein-1, in the unit."""
    before: float
    """Median of the peers or of the history."""
    now: float
    cause: str


@dataclass(frozen=True, slots=True)
class History:
    """The healthy behaviour of one measure."""

    quantiles: Floats
    """Over all ranks."""
    spread: float
    """Median distance of a rank from all, in the unit."""


def quantiles(values: Floats) -> Floats:
    """A distribution as a vector of quantiles."""
    return np.quantile(values, QUANTILES)


def wasserstein(one: Floats, other: Floats) -> float:
    """The first Wasserstein distance of two distributions, given by their quantiles."""
    return float(np.abs(one - other).mean())


def history_of(behaviour: Behaviour) -> dict[str, History]:
    """What to remember of a healthy run, by measure."""
    found = {}
    for name, by_rank in behaviour.values.items():
        pooled = _pooled(by_rank)
        halves = [
            part for values in by_rank.values() for part in (values[: len(values) // 2], values[len(values) // 2 :])
        ]
        spread = [wasserstein(quantiles(part), pooled) for part in halves if len(part)]
        found[name] = History(pooled, float(np.median(spread)))
    return found


def against_history(behaviour: Behaviour, history: dict[str, History]) -> list[Finding]:
    """Measures that are worse than in the healthy run, the largest shift first."""
    found = []
    for name, by_rank in behaviour.values.items():
        before, measure = history.get(name), measure_of(name)
        if before is None:
            continue
        middle = float(np.median(before.quantiles))
        least = max(measure.floor, _SHARE * abs(middle), _SPREADS * before.spread)
        moved = {rank: _worse(quantiles(values), before.quantiles, measure) for rank, values in by_rank.items()}
        ranks = tuple(rank for rank, distance in moved.items() if distance > least)
        if ranks:
            now = float(np.median(np.concatenate([by_rank[rank] for rank in ranks])))
            distance = float(np.median([moved[rank] for rank in ranks]))
            everywhere = len(ranks) >= _MOST * len(by_rank)
            found.append(Finding(name, "history", ranks, everywhere, distance, middle, now, measure.cause))
    return _explained(
        sorted(found, key=lambda one: -one.distance / max(abs(one.before), measure_of(one.measure).floor))
    )


def against_peers(behaviour: Behaviour) -> list[Finding]:
    """Ranks with a measure that is worse than that of their peers, beyond Tukey's far fence."""
    found = []
    for name, by_rank in behaviour.values.items():
        if len(by_rank) < LEAST_PEERS:
            continue
        measure, pooled = measure_of(name), _pooled(by_rank)
        moved = {rank: _worse(quantiles(values), pooled, measure) for rank, values in by_rank.items()}
        low, high = np.percentile(list(moved.values()), [25, 75])
        middle = float(np.median(pooled))
        least = max(measure.floor, _SHARE * abs(middle), float(high + _FENCE * (high - low)))
        for rank, distance in moved.items():
            if distance > least:
                now = float(np.median(by_rank[rank]))
                found.append(Finding(name, "peers", (rank,), False, distance, middle, now, measure.cause))
    return found


def _pooled(by_rank: dict[str, Floats]) -> Floats:
    """The middle rank's quantiles: a rank that is odd does not move it."""
    return np.median([quantiles(values) for values in by_rank.values()], axis=0)


def _worse(now: Floats, before: Floats, measure: Measure) -> float:
    """The distance, where the distribution has moved for the worse; else 0."""
    return wasserstein(now, before) if measure.worse * float((now - before).mean()) > 0 else 0.0


_CAUSES = ("gc", "loader", "disk_wait", "synchronise")


def _explained(found: list[Finding]) -> list[Finding]:
    """Findings with the cause named that another measure shows: late issue because of collections, for example."""
    shown = {one.measure for one in found}
    why = next((name for name in _CAUSES if name in shown), None)
    if why is None:
        return found
    words = f"likely {measure_of(why).cause}"
    symptoms = ("issue_latency", "void_between", "void_within", "void", "iteration_seconds")
    return [replace(one, cause=f"{one.cause}; {words}") if one.measure in symptoms else one for one in found]
