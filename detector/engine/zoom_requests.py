"""Fixation: where evidence is gathering, the agent is asked to look closer at that source for a while.

After TDFN, which looks again, and finer, where its reconstruction is worst. Once a second says that a machine differs,
twenty times a second which of its devices moves first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.methods.peers.method import Peers
from detector.methods.peers.state import NO_TASK, Panel
from store.schema.catalogue import ZOOMED
from store.schema.time import NEVER, SECOND
from store.zoom_requests import ZoomRequest

SUSPECT = 0.3
"""Share of what convicts from which on a machine is looked at closer: sooner than anything is said of it."""
_MOST = 4  # machines of a task at a time: those that a verdict may have to choose between
_REST_S, _AGAIN_S = 300.0, 60.0


@dataclass(slots=True)
class ZoomPlanner:
    """Which machines were looked at closer, and until when they are no reason for another look (Unix ns)."""

    config: Config
    rest: dict[str, int] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)
    """By task, when somebody may be looked at again at all."""

    def orders(self, now: int, methods: Iterable[object]) -> list[tuple[str, ZoomRequest]]:
        """Machines and what to order of them at `now` (Unix ns, by the clock); after a look there is a rest."""
        self.rest = {machine: until for machine, until in self.rest.items() if now < until}
        found: list[tuple[str, ZoomRequest]] = []
        for method in methods if self.config.zoom_seconds > 0 else ():
            if isinstance(method, Peers):
                found += self._of(now, method.panels)
        return found

    def _of(self, now: int, panels: Mapping[str, Panel]) -> list[tuple[str, ZoomRequest]]:
        weight = _weights(panels)
        suspects: dict[str, list[str]] = {}
        for task, machine in sorted(weight, key=lambda who: -max(weight[who].values())):
            suspects.setdefault(task, []).append(machine)
        out = []
        for task, machines in suspects.items():
            first = machines[:_MOST]
            if now < self.again.get(task, NEVER) or all(machine in self.rest for machine in first):
                continue
            self.again[task] = now + int(_AGAIN_S * SECOND)
            # By one source, and together: whoever is new among them is to be told from the others.
            source = _source(weight[task, first[0]], panels)
            order = ZoomRequest(now, source, self.config.zoom_hertz, now + int(self.config.zoom_seconds * SECOND))
            out += [(machine, order) for machine in first]
            self.rest |= dict.fromkeys(first, now + int(_REST_S * SECOND))
        return out


def _weights(panels: Mapping[str, Panel]) -> dict[tuple[str, str], dict[str, float]]:
    """By task and machine, and by table, the most that speaks against a suspect, in multiples of what convicts."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for table, panel in panels.items():
        for at in np.flatnonzero(panel.weight >= SUSPECT).tolist():
            entity = int(panel.cells.entity[at])
            if panel.group[entity] != NO_TASK:
                who = panel.tasks[panel.team[entity]], panel.window.entities[entity][0]
                mine = found.setdefault(who, {})
                mine[table] = max(float(panel.weight[at]), mine.get(table, 0.0))
    return found


def _source(weight: Mapping[str, float], panels: Mapping[str, Panel]) -> str:
    """The source that can be read faster and speaks loudest; where none of them speaks, the GPUs if there are any."""
    mine = {table: there for table, there in weight.items() if table in ZOOMED}
    return max(mine, key=lambda table: mine[table]) if mine else "gpu" if "gpu" in panels else "host"
