"""Harm: whether the task suffers from what is found on a machine; it decides whether that is said or noted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.harm.deviations import Deviations
from detector.harm.pace import BLOCK_NS, SPAN_NS, STANDS, Pace
from detector.harm.share import BUSY, DONE, Share
from detector.harm.standstill import Standstill
from detector.methods.peers.state import Panel
from detector.model.kinds import is_capacity, is_host, is_known, is_state, is_symptom, is_work
from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Bools
from detector.stats.robust import shift_down
from store.schema.time import SECOND

Key = tuple[str, str, str, str, str]
Place = tuple[str, str, str]
SILENT = "event.silent"
YES, LOST, NO, UNKNOWN, WAIT = "yes", "lost", "no", "unknown", "wait"
"""Answers: it does harm; its task stands for it; it does none; nothing tells; nothing tells yet."""
_SURE, _SURE_SHARE = 3.0, 5.0
"""Standard errors of a loss of pace, of a change of a machine's own part."""
_LEAST_LOSS, _LEAST_SHARE = 0.01, 0.005
_LEAST_ERROR = 0.002
_BEST = 3
"""Signals of the pace that are asked: those that are known best."""
_ON, _OFF = 2, 6
"""Blocks of time with and without the deviation that it takes to compare them."""
_LASTS = 6
"""Blocks for which the pace must be lower before an event that is mostly harmless is taken for its cause."""
_STANDS, _STANDS_BLOCKS = 0.7, 3
"""A task that lost half of its pace for so many blocks since a machine fell silent waits for it ..."""
_PAUSES = 1.5
"""... if that is so many times longer than it paused before, as for a checkpoint."""
_RECENT = 6
"""Blocks in which a reading deviates once at least, as long as it does at all."""
_HELD_NS = 60 * SECOND
"""What did harm a moment ago does it still."""
_DEVIATES = 0.8
_DOES_LESS = 0.1
_UNSEEN_NS = 120 * SECOND
"""So long a deviation has to last where nothing tells the pace well enough."""
_GONE_NS = 300 * SECOND
"""A machine that is silent for longer is missed, whether or not its task goes on."""


