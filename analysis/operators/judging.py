"""Which operations of an irregular iteration are abnormal, by the detector's forest with thresholds that follow the log.

After Holmes (NSDI'25): the forest was fitted on other logs; before it judges this one, the thresholds of features that
are distributed differently here are moved along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.operators.iterations import Log
from detector.attribution.features import ABNORMAL, IRREGULAR_RATIO, OperatorBaseline, OperatorInfo, features
from detector.attribution.forest import Forest
from detector.stats.arrays import Bools, Floats
from detector.stats.grouped import mean_of

MOST_ITERATIONS = 8
"""Irregular iterations that are judged, the longest."""
_NOISE = 4.0  # times the distance of the usual iteration from the shortest: less may be noise


@dataclass(frozen=True, slots=True)
class Judged:
    """One irregular iteration."""

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


def judge(log: Log, forest: Forest) -> list[Judged]:
    """The longest irregular iterations, with their abnormal operations; none where all are regular, or none is."""
    wrong = irregular(log.iteration_seconds)
    calm = np.flatnonzero(~wrong)
    if not wrong.any() or len(calm) < 2:
        return []
    usual = _baseline(log.elapsed[calm], float(log.iteration_seconds[calm].mean()))
    low, middle, high = np.percentile(_features(log, int(calm[-1]), usual), [25, 50, 75], axis=0)
    tuned = forest.tuned(middle, high - low)
    longest = np.argsort(-log.iteration_seconds, kind="stable")[: min(MOST_ITERATIONS, int(wrong.sum()))]
    return [_judged(log, int(one), usual, tuned) for one in sorted(longest.tolist())]


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


def _judged(log: Log, iteration: int, usual: OperatorBaseline, forest: Forest) -> Judged:
    samples = _features(log, iteration, usual)
    elapsed = np.where(np.isnan(log.elapsed[iteration]), usual.mean, log.elapsed[iteration])
    abnormal = np.zeros(len(samples), bool)
    asked = np.flatnonzero(samples[:, 2] > 0)  # what is within its usual quartiles is normal without asking
    abnormal[asked] = forest.probability(samples[asked]) > ABNORMAL
    return Judged(iteration, abnormal, np.maximum(elapsed - usual.mean, 0.0))
