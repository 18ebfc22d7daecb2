"""Rhythm: over how many blocks of time a task's pace has to be averaged not to show its single iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
_LONGEST, _OFTEN, _SWINGS = 12, 0.8, 0.03
"""Blocks that one iteration may last; the share of swings that is looked at, pauses are more; swings that matter."""
_PRICE, _NEAR = 0.25, 1.5
"""The power of a mean's length that is its price; how near to the least is near."""


def rhythm(shares: Floats) -> int:
    """Over how many blocks the pace [block, signal] has to be averaged not to show single iterations.

    An iteration that is longer than a block makes the pace swing. Of averages over one to a dozen blocks the shortest
    is taken that has nearly the least Allan deviation, times a price for its length, in most signals: for noise without
    a rhythm that is a few blocks at most. A lasting change, unlike a swing, hardly counts in it.
    """
    longest = min(_LONGEST, len(shares) // 4)
    if longest < 2:
        return 1
    held = np.clip(np.nan_to_num(shares, nan=1.0), 0.0, 2.0)
    total = np.vstack([np.zeros(held.shape[1]), held.cumsum(axis=0)])
    swings = np.empty((longest, held.shape[1]))
    for at in range(longest):
        mean = (total[at + 1 :] - total[: -at - 1]) / (at + 1)
        swings[at] = np.quantile(np.abs(mean[at + 1 :] - mean[: -at - 1]), _OFTEN, axis=0)
    swinging = swings[:, swings[0] > _SWINGS]
    if 2 * swinging.shape[1] <= held.shape[1]:
        return 1
    cost = np.median(swinging / swinging[0], axis=1) * np.arange(1, longest + 1) ** _PRICE
    return int(np.argmax(cost <= _NEAR * cost.min())) + 1


def trailing_mean(values: Floats, length: int) -> Floats:
    """The mean of the last `length` blocks [block, signal], unknown ones left out; unknown where the block is."""
    if length == 1:
        return values
    known = ~np.isnan(values)
    total, count = (np.cumsum(part, axis=0) for part in (np.nan_to_num(values), known))
    total[length:], count[length:] = total[length:] - total[:-length], count[length:] - count[:-length]
    return np.where(known, total / np.maximum(count, 1), np.nan)
