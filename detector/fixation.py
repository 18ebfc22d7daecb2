"""Fixation: where evidence is gathering, the agent is asked to look closer at that source for a while.

After TDFN, which looks again, and finer, where its reconstruction is worst. Once a second says that a machine differs,
twenty times a second which of its devices moves first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import SECOND, Config
from detector.methods.peers import Peers
from detector.panel import NO_TASK, Panel
from store.catalogue import ZOOMED
from store.orders import Order

SUSPECT = 0.3
"""Share of what convicts from which on a machine is looked at closer: sooner than anything is said of it."""
_MOST = 4  # machines of a task at a time: those that a verdict may have to choose between
_REST_S = 300.0


@dataclass(slots=True)
class Fixation:
    """Which machines are looked at closer, and until when they are then left alone (Unix ns)."""

    config: Config
    rest: dict[str, int] = field(default_factory=dict)

    def orders(self, now: int, methods: Iterable[object]) -> list[tuple[str, Order]]:
        """Machines and what to order of them at `now` (Unix ns, by the clock); each machine has its rest in between."""
        self.rest = {machine: until for machine, until in self.rest.items() if now < until}
        found: list[tuple[str, Order]] = []
        for method in methods if self.config.zoom_s > 0 else ():
            if isinstance(method, Peers):
                found += self._of(now, method.panels)
        return found

    def _of(self, now: int, panels: Mapping[str, Panel]) -> list[tuple[str, Order]]:
        weight: dict[tuple[str, str], dict[str, float]] = {}
        for table, panel in panels.items():
            for at in np.flatnonzero(panel.weight >= SUSPECT).tolist():
                entity = int(panel.cells.entity[at])
                if panel.group[entity] == NO_TASK:
                    continue
                who = panel.tasks[panel.team[entity]], panel.window.entities[entity][0]
                mine = weight.setdefault(who, {})
                mine[table] = max(float(panel.weight[at]), mine.get(table, 0.0))
        given: dict[str, int] = {}
        out = []
        for (task, machine), mine in sorted(weight.items(), key=lambda item: -max(item[1].values())):
            given[task] = given.get(task, 0) + 1
            if given[task] <= _MOST and machine not in self.rest:
                self.rest[machine] = now + int(_REST_S * SECOND)
                until = now + int(self.config.zoom_s * SECOND)
                out.append((machine, Order(now, _source(mine, panels), self.config.zoom_hertz, until)))
        return out


def _source(weight: Mapping[str, float], panels: Mapping[str, Panel]) -> str:
    """The source that can be read faster and speaks loudest; where none of them speaks, the GPUs if there are any."""
    mine = {table: there for table, there in weight.items() if table in ZOOMED}
    return max(mine, key=lambda table: mine[table]) if mine else "gpu" if "gpu" in panels else "host"
