"""Loss: whether a task goes slower while a machine deviates, in the time that nothing else explains."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.harm.before_after import LEAST_LOSS, NO, SURE, UNKNOWN, YES, are_enough, slower
from detector.harm.blamed import Blamed
from detector.harm.pace import STANDS, Pace, beside
from detector.model.kinds import is_state
from detector.model.verdict import Verdict
from detector.stats.arrays import Bools
from store.schema.time import SECOND

_SURE_OF_LITTLE = 4.0
"""Standard errors of a loss of pace for which a small difference is the cause: there are many small differences."""
_AT_ONCE_NS = 90 * SECOND
"""The time in which a task loses pace if a small difference is the cause."""


def goes_slower(pace: Pace, blamed: Blamed, verdict: Verdict, on: Bools) -> str:
    """Whether the task does when `on` [block], of the time in which it runs and no other machine had an incident."""
    return _answer(pace, verdict, on, _counts(pace, blamed, verdict), SURE)


def slower_at_once(pace: Pace, blamed: Blamed, verdict: Verdict, on: Bools) -> str:
    """Whether the task goes slower when `on` [block], and did so in its first minute and a half already.

    Blocks in which a pause begins or ends, and those of earlier incidents of the same machine, do not count.
    """
    explained = blamed.before(verdict, pace.times)
    here = _counts(pace, blamed, verdict) & ~explained & ~beside(pace.paused(verdict.task))
    answer = _answer(pace, verdict, on, here, _SURE_OF_LITTLE)
    if answer != YES:
        return answer
    logs, first = pace.logs(verdict.task), here & (pace.times <= verdict.since + _AT_ONCE_NS)
    falls = [_fall(logs[those], on[those]) for those in (here, first)]
    return YES if min(falls) > LEAST_LOSS / 2 else NO


def is_remnant(pace: Pace, blamed: Blamed, verdict: Verdict) -> bool:
    """Whether a difference began in an incident of the same machine that is over: it is what is left of that."""
    explained = blamed.before(verdict, pace.times)
    return bool(explained[np.searchsorted(pace.times, verdict.since) :][:1].any())


def _counts(pace: Pace, blamed: Blamed, verdict: Verdict) -> Bools:
    """[block]: whether the task runs, and no other machine of it has an incident."""
    counts: Bools = ~blamed.elsewhere(verdict, pace.times) & ~pace.unsettled(verdict.task)
    # Where a pause begins or ends the pace is lower by itself; only what a device is at may be why the task pauses.
    return counts if is_state(verdict.metric) else counts & ~beside(pace.paused(verdict.task, STANDS))


def _answer(pace: Pace, verdict: Verdict, on: Bools, here: Bools, sure: float) -> str:
    on = lingers(on, pace.iteration(verdict.task))
    return slower(pace.logs(verdict.task)[here], on[here], sure=sure) if are_enough(on[here]) else UNKNOWN


def lingers(on: Bools, blocks: int) -> Bools:
    """[block]: whether it was `on` in one of the last so many: the pace, averaged over as many, shows it until then.

    So what comes with a phase of a long iteration is not compared with the other phases of the same iteration.
    """
    total = np.append(0, np.cumsum(on))
    at = np.arange(1, len(total))
    lasting: Bools = total[at] > total[np.maximum(at - blocks, 0)]
    return lasting


def _fall(logs: NDArray[Any], on: Bools) -> float:
    """By how much the logarithms [block, signal] are lower when `on`; minus infinity where nothing tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of signals that are not known
        fall = float(np.nanmedian(np.nanmean(logs[~on], axis=0) - np.nanmean(logs[on], axis=0)))
    return -np.inf if np.isnan(fall) else fall
