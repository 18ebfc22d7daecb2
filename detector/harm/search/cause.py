"""Cause: names the machine on which something changed when its task lost pace, for as long as the loss lasts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.harm.pace import STANDS, Pace
from detector.harm.search.fall import GREAT, Fall, lost_pace
from detector.harm.search.readings import LEAST, ROW_NS, Memories
from detector.harm.search.shift import FAR, Shifted, left, peers_of, shifted_with
from detector.harm.share import Share
from detector.harm.waiting import MEMORY
from detector.methods.peers.findings import compared_text
from detector.methods.peers.state import Panel
from detector.model.kinds import is_symptom, is_system, tells_contention
from detector.model.metrics import bounds_of
from detector.model.text import change, subject
from detector.model.verdict import Finding, Level, Verdict
from detector.stats.grouped import middle
from store.schema.time import SECOND

Incidents = Mapping[str, Mapping[str, int]]
_LEFT = 0.4
"""Below this share of the shift, or of the loss of pace, it is over."""
_CLEARER = 2.0
"""Times as clear as what changed on the next machine."""
_AGAIN_NS = 10 * SECOND
"""How long after it was first found the same has to be found again; small losses are looked into after twice that."""
_OTHER_NS = 60 * SECOND
"""How much longer where another was found before it: chance names one after the other."""
_ITERATIONS = 3
"""Iterations since the fall, at least, where they are long."""
_SETTLES_NS = 60 * SECOND
"""After so long a task goes steadily with a fault."""
_CRITICAL = 0.1
"""A loss of pace from which on it is critical."""
_PLAIN = (
    "host.cpu_utilization_ratio",
    "host.cpu_system_ratio",
    "host.tcp_retransmit_segments_total",
    "rdma.cnp_handled_total",
)
"""Readings that count as a cause by themselves where they, and the loss, are great enough: a port that has to send
less, for minutes, while all wait, is one that cannot send more."""
_SYSTEM_ROWS = 5
"""Rows since the fall before a reading of the system counts: other work takes processors for nearly as long."""
_BUSY = 0.5
"""Of processors: while half of their time is left, no task waits for it."""
_PLAIN_LOSS, _PLAIN_FAR, _PLAIN_ALONE = 0.05, 8.0, 5.0
"""A loss of pace, spreads over the peers, and times as far as the next machine, that need no other witness. The loss is
asked of the memory of a GPU too: many small programs take some of it, and little else."""
_RECENT = 12
"""Blocks of time by which it is judged whether the pace is back."""


@dataclass(slots=True)
class Cause:
    """What a task's loss of pace came with."""

    fall: Fall
    shifted: Shifted
    verdict: Verdict


