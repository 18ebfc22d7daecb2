"""PanelWatch: the excursions of one table of the peers, from the step they begin at to the day they are forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.methods.peers.slow.lasting import ENOUGH, SUSPECT, WARM_S
from detector.methods.peers.state import NO_TASK, Panel
from detector.stats.arrays import Bools, Floats, Ints
from detector.thresholds.excursions import Excursions, Tracker
from detector.thresholds.history import EVERY_MACHINE, SMALL, History
from store.schema.time import SECOND

QUARANTINE_NS = 300 * SECOND
"""So long an excursion waits before it teaches: a fault that it belongs to is known by then."""
LEAD_NS, TRAIL_NS = 60 * SECOND, 60 * SECOND
"""An incident begins so much earlier than its verdict says, and is over so much later."""
_HOURS_NS = 10 * SECOND
_LONGEST_NS = 60 * SECOND
_HELD = 1000
ALL = "*"
"""The stream of the sums over all metrics."""


Spans = Mapping[tuple[str, str], list[tuple[int, int]]]
"""By task and machine, begin and end (Unix ns) of incidents."""


@dataclass(slots=True)
class PanelWatch:
    """The memory of it; in `waiting` and `held`, `machine` is a number of `history.names`."""

    history: History = field(default_factory=History)
    tracker: Tracker = field(default_factory=Tracker)
    waiting: Excursions = field(default_factory=Excursions)
    held: Excursions = field(default_factory=Excursions)
    """Of tasks with an incident at the time: they teach only if the operator says that there was no fault."""
    names: list[str] = field(default_factory=list)
    """Machines by their number in the panel."""
    version: tuple[int, int] = (-1, -1)
    counted: int = 0
    """Up to when (Unix ns) machine-hours are counted."""

    def note(self, now: int, panel: Panel, harmed: frozenset[str]) -> None:
        """Take in a step at `now` (Unix ns); `harmed` are the tasks with an open incident."""
        if not panel.deviation.size:
            return
        if panel.assignment_version != self.version:
            self._renumber(panel)
        streams = self.history.places(streams_of(panel))
        stream, entity, height = _cells(panel, streams)
        shape = (len(self.history.streams), len(self.names))
        self._over(self.tracker.note(now, stream, panel.machine[entity], height, shape))
        if now - self.counted >= _HOURS_NS:
            seconds = min(now - self.counted, _LONGEST_NS) / SECOND if self.counted else 0.0
            self.counted = now
            self.history.turn(now)
            free = np.array([task not in harmed for task in panel.tasks] + [False])[panel.task_index]
            self.history.count(now, streams, _judged(panel, free) * seconds / 3600)

    def teach(self, before: int, task_of: Mapping[str, str | None], spans: Spans, panel_limits: Floats) -> None:
        """Remember the excursions that ended before a time (Unix ns) and belong to no incident."""
        old = self.waiting.ended <= before
        if not old.any():
            return
        found, self.waiting = self.waiting.some(old), self.waiting.some(~old)
        suspect = self._suspect(found, task_of, spans)
        self.held = self.held.and_also(found.some(suspect)).some(slice(-_HELD, None))
        free = found.some(~suspect)
        self.history.add(free)
        self.history.cross(free.some(free.peak >= panel_limits[free.stream]))

    def _suspect(self, found: Excursions, task_of: Mapping[str, str | None], spans: Spans) -> Bools:
        """[excursion]: whether its task had an incident at the time, or is not known any more."""
        out = np.zeros(len(found), bool)
        tasks = np.array([task_of.get(self.history.names[at]) or "" for at in found.machine.tolist()], object)
        out |= tasks == ""
        for (task, _), times in spans.items():
            for begin, end in times:
                out |= (tasks == task) & (found.begun <= end + TRAIL_NS) & (found.ended >= begin - LEAD_NS)
        return out

    def pardon(self, machine: str, since: int, now: int) -> None:
        """The operator says that what `machine` showed since then (Unix ns) is no fault: all machines learn from it."""
        if machine in self.names and self.names.index(machine) < self.tracker.height.shape[1]:
            mine = self.names.index(machine)
            up = np.flatnonzero(self.tracker.height[:, mine] > 0)
            none = np.full(len(up), EVERY_MACHINE)
            begun = self.tracker.begun[up, mine]
            self.history.add(Excursions(up, none, self.tracker.height[up, mine], begun, np.full(len(up), now)))
        number = self.history.names.index(machine) if machine in self.history.names else EVERY_MACHINE
        for late in (self.held, self.waiting):
            those = late.some((late.machine == number) & (late.ended >= since))
            those.machine = np.full(len(those), EVERY_MACHINE)
            self.history.add(those)

    def finish(self) -> None:
        """End the excursions under way."""
        none = np.zeros(0, np.int64)
        self._over(self.tracker.note(self.counted, none, none, np.zeros(0), self.tracker.height.shape))

    def _over(self, done: Excursions) -> None:
        if len(done):
            done.machine = self.history.numbers([self.names[at] for at in done.machine.tolist()])
            self.waiting = self.waiting.and_also(done)

    def _renumber(self, panel: Panel) -> None:
        names = [""] * (int(panel.machine.max(initial=-1)) + 1)
        for (name, _), number in zip(panel.window.entities, panel.machine.tolist(), strict=True):
            names[number] = name
        if names[: len(self.names)] != self.names:
            self.tracker.forget()
        self.names, self.version = names, panel.assignment_version


def streams_of(panel: Panel) -> list[str]:
    """What is judged by itself: each metric, the sum of all, and small differences of some."""
    metrics = panel.window.metrics
    return [*metrics, ALL, *(metrics[row] + SMALL for row in panel.lasting.rows.tolist())]


def _cells(panel: Panel, streams: Ints) -> tuple[Ints, Ints, Floats]:
    """Stream, entity and height of all that speaks against somebody."""
    metrics, fused, lasting = len(panel.window.metrics), panel.fusion.cells, panel.lasting
    row, small = np.nonzero(lasting.lasts()[:, : len(panel.machine)])
    far = np.maximum(np.abs(lasting.far[row, small]) - SUSPECT, 0) / (ENOUGH - SUSPECT)
    stream = np.concatenate([panel.cells.metric, np.full(len(fused.entity), metrics), metrics + 1 + row])
    height = np.concatenate([panel.height, panel.fusion.height, far])
    return streams[stream], np.concatenate([panel.cells.entity, fused.entity, small]), height


def _judged(panel: Panel, free: Bools) -> Floats:
    """[stream]: how many machines are judged of those that are `free` [entity]."""
    count = min(panel.baseline.active_threshold.shape[1], len(panel.machine))
    seen = free[:count] & (panel.group[:count] != NO_TASK)
    judged = ~np.isnan(panel.baseline.active_threshold[: len(panel.window.metrics), :count]) & seen
    warm = panel.lasting.known_s[:, :count] >= WARM_S
    warm = warm & seen[: warm.shape[1]]
    per_machine = len(np.unique(panel.machine)) / max(len(panel.machine), 1)
    every: Floats = np.concatenate([judged.sum(1), [judged.any(0).sum()], warm.sum(1)]) * per_machine
    return every
