"""Exits: of a task that ends all at once, the machine on which a process let go of its GPU's memory first.

Ranks of a job that is stopped end within a second or two of each other. Where one ends alone and the others follow
seconds later, when a timeout or the launcher ends them, it is the one that crashed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from detector.harm.waiting import MEMORY
from detector.methods.peers.state import Panel
from detector.model.text import comparison, subject
from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Bools, Ints, Singles, grown
from detector.timeseries.live_window import Entity
from store.schema.time import SECOND

_FREED, _HELD = 0.5, 0.8
"""Shares of its usual memory in use below which a GPU was let go of, and of the task's GPUs that hold theirs then."""
_LEAST_BYTES = 2e9
_LEAD_NS, _LONGEST_NS = 4 * SECOND, 120 * SECOND
"""So long before all others the first has to let go, at least and at most; at least two steps of the readings too."""
_SAID_NS = 60 * SECOND
_FEWEST = 3
"""Machines of a task, at least."""
_FADE = 0.999
"""What is left, a step later, of what was usual for a GPU that was let go of."""


@dataclass(slots=True)
class Exits:
    """Its state; arrays are [entity]."""

    usual: Singles = field(default_factory=lambda: np.zeros(0, np.float32))
    """Bytes in use while the task ran; forgotten slowly."""
    freed: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """When (Unix ns) they were let go of; 0: they are in use, or never were."""
    entities: list[Entity] = field(default_factory=list)
    """Those of the window that the arrays are of: another list has other numbers."""
    first: dict[str, Verdict] = field(default_factory=dict)
    """By task: who let go while nearly all others held on."""
    found: dict[str, Verdict] = field(default_factory=dict)
    """By task that ended after that."""

    def update(self, now: int, panels: Mapping[str, Panel]) -> None:
        """Look at what the GPUs hold at `now` (Unix ns)."""
        panel = panels.get("gpu")
        row = panel.row_of(MEMORY.partition(".")[2]) if panel is not None else None
        if panel is None or row is None or not len(panel.smoothing.ring):
            return
        if panel.window.entities is not self.entities:
            self.evict()
            self.entities = panel.window.entities
        ring = panel.smoothing.ring
        bytes_used = ring[(panel.smoothing.place - 1) % len(ring), row]
        count = len(bytes_used)
        self.usual, self.freed = (grown(array, (count,), 0)[:count] for array in (self.usual, self.freed))
        known = ~np.isnan(bytes_used)
        let_go = known & (bytes_used < _FREED * self.usual) & (self.usual > _LEAST_BYTES)
        self.freed = np.where(let_go, np.where(self.freed > 0, self.freed, now), np.where(known, 0, self.freed))
        self.usual = np.where(let_go | ~known, self.usual * _FADE, bytes_used).astype(np.float32)
        self.found = {task: one for task, one in self.found.items() if now - one.time < _SAID_NS}
        fresh = (self.freed > 0) & (now - self.freed <= _LONGEST_NS)
        for task in np.unique(panel.task_index[:count][fresh]).tolist():
            if task >= 0:
                self._look(now, panel, task, bytes_used)

    def _look(self, now: int, panel: Panel, task: int, bytes_used: Singles) -> None:
        """Look at a task of which some GPUs were let go of."""
        name = panel.tasks[task]
        mine = np.flatnonzero((panel.task_index[: len(bytes_used)] == task) & (self.usual > _LEAST_BYTES))
        machines, when = panel.machine[mine], self.freed[mine]
        if len(np.unique(machines)) < _FEWEST:
            return
        gone = when > 0
        if np.isnan(bytes_used[mine[gone]]).any():
            return  # they are not read any more: what they hold now is not known
        left = np.unique(machines[gone])
        if len(left) == 1 and (~gone).mean() >= _HELD:
            if name not in self.first:
                self.first[name] = _verdict(now, name, panel, mine, gone, bytes_used)
            return
        first = self.first.pop(name, None)
        if first is None or name in self.found:
            return
        lead = int(np.sort(when[gone & (when > first.since)])[:1].sum()) - first.since
        if max(_LEAD_NS, 2 * panel.window.step_ns) <= lead <= _LONGEST_NS:
            self.found[name] = _said(first, now, lead)

    def evict(self) -> None:
        """Forget all: the entities get new numbers."""
        self.usual, self.freed = self.usual[:0], self.freed[:0]
        self.first.clear()

    def findings(self) -> list[Finding]:
        """The process that ended first of each task that ended."""
        return [Finding(verdict, True, 1.0) for verdict in self.found.values()]


def _verdict(now: int, task: str, panel: Panel, mine: Ints, gone: Bools, bytes_used: Singles) -> Verdict:
    """On the GPUs of one machine that were let go of."""
    those = mine[gone]
    machine, device = panel.window.entities[those[0]]
    device = device if len(those) == 1 else None
    others = bytes_used[mine[~gone]]
    words = comparison(subject(machine, device), MEMORY, bytes_used[those[0]], float(np.nanmedian(others)), len(others))
    return Verdict(now, task, machine, device, "progress", MEMORY, 1.0, now, "crit", words)


def _said(first: Verdict, now: int, lead: int) -> Verdict:
    """The same when the others have followed."""
    message = f"{first.message}; its process ended {lead / SECOND:.0f} s before all others of task {first.task}"
    return replace(first, time=now, message=message)