@dataclass(slots=True)
class Causes:
    """The memory of it, by task."""

    readings: Memories = field(default_factory=Memories)
    falls: dict[str, Fall] = field(default_factory=dict)
    """Losses of pace of which the cause is looked for."""
    suspect: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """The machine and the reading that changed with it when it was looked at last, since when (Unix ns)."""
    open: dict[str, Cause] = field(default_factory=dict)

    def update(
        self, now: int, pace: Pace, share: Share, panels: Mapping[str, Panel], busy: Incidents, config: Config
    ) -> None:
        """Look at every task after a new block of its pace.

        Of `busy` tasks (by machine when an incident began) only a further loss, long after that, has another cause.
        """
        if not self.readings.update(now, panels):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of readings that are unknown all the time
            self.open = {task: cause for task, cause in self.open.items() if self._lasts(task, cause, pace, panels)}
            for task in pace.tasks:
                self._look(now, task, pace, share, panels, busy.get(task, {}), config)

    def _look(
        self,
        now: int,
        task: str,
        pace: Pace,
        share: Share,
        panels: Mapping[str, Panel],
        begun: Mapping[str, int],
        config: Config,
    ) -> None:
        """Look at one task, of which the incidents of machines `begun` at these times (Unix ns)."""
        steady = max(begun.values(), default=-_SETTLES_NS) + _SETTLES_NS
        coarse = self.readings.complete % 2 == 0
        known = self.falls.pop(task, None)
        if not coarse and known is not None and known.size < GREAT:
            self.falls[task] = known
            return
        fall = lost_pace(task, pace, self.readings.times, known, steady, not coarse)
        if fall is None or task in self.open:
            self.suspect.pop(task, None)
            return
        self.falls[task] = fall
        if fall.rows * ROW_NS < _ITERATIONS * pace.rhythm_ns(task) or (begun and fall.rows < LEAST):
            return
        coarse &= fall.rows >= LEAST
        if not coarse and fall.size < GREAT:
            return
        found = self._search(task, fall, coarse, pace, share, panels, config)
        if found is None or panels[found.table].window.entities[found.entity][0] in begun:
            return  # nothing, or a fault that is known got worse
        if self._is_confirmed(now, task, found, panels[found.table]):
            self.open[task] = Cause(fall, found, _verdict(now, task, fall, found, panels[found.table]))

    def findings(self) -> list[Finding]:
        """A finding for each task that lost pace and of which the cause is known."""
        return [Finding(cause.verdict, False, min(cause.shifted.far / FAR, 10.0)) for cause in self.open.values()]

    def evict(self) -> None:
        """Forget what was read: the entities get new numbers."""
        self.readings.evict()
        self.open.clear()
        self.falls.clear()
        self.suspect.clear()

    def _search(
        self,
        task: str,
        fall: Fall,
        coarse: bool,
        pace: Pace,
        share: Share,
        panels: Mapping[str, Panel],
        config: Config,
    ) -> Shifted | None:
        """What changed most clearly, if nothing did on any other machine that is nearly as clear."""
        best: dict[str, Shifted] = {}
        for table, panel in panels.items():
            if task not in panel.tasks:
                continue
            memory, bounds = self.readings.tables.get(table), bounds_of(table, panel.window.metrics, config)
            for one in shifted_with(memory, fall, coarse, table, panel, panel.tasks.index(task), bounds):
                machine = panel.window.entities[one.entity][0]
                key = f"{table}.{panel.window.metrics[one.metric]}"
                says_little = is_system(key) or is_symptom(key) or (key == MEMORY and fall.size < _PLAIN_LOSS)
                apart = one.before is not None  # beside machines of other tasks: its own has few
                contended = apart and fall.size >= GREAT and tells_contention(key) and not _idles(one, panel)
                counts = not says_little or contended or (coarse and _is_plain(one, fall, panel))
                brief = is_system(key) and fall.rows < _SYSTEM_ROWS
                counts = not brief and (counts or _is_held_up(machine, task, fall, pace, share))
                if counts and (machine not in best or one.alone > best[machine].alone):
                    best[machine] = one
        order = sorted(best.values(), key=lambda one: -one.alone)
        if not order or (len(order) > 1 and order[0].alone < _CLEARER * order[1].alone):
            return None
        return order[0]

    def _is_confirmed(self, now: int, task: str, found: Shifted, panel: Panel) -> bool:
        """Whether the same reading of the same machine was found when it was looked at before, and is still off."""
        place = panel.window.entities[found.entity][0], panel.window.metrics[found.metric]
        *before, first = self.suspect.get(task, (*place, now))
        first = first if tuple(before) == place else now + _OTHER_NS
        self.suspect[task] = *place, first
        lasts = now - first >= _AGAIN_NS
        return lasts and left(self.readings.tables[found.table], found, panel, 1) > _LEFT and _is_off(found, panel)

    def _lasts(self, task: str, cause: Cause, pace: Pace, panels: Mapping[str, Panel]) -> bool:
        """Whether the task still goes slower, or stands, and the reading is still off."""
        panel, shifted = panels.get(cause.shifted.table), cause.shifted
        if panel is None or task not in pace.tasks or shifted.table not in self.readings.tables:
            return False
        if pace.paused(task, STANDS)[-_RECENT:].any():
            return True
        logs, before = pace.logs(task), pace.times <= cause.fall.since
        if before.sum() >= _RECENT:
            lost = np.nanmedian(np.nanmedian(logs[before], axis=0) - np.nanmedian(logs[-_RECENT:], axis=0))
            if lost < _LEFT * cause.fall.size:
                return False
        return left(self.readings.tables[shifted.table], shifted, panel) > _LEFT


def _is_off(found: Shifted, panel: Panel) -> bool:
    """Whether the reading is known at this moment, and still off by what is left of such a shift at least."""
    values = panel.values[found.metric]
    others = values[peers_of(panel, found.entity, len(values))]
    return bool((values[found.entity] - middle(others[None])[0] - found.usual) / found.size > _LEFT)


def _is_plain(one: Shifted, fall: Fall, panel: Panel) -> bool:
    """Whether processors, or how often a port is held back, changed so plainly that nothing else has to tell."""
    key = f"{one.table}.{panel.window.metrics[one.metric]}"
    great = fall.size >= _PLAIN_LOSS and one.far >= _PLAIN_FAR and one.alone >= _PLAIN_ALONE
    return great and key in _PLAIN and not _idles(one, panel)


def _idles(one: Shifted, panel: Panel) -> bool:
    """Whether processors have so much time left that no task waits for them, whatever else they do."""
    key = f"{one.table}.{panel.window.metrics[one.metric]}"
    return key == _PLAIN[0] and bool(panel.values[one.metric, one.entity] < _BUSY)


def _is_held_up(machine: str, task: str, fall: Fall, pace: Pace, share: Share) -> bool:
    """Whether a machine's GPUs have less to do than those of any other since then."""
    return share.held_up(machine, pace.times > fall.since, ~pace.paused(task), pace.iteration(task)) is True


def _verdict(now: int, task: str, fall: Fall, found: Shifted, panel: Panel) -> Verdict:
    machine, device = panel.window.entities[found.entity]
    device = None if found.whole else device
    lost = 100 * (1 - float(np.exp(-fall.size)))
    seconds = (now - fall.since) / SECOND
    key = f"{found.table}.{panel.window.metrics[found.metric]}"
    if found.before is None:
        words = compared_text(panel, found.metric, found.entity, device)
    else:
        value = float(panel.values[found.metric, found.entity])
        words = change(subject(machine, device), key, value, found.before)
    when = f"{seconds:.0f} s ago on no other machine, when task {task} lost {lost:.0f} % of its pace"
    message = f"{words}; changed {when}"
    level: Level = "crit" if fall.size >= _CRITICAL else "warn"
    return Verdict(now, task, machine, device, "peer", key, min(found.far / FAR, 99.0), fall.since, level, message)
