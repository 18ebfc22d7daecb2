"""Operators: which GPU or link makes some iterations longer, from how long each communication operator took.

After Holmes (NSDI'25): irregular iterations are found; a forest finds their abnormal operators; in each
communicator a single normal rank among abnormal ones is the one that they waited for; where all are abnormal, the
communication itself is slow; a rank that waited for others before is a victim. The shares are summed over iterations,
and the two devices with the most are named. All ranks are judged at once: arrays are [operator, rank].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.attribution.features import ABNORMAL, IRREGULAR_RATIO, OperatorBaseline, OperatorInfo, blame, features
from detector.attribution.forest import Forest
from detector.stats.arrays import Floats, Ints
from detector.stats.grouped import mean_of

MOST_ITERATIONS = 8
"""Irregular iterations that are looked at, the longest."""
TOP = 2


@dataclass(frozen=True, slots=True)
class Log:
    """Operators of some iterations, in the order in which every rank calls them."""

    elapsed: NDArray[np.floating[Any]]
    """[iteration, operator, rank], seconds; NaN where a rank has no such operator."""
    group: Ints
    """[operator, rank]: the communicator."""
    size: Floats
    """[operator], bytes."""
    paired: NDArray[np.bool_]
    """[operator]: whether it is made of sends and receives, in which a rank waits for those before it only."""
    iteration_seconds: Floats


@dataclass(frozen=True, slots=True)
class Suspect:
    """A device, and the time that it cost the others, in seconds added up."""

    rank: int
    kind: str
    """gpu: the rank came late; link: its communication is slow."""
    score: float


def irregular(seconds: Floats, delta: float = IRREGULAR_RATIO) -> NDArray[np.bool_]:
    """[iteration]: whether it took more than `delta` times as long as the usual ones, which are the shorter half."""
    usual = float(np.median(np.sort(seconds)[: max(1, len(seconds) // 2)]))
    found: NDArray[np.bool_] = seconds > delta * usual
    return found


def usual_of(log: Log, calm: NDArray[np.bool_]) -> OperatorBaseline:
    """What is usual, from the calm iterations."""
    some = np.sort(log.elapsed[calm], 0).astype(np.float64)
    low, high = (some[int(share * (len(some) - 1))] for share in (0.25, 0.75))
    return OperatorBaseline(some.mean(0), some.std(0), high, high - low, log.iteration_seconds[calm].mean())


def features_of(log: Log, iteration: int, usual: OperatorBaseline) -> Floats:
    """[operator and rank, feature] of one iteration, in the order of FEATURES."""
    elapsed = log.elapsed[iteration].astype(np.float64)
    excess = elapsed - usual.mean
    longer = max(float(log.iteration_seconds[iteration]) - float(usual.iteration), 0.01 * float(usual.iteration))
    shared = np.stack([mean_of(group, excess[place]) for place, group in enumerate(log.group)])
    return features(elapsed, usual, longer, OperatorInfo(log.size[:, None], log.paired[:, None], shared))


def analyse(log: Log, forest: Forest) -> list[Suspect]:
    """The devices that most likely make iterations irregular, at most TOP; none where no iteration is."""
    wrong = irregular(log.iteration_seconds)
    if not wrong.any() or wrong.all():
        return []
    usual = usual_of(log, ~wrong)
    forest = _tuned(forest, log, usual, ~wrong)
    ranks = log.elapsed.shape[2]
    late, slow = np.zeros(ranks), np.zeros(ranks)
    longest = np.argsort(-log.iteration_seconds)[:MOST_ITERATIONS]
    for iteration in longest[wrong[longest]]:
        samples = features_of(log, int(iteration), usual)
        # What is no longer than usual is normal without asking: most of them.
        asked = np.flatnonzero(samples[:, 2] > 0)
        abnormal = np.zeros(len(samples), bool)
        abnormal[asked] = forest.probability(samples[asked]) > ABNORMAL
        shape = log.elapsed.shape[1:]
        excess = np.maximum(samples[:, 4].reshape(shape) * usual.iteration, 0.0)
        one, other = _blame(log, abnormal.reshape(shape), excess)
        late, slow = late + one, slow + other
    scores = [(float(late[at]), int(at), "gpu") for at in np.argsort(-late)[:TOP]]
    scores += [(float(slow[at]), int(at), "link") for at in np.argsort(-slow)[:TOP]]
    return [Suspect(at, kind, score) for score, at, kind in sorted(scores, reverse=True)[:TOP] if score > 0]


def _tuned(forest: Forest, log: Log, usual: OperatorBaseline, calm: NDArray[np.bool_]) -> Forest:
    last = int(np.flatnonzero(calm)[-1])
    low, middle, high = np.percentile(features_of(log, last, usual), [25, 50, 75], axis=0)
    return forest.tuned(middle, high - low)


def _blame(log: Log, abnormal: NDArray[np.bool_], excess: Floats) -> tuple[Floats, Floats]:
    """[rank]: seconds that others waited for it, and seconds that its communication took too long."""
    ranks = abnormal.shape[1]
    late, slow, waited = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    for place, group in enumerate(log.group):
        wrong = abnormal[place]
        if wrong.any() and not log.paired[place]:
            one, other = blame(group, wrong, excess[place], waited)
            late, slow = late + one, slow + other
        waited += np.where(wrong, excess[place], 0.0)
    return late, slow
