"""Peers: in one task all machines carry the same load, so the one that goes on differing is faulty.

After Minder (NSDI'25, arXiv 2411.01791), with devices as entities, robust statistics, both directions, effect sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.continuity import LOW, add_up, enough_of, pace_of
from detector.dissimilarity import (
    Bounds,
    Distance,
    bounds_of,
    cap_memory,
    compare,
    learn,
    learn_drift,
    middle,
    unsettle,
)
from detector.embedding import depth_of
from detector.orders import Clear
from detector.panel import COMES_LATE, NO_TASK, Panel, at_port, is_whole_machine, reason
from detector.rows import Rows
from detector.tasks import Tasks
from detector.verdict import Finding, Level, Verdict
from detector.window import Window
from detector.words import comparison, subject
from store.catalogue import TABLES

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Peers:
    """The method and its memory."""

    config: Config
    panels: dict[str, Panel] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    """Tasks and tables, as `task/table`, that have too few peers to be judged."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new, judge every table whose next step has come, and say who stands convicted."""
        for name, new in rows.items():
            table = TABLES.get(name)
            if table is None or table.judged:
                self.panels.setdefault(name, Panel(Window(name))).window.feed(new)
        for order in tasks.orders.fresh:
            self._forget(order)
        findings = []
        for panel in self.panels.values():
            # A step is due a little early, so that a step learned a hair too long does not skip every other one.
            if panel.window.step_ns and now - panel.judged_at >= 0.95 * panel.window.step_ns:
                panel.judged_at = now
                self._judge(panel, now, tasks)
            findings += self._convicted(panel, now)
        return [at_port(finding, self.panels) for finding in _by_machine(findings)]

    def _forget(self, order: Clear) -> None:
        for panel in self.panels.values():
            count = panel.streaks.evidence.shape[-1]
            whose = [at for at, who in enumerate(panel.window.entities[:count]) if order.covers(*who)]
            panel.streaks.forget(np.array(whose, np.int64))

    def suspicions(self) -> dict[str, float]:
        """By machine, the most that speaks against it, in multiples of what convicts."""
        found: dict[str, float] = {}
        for panel in self.panels.values():
            if panel.weight.size:
                most = np.nan_to_num(panel.weight).max((0, 1))
                for (machine, _), weight in zip(panel.window.entities, most.tolist(), strict=False):
                    found[machine] = max(weight, found.get(machine, 0.0))
        return found

    def _judge(self, panel: Panel, now: int, tasks: Tasks) -> None:
        window, config = panel.window, self.config
        snapshot = window.snapshot(now, config.hold_steps)
        if not snapshot.size:
            return
        self._seat(panel, tasks)
        panel.values = panel.embedding.push(snapshot, depth_of(window.step_ns / 1e9, config))
        panel.norm.fit(snapshot.shape)
        panel.streaks.fit(snapshot.shape)
        panel.strength = np.full(snapshot.shape, np.nan)
        panel.weight = np.zeros((2, *snapshot.shape))
        bounds = bounds_of(window.table, window.metrics, config)
        for number, task in enumerate(panel.tasks):
            members = np.flatnonzero(panel.group == number)
            self._note_peers(f"{task}/{window.table}", len(members))
            if len(members):
                self._judge_group(panel, members, bounds, now)
        cap_memory(panel.norm, config.memory_steps)
        panel.streaks.cleared *= 1 - 1 / config.trust_steps

    def _note_peers(self, name: str, count: int) -> None:
        (self.alone.add if 0 < count < self.config.fewest_peers else self.alone.discard)(name)

    def _judge_group(self, panel: Panel, those: Ints, bounds: Bounds, now: int) -> None:
        members = slice(len(those)) if len(those) == len(panel.group) else those
        if panel.window.table not in self.config.prompt_tables:
            unsettle(panel.norm, panel.values, members, bounds, self.config)
        distance = compare(panel.values, members, panel.norm, bounds, self.config)
        panel.strength[:, members] = distance.strength
        sided = _sided(distance, bounds)
        against = _one_or_nobody(sided, panel.machine[members], self.config)
        streams = sided.shape[1] * len(those)
        pace = pace_of(panel.window.table, panel.window.step_ns, streams, self.config)
        enough = enough_of(panel.streaks, members, pace, bounds.unknown)
        add_up(panel.streaks, against, members, pace, enough, now)
        panel.weight[:, :, members] = panel.streaks.evidence[:, : sided.shape[1]][:, :, members] / enough
        under = panel.streaks.evidence[:, : sided.shape[1]][:, :, members].max(0) > pace.enough / 8
        suspect = under | (np.nan_to_num(np.abs(distance.strength)) > 1)
        learn(panel.norm, panel.values, members, distance, np.where(suspect, 0.1, 1.0), self.config)
        depth = len(panel.embedding.ring)
        if panel.embedding.place % depth == 0:
            learn_drift(panel.norm, members, distance, depth)

    def _seat(self, panel: Panel, tasks: Tasks) -> None:
        """Give each entity its task and machine numbers; who changes task begins anew."""
        entities = panel.window.entities
        if panel.seated == (tasks.version, len(entities)):
            return
        panel.seated = (tasks.version, len(entities))
        numbers: dict[str, int] = {name: place for place, name in enumerate(panel.tasks)}
        machines: dict[str, int] = {}
        group = np.full(len(entities), NO_TASK, np.int64)
        machine = np.empty(len(entities), np.int64)
        for place, (name, _) in enumerate(entities):
            task = tasks.task_of(name)
            if task is not None:
                group[place] = numbers.setdefault(task, len(numbers))
            machine[place] = machines.setdefault(name, len(machines))
        before = np.full(len(entities), NO_TASK, np.int64)
        before[: len(panel.group)] = panel.group
        moved = np.flatnonzero((before != group) & (before != NO_TASK))
        if len(moved):
            panel.norm.forget(moved)
            panel.streaks.forget(moved)
        panel.tasks, panel.group, panel.machine = list(numbers), group, machine

    def _convicted(self, panel: Panel, now: int) -> list[Finding]:
        found = []
        for side, metric, entity in np.argwhere(panel.streaks.convicted):
            if panel.group[entity] == NO_TASK:
                continue
            weight = float(panel.weight[side, metric, entity])
            verdict = self._verdict(panel, (int(side), int(metric), int(entity)), now)
            found.append(Finding(verdict, False, weight))
        return found

    def _verdict(self, panel: Panel, cell: tuple[int, int, int], now: int) -> Verdict:
        side, metric, entity = cell
        machine, device = panel.window.entities[entity]
        task = panel.group[entity]
        others = np.flatnonzero((panel.group == task) & (np.arange(len(panel.group)) != entity))
        theirs = panel.values[metric, others]
        key = f"{panel.window.table}.{panel.window.metrics[metric]}"
        value, usual = float(panel.values[metric, entity]), float(middle(theirs[None])[0])
        strength = float(np.nan_to_num(abs(panel.strength[metric, entity]), posinf=99.0))
        if is_whole_machine(panel, cell):
            device = None
        known = int((~np.isnan(theirs)).sum())
        message = comparison(subject(machine, device), key, value, usual, known)
        if side == LOW and key in COMES_LATE:
            message += reason(panel, cell)
        since = int(panel.streaks.since[cell])
        level: Level = "crit" if strength >= 1.5 else "warn"
        return Verdict(now, panel.tasks[task], machine, device, "peer", key, min(strength, 99.0), since, level, message)


