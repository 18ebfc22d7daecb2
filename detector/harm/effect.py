"""Effect: what a task, and a machine's part of it, does while something deviates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.harm.before_after import NO, UNKNOWN, YES, are_enough, does_less
from detector.harm.blamed import Blamed
from detector.harm.deviations import Odd
from detector.harm.loss import goes_slower
from detector.harm.pace import BLOCK_NS, PAUSES, Pace
from detector.harm.share import LEAST, Share
from detector.harm.stalls import WRITES_NS
from detector.model.kinds import is_system, is_work
from detector.model.verdict import Verdict
from detector.stats.arrays import Bools
from store.schema.time import SECOND

LASTS_NS = 30 * SECOND
"""So long the pace is lower before a mostly harmless event is taken for its cause, or a machine does less."""
_LASTS_ALONE_NS = 120 * SECOND
"""The same of a machine that does less while its task goes on as before: the task is not synchronous."""
_SYSTEM_LASTS_NS = 50 * SECOND
"""So long a reading of a machine's own system is off before its harm is plain."""
UNSEEN_NS = 120 * SECOND
"""So long a deviation has to last where nothing tells the pace well enough."""
IDLES_NS = 120 * SECOND
"""So long a GPU has to have less to do than all its peers, to be what they wait for."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What it is measured by."""

    pace: Pace
    share: Share
    odd: Odd
    blamed: Blamed

    def harmed(self, verdict: Verdict, on: Bools) -> str:
        """Whether the task goes slower when `on` [block], or the machine's part of it is less then."""
        moves = ~self.pace.paused(verdict.task)
        answer = goes_slower(self.pace, self.blamed, verdict, on)
        least = _LASTS_ALONE_NS if answer == NO else LASTS_NS
        lasts = self._lasts(verdict, on & moves) >= least
        if lasts and are_enough(on[moves]) and does_less(self._mine(verdict.machine)[moves], on[moves]):
            return YES
        if answer == UNKNOWN and not is_work(verdict.metric) and self.is_held_up(verdict, on):
            return YES
        return answer

    def is_held_up(self, verdict: Verdict, on: Bools, least: float = LEAST) -> bool | None:
        """Whether the machine's GPUs have less to do than those of any other when `on`; None: nothing tells."""
        runs, iteration = ~self.pace.paused(verdict.task), self.pace.iteration(verdict.task)
        return self.share.held_up(verdict.machine, on, runs, iteration, least)

    def is_plain(self, verdict: Verdict, on: Bools) -> bool:
        """Whether the task goes slower, or the machine is held up, when `on` [block], for half a minute at least.

        Of a machine's own system for longer: other work takes its processors for as long as that.
        """
        moves = ~self.pace.paused(verdict.task)
        if self._lasts(verdict, on & moves) < (_SYSTEM_LASTS_NS if is_system(verdict.metric) else LASTS_NS):
            return False
        return goes_slower(self.pace, self.blamed, verdict, on) == YES or self.is_held_up(verdict, on) is True

    def idles(self, verdict: Verdict, on: Bools, now: int) -> bool:
        """Whether a machine's GPUs have less to do than those of any other for minutes: so its peers wait for it."""
        if now - verdict.since < IDLES_NS:
            return False
        return self.is_held_up(verdict, on) is True

    def fell_with(self, verdict: Verdict, now: int) -> bool:
        """Whether the task's pace fell when this began, and stays low; and the same began on no other machine."""
        if now - verdict.since < UNSEEN_NS or not self.pace.fell_at(verdict.task, verdict.since):
            return False
        if self.odd.began_elsewhere(verdict, self.share):
            return False  # a job of several machines
        return goes_slower(self.pace, self.blamed, verdict, self.pace.times > verdict.since) == YES

    def ran_for(self, task: str, on: Bools, longest: int) -> int:
        """For how long (ns) the task ran while `on` [block], as far as its pace tells; at most `longest`."""
        if not self.is_paced(task):
            return longest
        ran = on & ~self.pace.paused(task) & ~self.pace.unsettled(task)
        return min(longest, self.lasts(ran))

    def lasts(self, on: Bools) -> int:
        """For how long (ns) something is `on` [block], in all."""
        return int(on.sum()) * max(BLOCK_NS, self.pace.step_ns())

    def stands_long(self, verdict: Verdict) -> bool:
        """Whether a task stands for longer than one rank writes the checkpoint of all."""
        longest = self.pace.longest_pause(verdict.task, verdict.since)
        return bool(self.pace.times[-1] - verdict.since >= max(WRITES_NS, PAUSES * longest))

    def rests(self, task: str) -> bool:
        """Whether the task stands in the latest block."""
        return bool(self.pace.paused(task)[-1:].any())

    def is_paced(self, task: str) -> bool:
        """Whether any reading tells the pace of the task."""
        return self.pace.logs(task).size > 0

    def _lasts(self, verdict: Verdict, on: Bools) -> int:
        """For how long (ns) since it began a deviation is `on` [block]."""
        return self.lasts(on & (self.pace.times > verdict.since))

    def _mine(self, machine: str) -> NDArray[Any]:
        """[block, signal]: the machine's part of the task, beside its peers."""
        at = self.share.machines.get(machine)
        return self.share.values[:, at] if at is not None else np.zeros((len(self.pace.times), 0))
