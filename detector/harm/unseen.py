"""Unseen: what is said of a deviation where no pace tells whether the task suffers, and of what others cause."""

from __future__ import annotations

from collections.abc import Mapping

from detector.harm.before_after import NO, UNKNOWN, WAIT, YES
from detector.harm.effect import IDLES_NS, LASTS_NS, UNSEEN_NS, Effect
from detector.harm.loss import slower_at_once
from detector.methods.peers.slow.lasting import LASTS_NS as SMALL_LASTS_NS
from detector.methods.peers.state import Panel
from detector.model.kinds import CONGESTION, is_corrected, is_held_back, is_impaired, is_known, is_storm, is_work
from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Bools
from store.schema.time import SECOND

_IMPAIRED, _IMPAIRED_NS = 5.0, 180 * SECOND
"""Multiples of the least difference that counts, and how long they last, of a port that is slowed."""
_CORRECTED = 10.0
"""The same of a memory that corrects errors: five a second at least."""
_FAR_SMALL = 2.0
"""Multiples of its threshold at which a small difference is said as soon as it is a finding."""


def unseen(effect: Effect, finding: Finding, on: Bools, panels: Mapping[str, Panel], now: int) -> str:
    """The answer at `now` (Unix ns) on what deviates when `on` [block], where nothing tells if the task suffers."""
    verdict, small = finding.verdict, finding.small
    longest = now - verdict.since
    far = _CORRECTED if is_corrected(verdict.metric) else _IMPAIRED
    if is_impaired(verdict.metric) and verdict.score >= far:
        so_far = effect.odd.when(verdict, effect.pace.times, panels, far)
        enough = UNSEEN_NS if is_storm(verdict.metric, verdict.score) else _IMPAIRED_NS
        return YES if effect.ran_for(verdict.task, so_far, longest) >= enough else UNKNOWN
    ran = effect.ran_for(verdict.task, on, longest)
    if small and is_one_reading(panels):
        return YES if ran >= IDLES_NS else UNKNOWN
    if small or (is_known(verdict.metric) and not is_work(verdict.metric)):
        return UNKNOWN
    return YES if ran >= UNSEEN_NS else WAIT


def symptom(effect: Effect, verdict: Verdict, panels: Mapping[str, Panel], now: int) -> str:
    """What others make is a note, unless a port is held back strongly, and for minutes, by nothing else."""
    times = effect.pace.times
    far = effect.odd.when(verdict, times, panels, _IMPAIRED)
    lasts = effect.ran_for(verdict.task, far, now - verdict.since) >= _IMPAIRED_NS
    if not (is_held_back(verdict.metric) and lasts):
        return NO
    crowded = effect.odd.any_of(CONGESTION, verdict, times, panels)[far].any()
    return NO if crowded else slower_at_once(effect.pace, effect.blamed, verdict, far)


def small_lasts(score: float) -> float:
    """How long (ns) a small difference lasts before it is said: as n readings are as sure as √n times the distance."""
    return LASTS_NS if score >= _FAR_SMALL else SMALL_LASTS_NS * (_FAR_SMALL / score) ** 2


def is_one_reading(panels: Mapping[str, Panel]) -> bool:
    """Whether one reading is all that tells how the machines work."""
    return len(panels) == 1 and all(len(panel.lasting.rows) == 1 for panel in panels.values())