@dataclass(slots=True)
class Harm:
    """The memory of it."""

    pace: Pace = field(default_factory=Pace)
    share: Share = field(default_factory=Share)
    deviations: dict[str, Deviations] = field(default_factory=dict)
    standstill: Standstill = field(default_factory=Standstill)
    answers: dict[Key, str] = field(default_factory=dict)
    """What was found out in this block of time."""
    blamed: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """By task and machine, the spans (Unix ns) of its incidents: what the pace was then says nothing of others."""
    harmful: dict[Place, int] = field(default_factory=dict)
    """Task, machine and device of findings that do harm: when (Unix ns) they were there last."""

    def note(self, now: int, panels: Mapping[str, Panel], config: Config) -> None:
        """Take in how things stand at `now` (Unix ns), once a block of time."""
        if not self.pace.due(now):
            return
        self.answers.clear()
        self.harmful = {place: seen for place, seen in self.harmful.items() if now - seen < _HELD_NS}
        self.pace.note(now, panels)
        self.share.note(panels, len(self.pace.times))
        for name, panel in panels.items():
            self.deviations.setdefault(name, Deviations()).note(now, panel.strength, SPAN_NS)
        self.standstill.note(now, self.pace, panels, config)

    def blame(self, now: int, opened: Iterable[Verdict]) -> None:
        """Remember which incidents are open at `now` (Unix ns), for as long as the pace of that time is remembered."""
        for verdict in opened:
            spans = self.blamed.setdefault((verdict.task, verdict.machine), [])
            if spans and spans[-1][0] == verdict.since:
                spans.pop()
            spans.append((verdict.since, now))
        oldest = now - SPAN_NS
        recent = ((key, [span for span in spans if span[1] > oldest]) for key, spans in self.blamed.items())
        self.blamed = {key: spans for key, spans in recent if spans}

    def _unexplained(self, verdict: Verdict) -> Bools:
        """[block]: whether no other machine of the task had an incident then."""
        free = np.ones(len(self.pace.times), bool)
        for (task, machine), spans in self.blamed.items():
            for start, end in spans if task == verdict.task and machine != verdict.machine else ():
                free &= (self.pace.times < start) | (self.pace.times > end + BLOCK_NS)
        return free

    def graded(self, finding: Finding, panels: Mapping[str, Panel], now: int) -> Finding | None:
        """The finding as it is to be said: as it is, as a note, or not yet (None)."""
        verdict = finding.verdict
        place = verdict.task, verdict.machine, verdict.device or ""
        key = *place, verdict.metric, verdict.level
        if key not in self.answers:
            self.answers[key] = YES if place in self.harmful else self._answer(finding, panels, now)
        answer = self.answers[key]
        if answer in (YES, LOST):
            self.harmful[place] = now
            return _at_least(finding, "crit" if answer == LOST else "warn")
        return None if answer == WAIT else replace(finding, verdict=replace(verdict, level="note"))

    def let_go(self, gone: Iterable[str]) -> None:
        """Forget machines that are gone for good."""
        self.share.let_go(gone)
        self.deviations.clear()

    def _answer(self, finding: Finding, panels: Mapping[str, Panel], now: int) -> str:
        verdict = finding.verdict
        if verdict.level == "note" and verdict.kind in ("peer", "progress"):
            return NO
        if verdict.metric == SILENT:
            return self._silence(verdict, now)
        if verdict.kind == "evidence":
            if verdict.level != "note":
                return YES
            return self._event(verdict) if verdict.metric.startswith("event.") else NO
        if finding.hard or verdict.kind == "progress" or is_capacity(verdict.metric):
            return YES
        if finding.small:
            return self._deviation(verdict, self.pace.times > verdict.since, now, True)
        return self._deviation(verdict, self._when(verdict, panels), now)

    def _deviation(self, verdict: Verdict, on: Bools, now: int, small: bool = False) -> str:
        """Of a reading that deviates from the peers' when `on` [block], or is a little off all that time (`small`)."""
        if is_symptom(verdict.metric):
            return NO
        if on.any() and not on[-_RECENT:].any():
            return WAIT  # it is over: what the task does since then is no effect of it
        if not is_state(verdict.metric) and self.pace.paused(verdict.task)[-1:].any():
            return WAIT
        if is_host(verdict.metric):
            held_up = self.share.held_up(verdict.machine, on, ~self.pace.paused(verdict.task))
            if held_up is not None:
                return YES if held_up or self.pace.fell_at(verdict.task, verdict.since) else NO
        answer = self._goes_slower(verdict, on) if small else self._harmed(verdict, on)
        told = self.pace.is_told_without(verdict.task, verdict.metric)
        if not told and (is_work(verdict.metric) or not self._is_paced(verdict.task)):
            return YES  # no reading is a witness in its own cause
        if answer != UNKNOWN:
            return answer
        if small or (is_known(verdict.metric) and not is_work(verdict.metric)):
            return UNKNOWN
        return YES if self._ran_for(verdict.task, on, now - verdict.since) >= _UNSEEN_NS else WAIT

    def _ran_for(self, task: str, on: Bools, longest: int) -> int:
        """For how long (ns) the task ran while `on` [block], as far as its pace tells; at most `longest`."""
        if not self._is_paced(task):
            return longest
        return min(longest, int((on & ~self.pace.paused(task)).sum()) * BLOCK_NS)

    def _harmed(self, verdict: Verdict, on: Bools) -> str:
        work, moves = is_work(verdict.metric), ~self.pace.paused(verdict.task)
        mine = self._mine(verdict.machine)[moves]
        if _are_enough(on[moves]) and (_does_less(mine, on[moves]) or (not work and _at_work_less(mine, on[moves]))):
            return YES
        return self._goes_slower(verdict, on)

    def _goes_slower(self, verdict: Verdict, on: Bools) -> str:
        """Whether the task does, of the time in which it runs and no other machine had an incident."""
        here = self._unexplained(verdict) & ~self.pace.paused(verdict.task, STANDS)
        return _slower(self.pace.logs(verdict.task)[here], on[here]) if _are_enough(on[here]) else UNKNOWN

    def _silence(self, verdict: Verdict, now: int) -> str:
        """A machine that is silent is lost if its task stands since then; else it is its agent that is."""
        if verdict.device is not None and verdict.level != "note":
            return YES
        if not self._is_paced(verdict.task):
            return WAIT if verdict.level == "note" else YES
        on, logs = self.pace.times > verdict.since, self.pace.logs(verdict.task)
        explained = not self._unexplained(verdict)[on].any()
        if not explained and on.sum() >= _STANDS_BLOCKS and (~on).sum() >= _OFF and _slower(logs, on, _STANDS) == YES:
            longest = self.pace.longest_pause(verdict.task, verdict.since)
            if self.pace.paused(verdict.task)[-1] and now - verdict.since > _PAUSES * longest:
                return LOST
        if now - verdict.since > _GONE_NS:
            return YES
        return WAIT if verdict.level == "note" else NO

    def _event(self, verdict: Verdict) -> str:
        """What is no fault by itself is one if the task, or the machine's part of it, suffers from then on."""
        on = self.pace.times > verdict.since
        if on.sum() < _LASTS:
            return NO
        return self._harmed(verdict, on)

    def _is_paced(self, task: str) -> bool:
        return self.pace.logs(task).size > 0

    def _when(self, verdict: Verdict, panels: Mapping[str, Panel]) -> Bools:
        """[block]: whether the machine, or its device, deviated by this metric then."""
        table, _, metric = verdict.metric.partition(".")
        panel = panels.get(table)
        if panel is None or metric not in panel.window.metrics:
            return self.pace.times > verdict.since
        mine = [
            at
            for at, (name, device) in enumerate(panel.window.entities)
            if name == verdict.machine and verdict.device in (None, device)
        ]
        row, entities = panel.window.metrics.index(metric), np.array(mine, np.int64)
        return self.deviations[table].of(self.pace.times, row, entities) >= _DEVIATES

    def _mine(self, machine: str) -> NDArray[Any]:
        """[block, signal]: the machine's part of the task, beside its peers."""
        at = self.share.machines.get(machine)
        return self.share.values[:, at] if at is not None else np.zeros((len(self.pace.times), 0))


