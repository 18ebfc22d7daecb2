"""Harm: whether the task suffers from what is found on a machine; if so it is a verdict, else a note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from detector.config import Config
from detector.harm.before_after import LOST, NO, ON_BLOCKS, UNKNOWN, WAIT, YES
from detector.harm.blamed import Blamed
from detector.harm.deviations import Odd
from detector.harm.effect import LASTS_NS, Effect
from detector.harm.exits import Exits
from detector.harm.loss import goes_slower, is_remnant, slower_at_once
from detector.harm.pace import SPAN_NS, Pace
from detector.harm.search.cause import Causes
from detector.harm.share import LEAST, Share
from detector.harm.silence import judge_silence
from detector.harm.stalls import Stalls
from detector.harm.unseen import is_one_reading, small_lasts, symptom, unseen
from detector.harm.waiting import clocks_alike, comes_late, is_idle, is_waited_for
from detector.methods.peers.state import Panel
from detector.model.kinds import (
    draws,
    is_capacity,
    is_copied,
    is_corrected,
    is_done,
    is_fault,
    is_host,
    is_impaired,
    is_loss,
    is_memory_in_use,
    is_state,
    is_storm,
    is_symptom,
    is_temperature,
    is_throttle,
    is_traffic,
    is_work,
    tells_idleness,
    tells_use,
)
from detector.model.verdict import RANK, Finding, Level, Verdict
from detector.stats.arrays import Bools
from store.schema.time import SECOND

Key = tuple[str, ...]
Place = tuple[str, str, str, bool]
SILENT = "event.silent"
_RECENT = 6
"""Blocks in which a reading deviates once at least, as long as it does at all."""
_HELD_NS = 60 * SECOND
"""For so long a finding that did harm is taken to do harm."""
_UNSEEN_HOST_NS = 300 * SECOND
"""The same of a machine's own system, which upgrades and scans move for minutes."""
_KNOWN_NS = 300 * SECOND
"""For so long it is remembered that a difference did no harm."""
_PLAINLY = 0.05
"""By how much less than usual a machine has to do that is held up although its task goes on as before."""
_PLAINLY_SMALL = 1.25
"""Multiples of its threshold that a small difference needs: what only just reaches it is chance, of so many."""
_ONE_IDLES = 4.0
"""The same of one GPU that is at work less than others of its machine: a slow host holds up all of them."""
_ITERATIONS, _ITERATIONS_OF_WORK = 2, 3
"""So many iterations a small difference, and one in what is done, lasts: less tells which part of them it is of."""
_DRAWS_NS = 300 * SECOND
"""So long a small difference in power has to last where other readings tell what a GPU does: heat and load move it."""
_BURST_NS = 60 * SECOND
"""So long a burst of other traffic may last: copies, tests of the network, many senders at once."""


