"""Logs of operators as the model is fitted on: which iterations are irregular, what is usual, and the features.

After Holmes (NSDI'25); `analysis/operators/` judges logs with the model. Arrays are [operator, rank].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.attribution.features import IRREGULAR_RATIO, OperatorBaseline, OperatorInfo, features
from detector.stats.arrays import Floats, Ints
from detector.stats.grouped import mean_of


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
