"""Fall: when a task lost pace in the last minutes, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.harm.pace import STANDS, Pace
from detector.harm.search.readings import BEFORE, KNOWN, LEAST, MOST, ROW_NS, SOON
from detector.stats.arrays import Bools, Ints
from detector.stats.robust import shift_down

_LEAST_LOSS, _SURE = 0.02, 4.0
"""The least loss of pace, as a logarithm, and its standard errors."""
GREAT = 0.1
"""A loss of pace, as a logarithm, that is looked at sooner."""
_LEAST_ERROR = 0.003
_BEST = 3
_NEAR = 2
"""Rows between which the beginning of a loss is looked for, before and after where it is taken to be."""


@dataclass(frozen=True, slots=True)
class Fall:
    """A task that lost pace."""

    since: int
    """Unix ns."""
    size: float
    """The loss, as a logarithm."""
    rows: int
    """Rows since then."""


def lost_pace(task: str, pace: Pace, ends: Ints, known: Fall | None, begin: int, great: bool) -> Fall | None:
    """The loss of pace of a task that began in the last minutes and lasts; None: there is none.

    A fall that is `known` is looked at again with what came since: when it began is known better then. What was
    before `begin` (Unix ns) does not count. Rows of readings end at `ends` (Unix ns). A new one may have to be `great`.
    """
    if known:
        return _lost(task, pace, ends, int((ends > known.since).sum()), begin)
    return _lost(task, pace, ends, SOON, begin) or (None if great else _lost(task, pace, ends, LEAST, begin))


def _lost(task: str, pace: Pace, ends: Ints, rows: int, begin: int) -> Fall | None:
    """The same, about so many rows ago."""
    logs, runs = pace.logs(task), ~pace.paused(task, STANDS)
    times = pace.times - pace.delay(task)
    if not logs.shape[1] or rows > MOST or len(ends) <= rows + BEFORE:
        return None
    those = runs & (times > max(ends[-min(len(ends), rows + 2 * BEFORE + 1)], begin))
    since = _split(ends, rows, times[those], np.nanmedian(logs[those], axis=1))
    on = times[those] > since
    rows = int((ends > since).sum())
    if on.sum() * pace.step_ns() < KNOWN * rows * ROW_NS or (~on).sum() < BEFORE:
        return None
    size = _loss(logs[those], on)
    return Fall(since, size, rows) if size > (0 if rows >= LEAST else GREAT) else None


def _split(ends: Ints, rows: int, times: Ints, level: NDArray[Any]) -> int:
    """The end of a row, near so many rows ago, before and after which the level differs most."""
    best, most = int(ends[-rows - 1]), -1.0
    for at in range(max(min(rows, LEAST), rows - _NEAR), min(rows + _NEAR + 1, len(ends) - BEFORE)):
        since = int(ends[-at - 1])
        on = times > since
        if 0 < on.sum() < len(on):
            gain = float(np.nanmean(level[~on]) - np.nanmean(level[on])) * np.sqrt(on.sum() * (~on).sum())
            best, most = (since, gain) if gain > most else (best, most)
    return best


def _loss(logs: NDArray[Any], on: Bools) -> float:
    """The loss of pace (a logarithm) by the signals that are known best, if it is sure and lasts; else 0."""
    known = ~np.isnan(logs)
    logs = logs[:, (known[on].mean(0) >= 0.5) & (known[~on].mean(0) >= 0.5)]
    if not logs.shape[1]:
        return 0.0
    shift = shift_down(logs, on, _LEAST_ERROR)
    best = np.argsort(-shift.z)[: max(1, min(_BEST, logs.shape[1]))]
    size, z = float(np.median(shift.size[best])), float(np.median(shift.z[best]))
    late = on & (np.arange(len(on)) >= len(on) - on.sum() // 2)
    lasts = float(np.median(np.nanmean(logs[~on][:, best], axis=0) - np.nanmean(logs[late][:, best], axis=0)))
    return size if z > _SURE and size > _LEAST_LOSS and lasts > size / 2 else 0.0