def _are_enough(on: Bools) -> bool:
    """Whether there are blocks enough with and without to compare them."""
    return bool(on.sum() >= _ON and (~on).sum() >= _OFF)


def _slower(logs: NDArray[Any], on: Bools, least: float = _LEAST_LOSS) -> str:
    """Whether a task goes slower when `on`, by logarithms of its pace [block, signal]."""
    logs = _told(logs, on)
    if not logs.shape[1]:
        return UNKNOWN
    shift = shift_down(logs, on, _LEAST_ERROR)
    best = np.argsort(shift.error)[:_BEST]
    size, z = float(np.median(shift.size[best])), float(np.median(shift.z[best]))
    if z > _SURE and size > least:
        return YES
    highest = float((shift.size[best] + 2 * shift.error[best]).min())
    return NO if highest < 2 * least else UNKNOWN


def _at_work_less(mine: NDArray[Any], on: Bools) -> bool:
    """Whether a machine's GPUs are at work less, beside their peers, when `on`: its share [block, signal].

    Two signals have to agree; where there is one only, it has to be twice as sure.
    """
    mine = _told(mine[:, BUSY] if mine.shape[1] else mine, on)
    shift = shift_down(mine, on, _LEAST_ERROR / 2)
    z = np.sort(np.where(shift.size > _LEAST_SHARE, shift.z, 0.0))[::-1]
    if len(z) < 2:
        return len(z) == 1 and bool(z[0] > 2 * _SURE_SHARE)
    return bool(z[0] > _SURE_SHARE and z[1] > _SURE)


def _does_less(mine: NDArray[Any], on: Bools) -> bool:
    """Whether a machine gets less done than its peers by most of what tells, and did not before."""
    done = _told(mine[:, DONE] if mine.shape[1] else mine, on)
    return done.shape[1] > 0 and bool(np.median(shift_down(done, on).size) > _DOES_LESS)


def _told(series: NDArray[Any], on: Bools) -> NDArray[Any]:
    """Those series [block, series] that are known in half of the blocks, with and without."""
    known = ~np.isnan(series)
    return series[:, (known[on].mean(0) >= 0.5) & (known[~on].mean(0) >= 0.5)]


def _at_least(finding: Finding, level: str) -> Finding:
    verdict = finding.verdict
    if verdict.level in ("crit", level):
        return finding
    return replace(finding, verdict=replace(verdict, level="crit" if level == "crit" else "warn"))
