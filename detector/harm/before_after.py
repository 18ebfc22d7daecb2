"""Before and after: whether a task or a machine does less in the blocks of time in which a reading deviates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.harm.share import DONE
from detector.stats.arrays import Bools, Ints
from detector.stats.robust import mad, shift_down
from store.schema.time import SECOND

YES, LOST, NO, UNKNOWN, WAIT = "yes", "lost", "no", "unknown", "wait"
"""Answers: it does harm; its task stands for it; it does none; nothing tells; nothing tells yet."""
SURE = 3.0
"""Standard errors of a loss of pace, at the first look, and of what a machine does less."""
LEAST_LOSS = 0.01
_LEAST_ERROR = 0.002
_BEST = 3
"""Signals of the pace that are asked: those that are known best, and others as well as these."""
ON_BLOCKS, OFF_BLOCKS = 2, 6
"""Blocks of time with and without the deviation that it takes to compare them."""
_DOES_LESS = 0.1
SIDE, _NEAR_NS = 12, 15 * SECOND
"""Blocks before and after a fall that are compared, and how near to it another begins that is the same."""
_LEAST_FALL, _CLEARLY, _SURE_FALL = 0.03, 1.5, 4.0


def are_enough(on: Bools) -> bool:
    """Whether there are blocks enough with and without to compare them."""
    return bool(on.sum() >= ON_BLOCKS and (~on).sum() >= OFF_BLOCKS)


def slower(logs: NDArray[Any], on: Bools, least: float = LEAST_LOSS, sure: float = SURE) -> str:
    """Whether a task goes slower when `on`, by logarithms of its pace [block, signal].

    `least` is the least logarithm of the loss that counts, `sure` its standard errors.
    """
    logs = _both_known(logs, on)
    if not logs.shape[1]:
        return UNKNOWN
    shift = shift_down(logs, on, _LEAST_ERROR)
    best = shift.error <= np.sort(shift.error)[:_BEST][-1]
    size, z = float(np.median(shift.size[best])), float(np.median(shift.z[best]))
    looks = 2 * np.log(on.sum())  # the longer it is on, the more often it was asked
    if z > np.sqrt(sure**2 + looks) and size > least:
        return YES
    highest = float((shift.size[best] + 2 * shift.error[best]).min())
    return NO if highest < 2 * least else UNKNOWN


def does_less(mine: NDArray[Any], on: Bools) -> bool:
    """Whether a machine gets less done than its peers by most of what tells, and did not before; of two, by both.

    `mine` [block, signal] are differences from the peers, as shares of what they do.
    """
    done = _both_known(mine[:, DONE] if mine.shape[1] else mine, on)
    if not done.shape[1]:
        return False
    shift = shift_down(done, on, _LEAST_ERROR)
    less = (shift.size > _DOES_LESS) & (shift.z > SURE) & (np.nanmean(done[on], axis=0) < 0)
    return bool(2 * less.sum() > len(less))


def _both_known(series: NDArray[Any], on: Bools) -> NDArray[Any]:
    """Those series [block, series] that are known in half of the blocks, with and without."""
    known = ~np.isnan(series)
    return series[:, (known[on].mean(0) >= 0.5) & (known[~on].mean(0) >= 0.5)]


def fell_at(level: NDArray[Any], times: Ints, time: int, block_ns: int) -> bool:
    """Whether the largest fall of a level [block] at `times` (Unix ns) is at this time, and greater than its noise.

    The means of a minute before and after are compared; blocks may be missing.
    """
    total = np.append(0.0, level.cumsum())
    split = np.arange(SIDE, len(level) - SIDE // 3 + 1)
    after = np.minimum(split + SIDE, len(level))
    fall = (total[split] - total[split - SIDE]) / SIDE - (total[after] - total[split]) / (after - split)
    apart = np.abs(times[np.minimum(split, len(level) - 1)] - time)
    here, beside, beyond = apart <= _NEAR_NS, apart > _NEAR_NS, apart > SIDE * block_ns
    most = float(fall[here].max(initial=0.0))
    others = float(fall[beside].max(initial=0.0)), _CLEARLY * float(np.abs(fall[beyond]).max(initial=0.0))
    noise = _SURE_FALL * mad(np.diff(level)) / np.sqrt(SIDE)
    return most > max(_LEAST_FALL, float(noise), *others)
