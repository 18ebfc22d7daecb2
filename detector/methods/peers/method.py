"""Peers: in one task all machines carry the same load, so the one that goes on differing is faulty.

After Minder (NSDI'25, arXiv 2411.01791), with devices as entities, robust statistics, both directions, effect sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.methods.peers.assignment import seat
from detector.methods.peers.baseline import Distance, Part, compare, has_peers, learn, learn_drift, mend, rule, unsettle
from detector.methods.peers.common_cause import one_or_nobody
from detector.methods.peers.corroboration import agreed
from detector.methods.peers.cusum import HIGH, LOW, Cells, Pace, add_up, enough_of, pace_of, suspects
from detector.methods.peers.device_attribution import is_whole_machine
from detector.methods.peers.nccl_context import COMES_LATE, is_prompt, look_at_pace, reason, slows, standing_tasks
from detector.methods.peers.slow.small_findings import lasting_findings, said_of, shape_findings
from detector.methods.peers.smoothing import depth_of
from detector.methods.peers.state import NO_TASK, Panel
from detector.model.kinds import tells_pace
from detector.model.metrics import Bounds, bounds_of, is_counter
from detector.model.verdict import Finding, Level, Verdict
from detector.timeseries.live_window import Window
from detector.timeseries.rows import Rows
from detector.topology.maintenance import Acknowledgement
from detector.topology.tasks import Tasks
from store.schema.catalogue import LOCAL, TABLES
from store.schema.time import SECOND


@dataclass(slots=True)
class Peers:
    """The method and its memory."""

    config: Config
    panels: dict[str, Panel] = field(default_factory=dict)
    standing: list[str] = field(default_factory=list)
    """Tasks that stand still, as far as their operations tell."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new, judge every table whose next step has come, and say who stands convicted."""
        for name, new in rows.items():
            table = TABLES.get(name)
            if table is None or table.compared:
                self.panels.setdefault(name, Panel(Window(name))).window.feed(new)
        for order in tasks.orders.fresh:
            self._forget(order)
        findings: list[Finding] = []
        small: list[Finding] = []
        notes: list[Finding] = []
        for panel in self.panels.values():
            # A step is due a little early, so that a step learned a hair too long does not skip every other one.
            if panel.window.step_ns and now - panel.judged_at >= 0.95 * panel.window.step_ns:
                panel.judged_at = now
                self._judge(panel, now, tasks)
            findings += self._convicted(panel, now)
            small += lasting_findings(panel, now, self.config)
            notes += shape_findings(panel, now)
        for panel, at, weight in agreed(self.panels):
            findings.append(Finding(self._verdict(panel, panel.cells.cell(at), now), False, weight))
        known = {finding.verdict.machine for finding in findings}
        for panel in self.panels.values():
            findings += [finding for finding in self._fused(panel, now) if finding.verdict.machine not in known]
        return [*_by_machine(findings), *_by_machine(small), *notes]

    def _forget(self, order: Acknowledgement) -> None:
        for panel in self.panels.values():
            for streaks in (panel.streaks, panel.fusion.streaks):
                count = streaks.evidence.shape[-1]
                whose = [at for at, who in enumerate(panel.window.entities[:count]) if order.covers(*who)]
                streaks.forget(np.array(whose, np.int64))
            named = [at for at, who in enumerate(panel.window.entities) if order.covers(*who)]
            panel.lasting.forget(np.array(named, np.int64))

    def suspicions(self) -> dict[str, float]:
        """By machine, the most that speaks against it, in multiples of what convicts."""
        found: dict[str, float] = {}
        for panel in self.panels.values():
            for entity, weight in zip(panel.cells.entity.tolist(), panel.weight.tolist(), strict=True):
                machine = panel.window.entities[entity][0]
                found[machine] = max(weight, found.get(machine, 0.0))
        return found

    def _judge(self, panel: Panel, now: int, tasks: Tasks) -> None:
        window, config = panel.window, self.config
        snapshot = window.snapshot(now, config.max_age_steps)
        if not snapshot.size:
            return
        seat(panel, tasks, self.config)
        counters = np.array([is_counter(window.table, metric) for metric in window.metrics], bool)
        panel.stuck = panel.frozen.mask(snapshot, counters)
        panel.values = panel.embedding.push(snapshot, depth_of(window.step_ns / 1e9, config))
        panel.norm.fit(snapshot.shape)
        panel.streaks.fit(snapshot.shape)
        bounds = bounds_of(window.table, window.metrics, config)
        distance = compare(panel.values, panel.groups, panel.norm)
        panel.strength, panel.center = distance.strength, distance.center
        streams = np.bincount(panel.group[panel.group >= 0], minlength=panel.groups.count) * (len(window.metrics) + 1)
        pace = pace_of(window.table, window.step_ns, streams, config)
        if window.table == "nccl":
            self.standing = standing_tasks(panel, distance.center)
        look_at_pace(panel, distance.center, now)
        rows = [at for at, name in enumerate(window.metrics) if tells_pace(f"{window.table}.{name}")]
        panel.lag.note(panel.values, distance.center, panel.groups, np.array(rows, np.int64))
        panel.cells = self._suspects(panel, bounds, now)
        enough = enough_of(panel.streaks, panel.cells, panel.group, pace, bounds.unknown)
        add_up(panel.streaks, panel.cells, panel.group, pace, enough, now)
        panel.weight = panel.streaks.evidence[panel.cells.at] / enough
        turn = max(1, len(panel.embedding.ring) // 2)
        if panel.embedding.place % turn == 0:
            self._fuse(panel, bounds, pace_of(window.table, turn * window.step_ns, streams, config), now)
            panel.lasting.note(now, distance, panel.norm, panel.groups, np.array(rows, np.int64))
        self._study(panel, distance, bounds, np.append(pace.enough, np.inf))

    def _fuse(self, panel: Panel, bounds: Bounds, pace: Pace, now: int) -> None:
        """Judge the sums over metrics; readings less than the smoothing apart say the same, so not at every step."""
        fusion, turn = panel.fusion, max(1, len(panel.embedding.ring) // 2)
        prompt = is_prompt(panel)
        distance = fusion.look(panel.strength, replace(bounds, high=bounds.high & ~prompt), panel.groups, self.config)
        cells = self._fair(panel, suspects(fusion.streaks, distance.strength, np.ones(1, bool), np.zeros(1, bool)))
        if panel.window.table in self.config.fast_tables:
            cells.urgency *= self.config.fast_factor
        fusion.judge(cells, pace, panel.group, now)
        fusion.study(distance, panel.groups, turn, self.config)

    def _suspects(self, panel: Panel, bounds: Bounds, now: int) -> Cells:
        prompt = is_prompt(panel)
        # Who is long in its collectives waits for others: for a late rank, or for all while it has no work of its own.
        found = self._fair(panel, suspects(panel.streaks, panel.strength, bounds.high & ~prompt, bounds.low))
        if panel.window.table in self.config.fast_tables:
            slack = max(int(self.config.smoothing_seconds * SECOND), 2 * panel.window.step_ns)
            hurry = (prompt[found.metric] & (found.side == LOW)) | slows(panel, found, now, slack)
            found.urgency = np.where(hurry, 1.0, self.config.fast_factor)
        return found

    def _fair(self, panel: Panel, found: Cells) -> Cells:
        """Hold nothing against who has no peers, stands still, or does as many others do."""
        seated = panel.group[found.entity] >= 0
        if not seated.all():
            side, metric, entity = (part[seated] for part in found.at)
            found = Cells(side, metric, entity, found.strength[seated], found.urgency[seated])
        if self.standing:  # what differs between the stages of a task that runs speaks neither for nor against them
            stands = np.array([task in self.standing for task in panel.tasks])
            found.strength[stands[panel.team[found.entity]]] = 1.0
        one_or_nobody(found, panel, self.config)
        return found

    def _study(self, panel: Panel, distance: Distance, bounds: Bounds, enough: NDArray[np.float64]) -> None:
        """Look after the norm of those metrics whose turn it is; `enough` [group] are the nats that convict."""
        config, (metrics, count), place = self.config, distance.strength.shape, panel.embedding.place
        depth = len(panel.embedding.ring)
        weight = max(1, depth // 2)
        part = Part(slice(place % weight, metrics, weight), weight)
        if panel.window.table not in config.fast_tables:
            unsettle(panel.norm, panel.values, panel.groups, part, bounds, config)
        mend(panel.norm, panel.values, distance, panel.groups, part, config)
        most = panel.streaks.evidence[:, part.rows, :count].max(0, initial=0)
        suspect = (most > panel.groups.each(enough[None] / 8)) | (np.abs(distance.strength[part.rows]) > 1)
        suspect[:, panel.fusion.suspected()] = True
        if self.standing:
            suspect |= panel.groups.each(panel.stands(self.standing))
        learn(panel.norm, panel.values, distance, part, suspect, config)
        learn_drift(panel.norm, distance, Part(slice(place % depth, metrics, depth), depth))
        if panel.believed.shape != (metrics, panel.groups.count + 1):
            panel.believed = np.ones((metrics, panel.groups.count + 1), bool)
        if bounds.unknown.any() and place % weight == 0:
            theirs = has_peers(panel.norm, distance.strength.shape, panel.groups, config)
            panel.believed = theirs | ~bounds.unknown[:, None]
        rule(panel.norm, distance, panel.groups, part, bounds, panel.believed, config)
        panel.streaks.cleared[:, part.rows] *= (1 - 1 / config.retraction_decay_steps) ** weight

    def _convicted(self, panel: Panel, now: int) -> list[Finding]:
        found = []
        for at in np.flatnonzero(panel.streaks.convicted[panel.cells.at]):
            cell = panel.cells.cell(int(at))
            if panel.group[cell[-1]] != NO_TASK:
                verdict = self._verdict(panel, cell, now)
                found.append(Finding(verdict, False, float(panel.weight[at])))
        return found

    def _fused(self, panel: Panel, now: int) -> list[Finding]:
        """Who stands convicted by many metrics none of which convicts."""
        fusion, found = panel.fusion, []
        for entity, weight in fusion.convicted():
            if panel.group[entity] == NO_TASK:
                continue
            machine, device = panel.window.entities[entity]
            most = fusion.foremost(entity)
            first, *others = (said_of(panel, metric, entity, device) for metric in most)
            verdict = Verdict(
                now,
                panel.tasks[panel.team[entity]],
                machine,
                device,
                "peer",
                f"{panel.window.table}.{panel.window.metrics[most[0]]}",
                fusion.score(entity),
                int(fusion.streaks.since[HIGH, 0, entity]),
                "warn",
                f"{first}; {len(most)} of its readings deviate together, none far by itself",
                tuple(others),
            )
            found.append(Finding(verdict, False, weight))
        return found

    def _verdict(self, panel: Panel, cell: tuple[int, int, int], now: int) -> Verdict:
        side, metric, entity = cell
        machine, device = panel.window.entities[entity]
        key = f"{panel.window.table}.{panel.window.metrics[metric]}"
        strength = float(np.nan_to_num(abs(panel.strength[metric, entity]), posinf=99.0))
        if is_whole_machine(panel, cell):
            device = None
        message = said_of(panel, metric, entity, device)
        if side == LOW and key in COMES_LATE:
            message += reason(panel, cell)
        since = int(panel.streaks.since[cell])
        level: Level = "crit" if strength >= 1.5 else "warn"
        return Verdict(
            now,
            panel.tasks[panel.team[entity]],
            machine,
            device,
            "peer",
            key,
            min(strength, 99.0),
            since,
            level,
            message,
        )


def _by_machine(found: list[Finding]) -> list[Finding]:
    """One finding a machine: the strongest speaks, the others are its evidence."""
    by_machine: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(found, key=lambda f: -f.weight * f.verdict.score):
        by_machine.setdefault((finding.verdict.task, finding.verdict.machine), []).append(finding)
    told = []
    for first, *others in by_machine.values():
        evidence = (*first.verdict.evidence, *(other.verdict.message for other in others))
        own = any(finding.verdict.metric in LOCAL for finding in (first, *others))
        told.append(replace(first, verdict=replace(first.verdict, evidence=evidence), own=own))
    return told
