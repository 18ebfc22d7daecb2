"""Findings in words: single metrics, sums over metrics, and sums over independent tables."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np

from detector.methods.peers.baseline import MAX_DEVIATION
from detector.methods.peers.corroboration import corroborated
from detector.methods.peers.cusum import HIGH, LOW
from detector.methods.peers.device_attribution import is_whole_machine
from detector.methods.peers.nccl_context import LATENESS_METRICS, straggler_explanation
from detector.methods.peers.state import NO_TASK, Panel
from detector.model.kinds import is_host, is_symptom
from detector.model.text import comparison, subject
from detector.model.verdict import Finding, Level, Verdict
from detector.stats.grouped import middle
from store.schema.catalogue import LOCAL

_CRITICAL = 1.5
"""Multiples of the smallest significant deviation."""
_NEAR, _FAR = 0.5, 3.0
"""The evidence of an alarm, and multiples of the smallest significant deviation, from which on harm is asked for."""


def alarm_findings(panel: Panel, now: int) -> list[Finding]:
    """The alarms of single metrics at `now` (Unix ns)."""
    alarmed = np.flatnonzero(panel.cusum.alarmed[panel.cells.at])
    alarmed = alarmed[panel.group[panel.cells.entity[alarmed]] != NO_TASK]
    return [_alarm(panel, int(at), now, float(panel.evidence[at])) for at in alarmed]


def early_findings(panel: Panel, now: int) -> list[Finding]:
    """What is far off its peers on the way to an alarm, but for what other machines cause, at `now` (Unix ns)."""
    cells, names = panel.cells, panel.window.metrics
    near = (panel.evidence >= _NEAR) & (cells.deviation >= _FAR) & (cells.gain_factor >= 1)
    near &= (panel.group[cells.entity] != NO_TASK) & ~panel.cusum.alarmed[cells.at]
    own = [at for at in np.flatnonzero(near) if not is_symptom(f"{panel.window.table}.{names[cells.metric[at]]}")]
    return [replace(_alarm(panel, int(at), now, float(panel.evidence[at])), early=True) for at in own]


def corroborated_findings(panels: Mapping[str, Panel], now: int) -> list[Finding]:
    """Devices on which independent tables agree, none of which raises an alarm by itself."""
    found = [_alarm(panel, at, now, evidence) for panel, at, evidence in corroborated(panels)]
    # The sum may cross the threshold at a step at which the strongest reading is near its peers' again.
    return [replace(one, verdict=replace(one.verdict, score=max(one.verdict.score, one.evidence))) for one in found]


def fused_findings(panel: Panel, now: int, known: Container[str]) -> list[Finding]:
    """Entities of which many metrics deviate, none enough for an alarm; `known` machines have a finding already."""
    names = panel.window.entities
    alarms = [(at, evidence) for at, evidence in panel.fusion.alarms() if panel.group[at] != NO_TASK]
    return [_fused(panel, at, now, evidence) for at, evidence in alarms if names[at][0] not in known]


def strongest_by_machine(findings: list[Finding]) -> list[Finding]:
    """One finding a machine and question that is asked of its harm: the strongest, with the others as its evidence.

    What others do to a machine, and other work on it, is mostly harmless: it must not hide what its devices do.
    """
    by_machine: dict[tuple[str, str, bool, bool], list[Finding]] = {}
    for finding in sorted(findings, key=lambda one: -one.evidence * one.verdict.score):
        verdict = finding.verdict
        key = verdict.task, verdict.machine, is_symptom(verdict.metric), is_host(verdict.metric)
        by_machine.setdefault(key, []).append(finding)
    return [_merged(*found) for found in by_machine.values()]


def _merged(first: Finding, *others: Finding) -> Finding:
    evidence = (*first.verdict.evidence, *(other.verdict.message for other in others))
    local = any(finding.verdict.metric in LOCAL for finding in (first, *others))
    return replace(first, verdict=replace(first.verdict, evidence=evidence), own=local)


def _alarm(panel: Panel, at: int, now: int, evidence: float) -> Finding:
    side, metric, entity = cell = panel.cells.cell(at)
    machine, device = panel.window.entities[entity]
    key = f"{panel.window.table}.{panel.window.metrics[metric]}"
    deviation = float(np.nan_to_num(abs(panel.deviation[metric, entity]), posinf=MAX_DEVIATION))
    device = None if is_whole_machine(panel, cell) else device
    message = compared_text(panel, metric, entity, device)
    if side == LOW and key in LATENESS_METRICS:
        message += straggler_explanation(panel, entity)
    level: Level = "crit" if deviation >= _CRITICAL else "warn"
    task, onset = panel.tasks[panel.task_index[entity]], int(panel.cusum.onset[cell])
    score = min(deviation, MAX_DEVIATION)
    return Finding(Verdict(now, task, machine, device, "peer", key, score, onset, level, message), False, evidence)


def _fused(panel: Panel, entity: int, now: int, evidence: float) -> Finding:
    machine, device = panel.window.entities[entity]
    top = panel.fusion.top_metrics(entity)
    first, *others = (compared_text(panel, metric, entity, device) for metric in top)
    message = f"{first}; {len(top)} of its readings deviate together, none far by itself"
    key, task = f"{panel.window.table}.{panel.window.metrics[top[0]]}", panel.tasks[panel.task_index[entity]]
    score, onset = panel.fusion.score(entity), int(panel.fusion.cusum.onset[HIGH, 0, entity])
    verdict = Verdict(now, task, machine, device, "peer", key, score, onset, "warn", message, tuple(others))
    return Finding(verdict, False, evidence)


def compared_text(panel: Panel, metric: int, entity: int, device: str | None) -> str:
    """What an entity reads, and its peers."""
    others = np.flatnonzero((panel.group == panel.group[entity]) & (np.arange(len(panel.group)) != entity))
    readings, name = panel.values[metric, others], subject(panel.window.entities[entity][0], device)
    key, known = f"{panel.window.table}.{panel.window.metrics[metric]}", int((~np.isnan(readings)).sum())
    return comparison(name, key, float(panel.values[metric, entity]), float(middle(readings[None])[0]), known)