@dataclass(slots=True)
class Harm:
    """Its state."""

    pace: Pace = field(default_factory=Pace)
    share: Share = field(default_factory=Share)
    odd: Odd = field(default_factory=Odd)
    stalls: Stalls = field(default_factory=Stalls)
    exits: Exits = field(default_factory=Exits)
    causes: Causes = field(default_factory=Causes)
    answers: dict[Key, str] = field(default_factory=dict)
    """What was found out in this block of time."""
    blamed: Blamed = field(default_factory=Blamed)
    harmless: dict[tuple[str, str, str, str], tuple[int, int]] = field(default_factory=dict)
    """Task, machine, device, metric of differences that did no harm: since when, and when that was seen (Unix ns)."""
    harmful: dict[Place, int] = field(default_factory=dict)
    """Task, machine, device of findings that do harm, small ones apart: when (Unix ns) they were there last."""

    def update(self, now: int, panels: Mapping[str, Panel], config: Config) -> None:
        """Sample the panels at `now` (Unix ns), and judge once a block of time."""
        self.pace.add(panels)
        self.exits.update(now, panels)
        if not self.pace.due(now):
            return
        self.answers.clear()
        held = max([_HELD_NS, *(2 * (now - self.pace.times[-1:])).tolist()])  # readings may be minutes apart
        self.harmless = {key: one for key, one in self.harmless.items() if now - one[1] < _KNOWN_NS}
        self.harmful = {place: seen for place, seen in self.harmful.items() if now - seen < held}
        self.pace.end(now)
        self.share.update(panels, len(self.pace.times))
        self.odd.update(now, panels, SPAN_NS)
        self.stalls.update(now, self.pace, panels, config)
        self.causes.update(now, self.pace, self.share, panels, self.blamed.tasks(now - _HELD_NS), config)

    def graded(self, finding: Finding, panels: Mapping[str, Panel], now: int) -> Finding | None:
        """The finding as it is to be said: as it is, as a note, or not yet (None)."""
        verdict = finding.verdict
        if finding.early:
            return self._early(finding, panels, now)
        place = verdict.task, verdict.machine, verdict.device or "", finding.small
        key = *place[:3], verdict.kind, "small" if finding.small else "", verdict.metric, verdict.level
        finding = replace(finding, late=self._is_late(finding, panels))
        if key not in self.answers:
            over = verdict.score < 1 or is_remnant(self.pace, self.blamed, verdict)
            fades = finding.small and (over or self._effect.rests(verdict.task))
            held = place in self.harmful and not (fades or is_copied(verdict.metric))
            answer = YES if held else self._answer(finding, panels, now)
            self.answers[key] = YES if finding.late and answer in (NO, UNKNOWN) else answer
        answer = self.answers[key]
        if answer in (YES, LOST):
            if verdict.kind == "peer":
                self.harmful[place] = now
            return _at_least(finding, "crit" if answer == LOST else "warn")
        return None if answer == WAIT else replace(finding, verdict=replace(verdict, level="note"))

    def _early(self, finding: Finding, panels: Mapping[str, Panel], now: int) -> Finding | None:
        """A finding short of evidence, if the harm that begins and ends with it is plain."""
        verdict = finding.verdict
        place = verdict.task, verdict.machine, verdict.device or "", False
        key = "early", *place[:3], verdict.metric
        if key not in self.answers:
            on = self.odd.when(verdict, self.pace.times, panels)
            plain = is_capacity(verdict.metric) or self._effect.is_plain(verdict, on)
            self.answers[key] = self._answer(finding, panels, now) if plain else NO
        if self.answers[key] not in (YES, LOST):
            return None
        self.harmful[place] = now
        return _at_least(replace(finding, evidence=max(finding.evidence, 1.0)), "warn")

    def evict(self, gone: Iterable[str]) -> None:
        """Forget machines that are gone for good."""
        self.share.evict(gone)
        self.stalls.evict()
        self.causes.evict()
        self.exits.evict()
        self.odd.evict()

    @property
    def _effect(self) -> Effect:
        return Effect(self.pace, self.share, self.odd, self.blamed)

    def _answer(self, finding: Finding, panels: Mapping[str, Panel], now: int) -> str:
        verdict = finding.verdict
        if is_copied(verdict.metric) or (verdict.level == "note" and verdict.kind in ("peer", "progress")):
            return NO
        if verdict.metric == SILENT:
            return judge_silence(verdict, now, self.pace, ~self.blamed.elsewhere(verdict, self.pace.times))
        if verdict.kind == "evidence":
            if verdict.level == "warn" and is_capacity(verdict.metric):  # chips differ
                return YES if is_waited_for(panels, verdict.task, verdict.machine, verdict.device) else NO
            if verdict.level != "note":
                return YES
            is_event = verdict.metric.startswith("event.") and not is_symptom(verdict.metric)
            return self._event(verdict) if is_event else NO
        if finding.hard or verdict.kind == "progress":
            return YES
        if self._has_recovered(finding, panels) or self.odd.is_limited(verdict, panels):
            return NO
        place = verdict.task, verdict.machine, verdict.device
        costs_nothing = is_throttle(verdict.metric) and clocks_alike(panels, verdict.metric, *place)
        if is_capacity(verdict.metric) and not costs_nothing:
            # At rest it clocks low.
            unclear = finding.small and (verdict.score < _PLAINLY_SMALL or self._effect.rests(verdict.task))
            return WAIT if unclear or is_idle(verdict.task, panels, verdict.machine) else YES
        if (is_host(verdict.metric) or is_work(verdict.metric)) and is_idle(verdict.task, panels):
            return WAIT  # no task suffers from it yet
        on = self.pace.times > verdict.since if finding.small else self.odd.when(verdict, self.pace.times, panels)
        return self._deviation(finding, on, panels, now)

    def _has_recovered(self, finding: Finding, panels: Mapping[str, Panel]) -> bool:
        """Whether a machine reads as its peers do since an incident of its own, in which it differed from them."""
        remnant = not finding.small and is_remnant(self.pace, self.blamed, finding.verdict)
        return remnant and self.odd.is_like_peers(finding.verdict, panels)

    def _is_late(self, finding: Finding, panels: Mapping[str, Panel]) -> bool:
        """Of a reading that no other machine moves: the pace tells nothing of it while another fault slows the task."""
        verdict = finding.verdict
        own = finding.own and not (finding.small or is_symptom(verdict.metric))
        slowed = own and self.blamed.elsewhere(verdict, self.pace.times[-1:]).any()
        return bool(slowed) and comes_late(panels, verdict.task, verdict.machine)

    def _deviation(self, finding: Finding, on: Bools, panels: Mapping[str, Panel], now: int) -> str:
        """Of a reading that deviates from the peers' when `on` [block], or is a little off all that time."""
        verdict, small = finding.verdict, finding.small
        if is_symptom(verdict.metric):
            return symptom(self._effect, verdict, panels, now)
        metric, young = verdict.metric, now - verdict.since < _BURST_NS
        burst = is_traffic(metric) and young and self.odd.is_more(verdict, panels)
        burst = burst and not (is_impaired(metric) and self._effect.is_plain(verdict, on))
        if burst or self._waits(verdict, on, now, small):
            return WAIT
        if self._delays_none(finding, panels):
            return NO
        if small and draws(verdict.metric) and now - verdict.since < _DRAWS_NS and not is_one_reading(panels):
            return WAIT
        if is_host(verdict.metric):
            return self._host(verdict, on, now)
        if is_corrected(metric):  # what the pace does is no effect of it
            return unseen(self._effect, finding, on, panels, now)
        answer = slower_at_once(self.pace, self.blamed, verdict, on) if small else self._effect.harmed(verdict, on)
        answer = self._remembered(verdict, answer, now)
        if answer in (NO, UNKNOWN) and self._is_other_work(finding, panels):
            return NO
        known = self.pace.is_known_without(verdict.task, verdict.metric)
        if not known and not small and (is_work(verdict.metric) or not self._effect.is_paced(verdict.task)):
            return YES  # a reading cannot show whether its own deviation does harm
        if answer != YES and small and tells_idleness(verdict.metric) and self._effect.idles(verdict, on, now):
            return YES
        hidden = answer == UNKNOWN or (answer == NO and (is_loss(metric) or is_storm(metric, verdict.score)))
        return unseen(self._effect, finding, on, panels, now) if hidden else answer

    def _delays_none(self, finding: Finding, panels: Mapping[str, Panel]) -> bool:
        """Whether no rank waits for it by nature: more work than its peers do, less heat, or the rest of a fault.

        What moves a port of which the peers were found by their readings is other traffic, or memory in use there.
        """
        verdict, small = finding.verdict, finding.small
        metric, more = verdict.metric, self.odd.is_more(verdict, panels)
        other = (metric.startswith("rdma.") and not is_fault(metric)) or is_memory_in_use(metric)
        if finding.clustered and other:
            return True
        # More traffic on several machines is the task's: its load changed, or a switch takes another way.
        done = more and is_done(metric) and (not is_traffic(metric) or self.odd.others_too(verdict, panels))
        busier = done or (more and tells_use(metric))
        if busier or (is_temperature(metric) and not more) or (small and tells_use(metric)):
            return True
        little = small and tells_idleness(metric) and verdict.score < _ONE_IDLES
        if little and self.odd.is_one_that_does_less(verdict, panels):
            return True
        return small and is_remnant(self.pace, self.blamed, verdict)

    def _is_other_work(self, finding: Finding, panels: Mapping[str, Panel]) -> bool:
        """Whether a machine does more than its peers, if less than usual, or other work than peers of like readings.

        Then only the task's pace tells that it is a fault: a port carries what others send as well.
        """
        if not is_done(finding.verdict.metric):
            return False
        return finding.clustered or self.odd.carries_more(finding.verdict, panels)

    def _host(self, verdict: Verdict, on: Bools, now: int) -> str:
        """Of a reading of the machine's own system."""
        runs = ~self.pace.paused(verdict.task)
        if self._effect.is_paced(verdict.task) and (on & runs).sum() < ON_BLOCKS:
            return WAIT  # the task stood nearly all the time
        slower = goes_slower(self.pace, self.blamed, verdict, on)
        held_up = self._effect.is_held_up(verdict, on, _PLAINLY if slower == NO else LEAST)
        if held_up is not None or self._effect.is_paced(verdict.task):
            return YES if held_up or self._effect.fell_with(verdict, now) else NO
        return YES if now - verdict.since >= _UNSEEN_HOST_NS else NO

    def _remembered(self, verdict: Verdict, answer: str, now: int) -> str:
        """The answer, or the last one where too little of the time before is remembered to ask again."""
        key = verdict.task, verdict.machine, verdict.device or "", verdict.metric
        since, _ = self.harmless.get(key, (0, 0))
        if answer == NO or (answer == UNKNOWN and since == verdict.since):
            self.harmless[key] = verdict.since, now
            return NO
        return answer

    def _waits(self, verdict: Verdict, on: Bools, now: int, small: bool) -> bool:
        """Whether nothing is to be said yet of a deviation."""
        if verdict.score < (_PLAINLY_SMALL if small else 1) or (on.any() and not on[-_RECENT:].any()):
            return True  # it raised an alarm once, and is over: what the task does since then is no effect of it
        if self._effect.rests(verdict.task) and not (is_state(verdict.metric) and self._effect.stands_long(verdict)):
            return True
        lasted, iteration = now - verdict.since, self.pace.rhythm_ns(verdict.task)
        if not small:
            return is_done(verdict.metric) and lasted < _ITERATIONS_OF_WORK * iteration
        # While a task stands, or begins, its members do not do the same.
        lasts = max(small_lasts(verdict.score), _ITERATIONS * iteration)
        return self._effect.ran_for(verdict.task, on, lasted) < lasts

    def _event(self, verdict: Verdict) -> str:
        """What is no fault by itself is one if the task, or the machine, suffers since then, by no earlier incident."""
        on = self.pace.times > verdict.since
        if (on & self.blamed.before(verdict, self.pace.times)).any() or self._effect.lasts(on) < LASTS_NS:
            return NO  # an incident of the machine came after it, and is over: what the task loses now is of another
        return YES if self._effect.is_held_up(verdict, on) else self._effect.harmed(verdict, on)


def _at_least(finding: Finding, level: Level) -> Finding:
    """The finding with this level or a higher one; a note becomes an alarm by the harm that it does."""
    verdict = finding.verdict
    if RANK[verdict.level] >= RANK[level]:
        return finding
    raised = replace(verdict, level=level, score=max(verdict.score, 1.0))
    return replace(finding, verdict=raised, evidence=max(finding.evidence, 1.0))
