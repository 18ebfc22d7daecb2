"""Which operations of an irregular iteration are abnormal: the forest's word, with thresholds that follow the log.

After Holmes (NSDI'25): the forest was fitted on other logs; before it judges this one, the thresholds of features that
are distributed differently here are moved along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.operators.iterations import Log
from detector.attribution.features import ABNORMAL, FEATURES, IRREGULAR_RATIO, OperatorBaseline, OperatorInfo, features
from detector.attribution.forest import Forest
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.grouped import mean_of

MOST_ITERATIONS = 8
"""Long iterations that are judged, the longest."""
_NOISE = 2.5  # times the distance of the usual iteration from the shortest: less may be noise


@dataclass(frozen=True, slots=True)
class Judged:
    """One long iteration."""

    iteration: int
    abnormal: Bools
    """[column]"""
    excess: Floats
    """[column], seconds longer than usual; nothing below 0."""


def usual_seconds(seconds: Floats) -> float:
    """What an iteration usually takes: the median of the shorter half."""
    return float(np.median(np.sort(seconds)[: max(1, len(seconds) // 2)]))


def irregular(seconds: Floats) -> Bools:
    """[iteration]: whether it took longer than usual, by IRREGULAR_RATIO and by more than iterations differ anyway."""
    usual = usual_seconds(seconds)
    return np.asarray(seconds > max(IRREGULAR_RATIO * usual, usual + _NOISE * (usual - seconds.min())))


def calm(seconds: Floats) -> Bools:
    """[iteration]: whether it is as long as usual: no further above that than the shortest one is below."""
    usual = usual_seconds(seconds)
    return np.asarray(seconds <= 2 * usual - seconds.min())


def long(seconds: Floats) -> Ints:
    """The iterations to judge, in order: the longest; none where no iteration is irregular.

    Where one is irregular, others may be of the same cause that noise leaves just below the limit, so they count from
    IRREGULAR_RATIO on: a cause is known by coming back.
    """
    usual = usual_seconds(seconds)
    some = np.flatnonzero((seconds > IRREGULAR_RATIO * usual) & ~calm(seconds) & irregular(seconds).any())
    return np.sort(some[np.argsort(-seconds[some], kind="stable")[:MOST_ITERATIONS]])


def judge(log: Log, forest: Forest) -> list[Judged]:
    """The longest iterations, with their abnormal operations; none where all are regular, or none is."""
    usual, chosen = np.flatnonzero(calm(log.iteration_seconds)), long(log.iteration_seconds).tolist()
    if not chosen or len(usual) < 2:
        return []
    summed, of = _summed(log)
    single, together = (_probabilities(one, usual, chosen, forest) for one in (log, summed))
    judged = []
    for place, iteration in enumerate(chosen):
        excess, sums = single.excess[place], together.probability[place][of] > ABNORMAL
        abnormal = (single.probability[place] > ABNORMAL) | (sums & (excess > single.between))
        judged.append(Judged(iteration, abnormal, np.maximum(excess, 0.0)))
    return judged


@dataclass(frozen=True, slots=True)
class _Probabilities:
    """Of each chosen iteration, [iteration, column]."""

    probability: Floats
    excess: Floats
    """Seconds over the mean."""
    between: Floats
    """[column]: the usual distance of the quartiles, seconds."""


def _summed(log: Log) -> tuple[Log, Ints]:
    """The log with all operations of a rank that are alike (of each micro-batch) added up, and each column's sum.

    A wait that repeats in every micro-batch is short each time, and long in all.
    """
    keys = np.stack([log.rank, log.communicator, log.kind])
    found, first, of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    of = of.reshape(-1)
    filled = np.where(np.isnan(log.elapsed), np.nanmedian(log.elapsed, 0), log.elapsed)
    sums = np.zeros((len(filled), found.shape[1]))
    np.add.at(sums.T, of, filled.T)
    cell = np.unique(found[1:], axis=1, return_inverse=True)[1].reshape(-1)
    each = {name: getattr(log, name)[first] for name in ("rank", "order", "communicator", "kind", "size", "paired")}
    return replace(log, elapsed=sums, cell=cell, **each), of


def _probabilities(log: Log, regular: Ints, chosen: list[int], forest: Forest) -> _Probabilities:
    usual = _baseline(log.elapsed[regular], float(log.iteration_seconds[regular].mean()))
    low, middle, high = np.percentile(_features(log, int(regular[-1]), usual), [25, 50, 75], axis=0)
    tuned = forest.tuned(middle, high - low)
    probability, excess = np.zeros((2, len(chosen), len(log.rank)))
    for place, iteration in enumerate(chosen):
        samples = _features(log, iteration, usual)
        asked = np.flatnonzero(samples[:, FEATURES.index("fences")] > 0)  # others are normal without asking
        probability[place, asked] = tuned.probability(samples[asked])
        excess[place] = samples[:, FEATURES.index("relative")] * float(usual.iteration)
    return _Probabilities(probability, excess, usual.between)


def _baseline(calm: Floats, iteration: float) -> OperatorBaseline:
    middle = np.nan_to_num(np.nanmedian(calm, 0))
    some = np.sort(np.where(np.isnan(calm), middle, calm), 0)
    low, high = (some[int(share * (len(some) - 1))] for share in (0.25, 0.75))
    return OperatorBaseline(some.mean(0), some.std(0), high, high - low, np.array(iteration))


def _features(log: Log, iteration: int, usual: OperatorBaseline) -> Floats:
    elapsed = np.where(np.isnan(log.elapsed[iteration]), usual.mean, log.elapsed[iteration])
    base = float(usual.iteration)
    longer = max(float(log.iteration_seconds[iteration]) - base, 0.01 * base)
    about = OperatorInfo(log.size, log.paired, mean_of(log.cell, elapsed - usual.mean))
    return features(elapsed, usual, longer, about)
