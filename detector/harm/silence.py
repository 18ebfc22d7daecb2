"""Silence: whether a machine without readings is lost, or it is its agent that is."""

from __future__ import annotations

import numpy as np

from detector.harm.before_after import LOST, NO, OFF_BLOCKS, WAIT, YES, slower
from detector.harm.pace import PAUSES, Pace
from detector.methods.evidence.heartbeats import CLUE, LOST_NS, SHARED
from detector.model.verdict import Verdict
from detector.stats.arrays import Bools
from store.schema.time import SECOND

_STANDS, _STANDS_NS = 0.7, 10 * SECOND
"""A task that lost half of its pace, and for so long, since a machine fell silent waits for it ..."""
_BEFORE_NS, _AFTER_NS = 15 * SECOND, 30 * SECOND
"""... if it stopped so long before or after that at most: one that goes on without its readings does not wait."""
_UNSEEN_NS = 120 * SECOND
"""So long a silence has to last where nothing tells the pace."""
_RESTART_NS = 150 * SECOND
"""So long an agent restarts at most: for one that is silent for longer it does not matter how long the task pauses."""
_UNPACED_NS = 180 * SECOND
"""So long a silence has to last where no reading tells the pace, or for too short a time to know the usual one."""
_ROWS_NS, _AGENT_NS = 30 * SECOND, 60 * SECOND
"""So long rows are missing by chance as a task stands: of one device, as there are many, and of a machine, or of all
its devices, as an agent restarts or one of its sources is slow."""
_RECENT = 6
"""Blocks without a known pace: the task has not begun, or has ended."""


def judge_silence(verdict: Verdict, now: int, pace: Pace, unexplained: Bools) -> str:
    """A machine that is silent is lost if its task stands since then, not before; else it is its agent that is."""
    if verdict.device is not None and verdict.level != "note":
        return YES
    shared = verdict.score == SHARED
    if not pace.logs(verdict.task).size:
        restarts = not shared and now - verdict.since < _UNPACED_NS
        return WAIT if verdict.level == "note" or restarts else YES
    if not shared and np.isnan(pace.logs(verdict.task)[-_RECENT:]).all():  # it has not begun, or has ended
        return WAIT if now - verdict.since < (LOST_NS if verdict.level == "note" else _UNSEEN_NS) else YES
    on, logs = pace.times > verdict.since, pace.logs(verdict.task)
    stands, runs = pace.stands_since(verdict.task), ~pace.paused(verdict.task)
    if (
        stands is not None
        and now - stands >= _STANDS_NS
        and _waits_for(pace, verdict, stands, now, unexplained)
        and (runs & ~on).sum() >= OFF_BLOCKS
        and slower(logs[runs | on], on[runs | on], _STANDS) == YES
        and now - verdict.since > _longest_ns(pace, verdict)
    ):
        return LOST
    if now - verdict.since > LOST_NS and not shared:
        return YES
    early = verdict.level == "note" and (not shared or now - verdict.since < _AFTER_NS)
    return WAIT if early else NO


def _waits_for(pace: Pace, verdict: Verdict, stands: int, now: int, unexplained: Bools) -> bool:
    """Whether the task stopped with the machine or device, or a machine that fell silent later keeps it from starting.

    A fault that is known elsewhere explains a short silence, and any that began after the task had stopped.
    """
    during = pace.times > verdict.since
    explained = not (unexplained[during].all() if verdict.device else unexplained[during].any())
    if _stopped_with(pace, verdict, stands):
        return not explained or now - verdict.since > _RESTART_NS
    whole = verdict.device is None and verdict.score != SHARED
    return whole and not explained and _keeps_from_starting(pace, verdict, stands, now)


def _stopped_with(pace: Pace, verdict: Verdict, stands: int) -> bool:
    """Whether the task stopped as the machine fell silent."""
    shows_ns = pace.rhythm_ns(verdict.task) + pace.step_ns()  # its peers end what they are at before they wait
    near = -_BEFORE_NS <= stands - verdict.since <= _AFTER_NS + shows_ns
    return near and not pace.stood_before(verdict.task, verdict.since)


def _keeps_from_starting(pace: Pace, verdict: Verdict, stands: int, now: int) -> bool:
    """Whether the machine fell silent in a pause that does not end since then: no agent restarts for so long."""
    longest = PAUSES * pace.longest_pause(verdict.task, verdict.since)
    return stands < verdict.since and now - verdict.since > _RESTART_NS and now - stands > longest


def _longest_ns(pace: Pace, verdict: Verdict) -> float:
    """How long (ns) rows are missing for another reason while the task stands; an iteration tells nothing either."""
    pause = PAUSES * pace.longest_pause(verdict.task, verdict.since)
    one_of_several = verdict.device is not None and verdict.score != CLUE
    chance = _ROWS_NS if one_of_several else 0 if verdict.score == SHARED else _AGENT_NS
    return max(min(pause, _RESTART_NS), pace.rhythm_ns(verdict.task), chance)