def _sided(distance: Distance, bounds: Bounds) -> NDArray[np.float64]:
    """[direction, metric, member]: what is held against a member; the harmless direction counts as no deviation."""
    unknown = np.isnan(distance.strength)
    high = np.where(bounds.high[:, None], np.maximum(distance.strength, 0), 0.0)
    low = np.where(bounds.low[:, None], np.maximum(-distance.strength, 0), 0.0)
    high[unknown] = low[unknown] = np.nan
    return np.stack([high, low])


def _one_or_nobody(sided: NDArray[np.float64], machine: Ints, config: Config) -> NDArray[np.float64]:
    """When many machines deviate at once, only one that deviates twice as far as any other stays incriminated."""
    _, place = np.unique(machine, return_inverse=True)
    count = int(place.max()) + 1
    most = max(1, int(config.spread_share * count))
    for side, metric in np.argwhere((np.nan_to_num(sided) >= 1).sum(-1) > most):
        worst = np.zeros(count)
        np.maximum.at(worst, place, np.nan_to_num(sided[side, metric]))
        if (worst >= 1).sum() <= most:
            continue
        first, second = np.sort(worst)[[-1, -2]]
        alone = (place == worst.argmax()) & (first >= 2 * second)
        sided[side, metric] = np.where(alone, sided[side, metric], np.minimum(sided[side, metric], 0.5))
    return sided


def _by_machine(found: list[Finding]) -> list[Finding]:
    """One finding a machine: the strongest speaks, the others are its evidence."""
    by_machine: dict[tuple[str, str], list[Finding]] = {}
    for finding in sorted(found, key=lambda f: -f.weight * f.verdict.score):
        by_machine.setdefault((finding.verdict.task, finding.verdict.machine), []).append(finding)
    return [
        replace(first, verdict=replace(first.verdict, evidence=tuple(other.verdict.message for other in others)))
        for first, *others in by_machine.values()
    ]
