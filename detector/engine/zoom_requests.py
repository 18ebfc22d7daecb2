"""Zoom requests: where a machine is expected to differ from its peers, its agent samples faster for a while.

After TDFN, which samples again, and finer, where its reconstruction is worst (`zoom_model.py`). Samples once a second
show that a machine differs, twenty a second which of its devices moves first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from detector.config import Config
from detector.engine.zoom_model import ZoomModel
from detector.methods.peers.state import NO_TASK, Panel
from store.schema.catalogue import ZOOMED
from store.schema.time import NEVER, SECOND
from store.zoom_requests import ZoomRequest

SUSPECT = 3.0
"""Error of reconstruction that is expected, in significant deviations, from which on a machine is zoomed."""
Scores = dict[tuple[str, str], dict[str, float]]
"""By task and machine, and by table, how much a machine is suspect; those that are none are left out."""
_MOST = 4  # machines of a task at a time: those that a verdict may have to choose between
_REST_S, _AGAIN_S = 300.0, 60.0


@dataclass(slots=True)
class ZoomPlanner:
    """Which machines were zoomed, and until when they are no reason for another zoom (Unix ns)."""

    config: Config
    rest: dict[str, int] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)
    """By task, when a machine may be zoomed again at all."""
    score: Callable[[Mapping[str, Panel]], Scores] = field(default_factory=lambda: Expected())
    """Which machines are suspect."""

    def orders(self, now: int, panels: Mapping[str, Panel] | None) -> list[tuple[str, ZoomRequest]]:
        """Machines and the zooms to request of them at `now` (Unix ns, by the clock); after a zoom there is a rest."""
        self.rest = {machine: until for machine, until in self.rest.items() if now < until}
        if self.config.zoom_seconds <= 0 or not panels:
            return []
        scores = self.score(panels)
        suspects: dict[str, list[str]] = {}
        for task, machine in sorted(scores, key=lambda key: -max(scores[key].values())):
            suspects.setdefault(task, []).append(machine)
        out = []
        for task, machines in suspects.items():
            first = machines[:_MOST]
            if now < self.again.get(task, NEVER) or all(machine in self.rest for machine in first):
                continue
            self.again[task] = now + int(_AGAIN_S * SECOND)
            # One source for all, at the same time: they are to be distinguished from each other.
            source = _source(scores[task, first[0]], panels)
            order = ZoomRequest(now, source, self.config.zoom_hertz, now + int(self.config.zoom_seconds * SECOND))
            out += [(machine, order) for machine in first]
            self.rest |= dict.fromkeys(first, now + int(_REST_S * SECOND))
        return out


@dataclass(slots=True)
class Expected:
    """Machines with readings that are expected to stay far from their peers'."""

    model: ZoomModel = field(default_factory=ZoomModel)

    def __call__(self, panels: Mapping[str, Panel]) -> Scores:
        """The expected error of those above SUSPECT."""
        found: Scores = {}
        for table, (entities, errors) in self.model.expected(panels).items():
            panel, far = panels[table], errors >= SUSPECT
            for entity, error in zip(entities[far].tolist(), errors[far].tolist(), strict=True):
                if panel.group[entity] != NO_TASK:
                    name = panel.tasks[panel.task_index[entity]], panel.window.entities[entity][0]
                    by_table = found.setdefault(name, {})
                    by_table[table] = max(error, by_table.get(table, 0.0))
        return found


def _source(scores: Mapping[str, float], panels: Mapping[str, Panel]) -> str:
    """The source with the highest score that can be read faster; without one, the GPUs if there are any."""
    fast = {table: there for table, there in scores.items() if table in ZOOMED}
    return max(fast, key=lambda table: fast[table]) if fast else "gpu" if "gpu" in panels else "host"
