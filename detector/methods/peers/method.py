"""The method `peers`: in one task all machines carry the same load, so the one that goes on differing is faulty.

After Minder (NSDI'25, arXiv 2411.01791), with devices as entities, robust statistics, both directions, effect sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.methods.contract import Method
from detector.methods.peers.findings import (
    alarm_findings,
    corroborated_findings,
    early_findings,
    fused_findings,
    strongest_by_machine,
)
from detector.methods.peers.groups.assignment import assign_groups
from detector.methods.peers.learning import learn, read
from detector.methods.peers.slow.small_findings import (
    lasting_findings,
    shape_findings,
    sudden_findings,
    warming_findings,
)
from detector.methods.peers.stages import STAGES, begin
from detector.methods.peers.state import Panel
from detector.model.verdict import Finding
from detector.timeseries.live_window import Window
from detector.timeseries.rows import Rows
from detector.topology.maintenance import Acknowledgement
from detector.topology.tasks import Tasks
from store.schema.catalogue import TABLES

_DUE = 0.95
"""A step is due a little early, so that a period estimated slightly too long does not skip every other step."""


@dataclass(slots=True)
class Peers(Method):
    """The method and its state."""

    config: Config
    panels: dict[str, Panel] = field(default_factory=dict)
    hung: frozenset[str] = frozenset()
    """Tasks that make no progress, as far as their operations show."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Read new rows, judge every table the next step of which is due, and list what raises an alarm."""
        for name, new in rows.items():
            table = TABLES.get(name)
            if table is None or table.compared:
                if name not in self.panels:
                    self.panels[name] = Panel(Window(name))
                self.panels[name].window.feed(new)
        for acknowledgement in tasks.orders.fresh:
            self._acknowledge(acknowledgement)
        for panel in self.panels.values():
            if panel.window.step_ns and now - panel.judged_at >= _DUE * panel.window.step_ns:
                panel.judged_at = now
                self._judge(panel, now, tasks)
        return self._findings(now)

    def _judge(self, panel: Panel, now: int, tasks: Tasks) -> None:
        """Read, go through the stages, and write the state."""
        values = read(panel, now, self.config)
        if values is None:
            return
        assign_groups(panel, tasks, self.config)
        step = begin(panel, values, now, self.hung, self.config)
        for stage in STAGES:
            step = stage(step, panel, self.config)
        self.hung = step.hung
        learn(panel, step, self.config)

    def _findings(self, now: int) -> list[Finding]:
        """What raises an alarm at `now` (Unix ns): one finding a machine, small differences, early ones, and notes."""
        panels = self.panels.values()
        found = [finding for panel in panels for finding in alarm_findings(panel, now)]
        found += corroborated_findings(self.panels, now)
        found += [finding for panel in panels for finding in sudden_findings(panel, now)]
        known = {finding.verdict.machine for finding in found}
        found += [finding for panel in panels for finding in fused_findings(panel, now, known)]
        small = [finding for panel in panels for finding in lasting_findings(panel, now, self.config)]
        notes = [finding for panel in panels for finding in shape_findings(panel, now)]
        warm = [finding for panel in panels for finding in warming_findings(panel, now)]
        slow = [panel for panel in panels if panel.window.table not in self.config.fast_tables]
        early = [finding for panel in slow for finding in early_findings(panel, now)]
        return [*strongest_by_machine(found), *strongest_by_machine(small), *strongest_by_machine(early), *warm, *notes]

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Reset the evidence on the machine or device that the operator has acknowledged."""
        for panel in self.panels.values():
            names = enumerate(panel.window.entities)
            covered = np.array([at for at, name in names if acknowledgement.covers(*name)], np.int64)
            for cusum in (panel.cusum, panel.fusion.cusum):
                cusum.reset(covered[covered < cusum.value.shape[-1]])
            for slow in (panel.lasting, panel.sudden, panel.warming, panel.warming_alone):
                slow.reset(covered)

    def compared(self) -> Mapping[str, Panel]:
        """The panels by table."""
        return self.panels

    def evict(self, before: int, tasks: Tasks) -> None:
        """Drop entities not read since `before` (Unix ns)."""
        for panel in self.panels.values():
            panel.evict(before)
            assign_groups(panel, tasks, self.config)

    def evidence(self) -> dict[str, float]:
        """By machine, the strongest evidence."""
        found: dict[str, float] = {}
        for panel in self.panels.values():
            for entity, evidence in zip(panel.cells.entity.tolist(), panel.evidence.tolist(), strict=True):
                machine = panel.window.entities[entity][0]
                found[machine] = max(evidence, found.get(machine, 0.0))
        return found
