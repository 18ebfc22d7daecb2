"""Findings on small differences that last, and on how readings go: repeating themselves, or late."""

from __future__ import annotations

import numpy as np

from detector.config import Config
from detector.methods.peers.baseline import MAX_DEVIATION
from detector.methods.peers.findings import compared_text
from detector.methods.peers.nccl_context import is_lateness_metric
from detector.methods.peers.slow.lasting import LASTS_NS
from detector.methods.peers.slow.warming import HEAT, Warming
from detector.methods.peers.state import NO_TASK, Panel
from detector.model.kinds import is_capacity, is_known
from detector.model.metrics import bounds_of
from detector.model.text import change, subject
from detector.model.verdict import Finding, Verdict
from store.schema.time import SECOND

_UNKNOWN_S = 240.0
_DONE = ("gpu.tensor_", "gpu.fp")
"""Readings of work that is done: who does more of it holds up no other, nor who does no more than its peers."""
_LEAST_WORK = 0.02
"""The least share by which a GPU is at work less than its peers that is said: cooling costs as much."""


def shape_findings(panel: Panel, now: int) -> list[Finding]:
    """Notes on readings that stick, or lag."""
    return [*_frozen(panel, now), *_late(panel, now)]


def lasting_findings(panel: Panel, now: int, config: Config) -> list[Finding]:
    """Small differences that last; of more machines than may be faulty at once none is named."""
    lasting, window = panel.lasting, panel.window
    if not lasting.found.any():
        return []
    bounds = bounds_of(window.table, window.metrics, config)
    cells = [
        cell for cell in lasting.cells(bounds.high & ~is_lateness_metric(panel), bounds.low) if _counts(panel, cell)
    ]
    found = []
    for (metric, group), mine in _by_group(cells, panel).items():
        machines = {int(panel.machine[entity]) for entity in mine}
        members = len(np.unique(panel.machine[panel.group == group]))
        if len(machines) > max(1, int(config.common_cause_share * members)):
            continue
        for machine in machines:
            those = [entity for entity in mine if panel.machine[entity] == machine]
            found.append(_lasts(panel, metric, those, now))
    return found


def sudden_findings(panel: Panel, now: int) -> list[Finding]:
    """Changes of many readings at once."""
    return [_sudden(panel, at, now) for at in panel.sudden.found().tolist() if panel.group[at] != NO_TASK]


def warming_findings(panel: Panel, now: int) -> list[Finding]:
    """Devices that fail to be cooled."""
    both = (panel.warming_alone, panel.alone), (panel.warming, panel.groups)
    hot = {at: warming for warming, groups in both for at in warming.found(groups).tolist()}
    return [_warms(panel, at, now, warming) for at, warming in hot.items()]


def _counts(panel: Panel, cell: tuple[int, int]) -> bool:
    """Whether a small difference is a sign of pace: power alone is none, warm chips draw more of it.

    Only what a device can do tells that within half a minute: other work passes by. A reading that the catalogue does
    not know, or the only one, has to differ for longer.
    """
    metric, entity = cell
    key = f"{panel.window.table}.{panel.window.metrics[metric]}"
    if panel.group[entity] == NO_TASK or (key == "gpu.power_watts" and not panel.lasting.others(metric, entity)):
        return False
    share, beside = panel.lasting.share(metric, entity)
    lasted_s = panel.lasting.lasted_s(metric, entity)
    if not is_capacity(key) and lasted_s < LASTS_NS / SECOND:
        return False
    if not is_capacity(key) and abs(share) < _LEAST_WORK:
        return False
    if share > 0 and (key.startswith(_DONE) or beside < _LEAST_WORK):
        return False
    confirmed = is_known(key) and len(panel.lasting.rows) > 1
    return confirmed or lasted_s >= _UNKNOWN_S


def _frozen(panel: Panel, now: int) -> list[Finding]:
    """Notes on readings that repeat themselves while the peers' move."""
    if not panel.repeating.any():
        return []
    row, steps = panel.frozen.liveliest(), panel.frozen.repeats
    words = "its readings repeat themselves since {} s, those of its peers move"
    members = panel.repeating & (panel.group[: len(panel.repeating)] != NO_TASK)
    return [_shape(panel, row, at, int(steps[at]), words, now) for at in np.flatnonzero(members).tolist()]


def _late(panel: Panel, now: int) -> list[Finding]:
    """Notes on readings that follow those of the peers too late, or too early."""
    lag, words = panel.lag, "its readings are {} s later than those of its peers"
    late = [at for at in lag.late().tolist() if panel.group[at] != NO_TASK]
    return [_shape(panel, lag.row, at, int(lag.steps[at]), words, now) for at in late]


def _lasts(panel: Panel, metric: int, those: list[int], now: int) -> Finding:
    """A finding on one machine, of some of its devices."""
    entity = max(those, key=lambda one: panel.lasting.of(metric, one)[0])
    far, since = panel.lasting.of(metric, entity)
    machine, device = panel.window.entities[entity]
    if len(those) > 2 and 2 * len(those) > int((panel.machine == panel.machine[entity]).sum()):
        device = None
    key = f"{panel.window.table}.{panel.window.metrics[metric]}"
    seconds = (now - since) / SECOND
    share, _ = panel.lasting.share(metric, entity)
    apart = f"{abs(share):.1%} {'more' if share > 0 else 'less'}".replace("%", " %")
    message = f"{compared_text(panel, metric, entity, device)}; on average {apart} than usual for {seconds:.0f} s"
    task, score = panel.tasks[panel.task_index[entity]], min(far, MAX_DEVIATION)
    verdict = Verdict(now, task, machine, device, "peer", key, score, since, "warn", message)
    return Finding(verdict, False, score, small=True)


def _warms(panel: Panel, entity: int, now: int, warming: Warming) -> Finding:
    metric = panel.window.metrics.index(HEAT)
    machine, device = panel.window.entities[entity]
    key, task = f"{panel.window.table}.{panel.window.metrics[metric]}", panel.tasks[panel.task_index[entity]]
    if warming is panel.warming:
        text = compared_text(panel, metric, entity, device)
    else:  # the peers of other tasks read something else
        text = change(subject(machine, device), key, float(panel.values[metric, entity]), warming.before(entity))
    message = f"{text}; {warming.rise(entity):.0f} K warmer than usual at the same power: look at fans and airflow"
    since = warming.since(entity)
    return Finding(Verdict(now, task, machine, device, "evidence", key, 1.0, since, "warn", message), True, 1.0)


def _shape(panel: Panel, metric: int, entity: int, steps: int, words: str, now: int) -> Finding:
    """A note on how a reading goes, which never raises an alarm: `words` say of how many seconds."""
    machine, device = panel.window.entities[entity]
    time = steps * panel.window.step_ns
    message = f"{subject(machine, device)}: {words.format(round(time / SECOND))}"
    key, task = f"{panel.window.table}.{panel.window.metrics[metric]}", panel.tasks[panel.task_index[entity]]
    verdict = Verdict(now, task, machine, device, "peer", key, 0.0, now - abs(time), "note", message)
    return Finding(verdict, False, 0.0)


def _sudden(panel: Panel, entity: int, now: int) -> Finding:
    sudden, (machine, device) = panel.sudden, panel.window.entities[entity]
    metric, count = sudden.strongest(entity)
    text = compared_text(panel, metric, entity, device)
    message = f"{text}; {count} of its readings changed at once, as they did not at this hour before"
    task, score, since = panel.tasks[panel.task_index[entity]], float(sudden.height[entity]), int(sudden.since[entity])
    key = f"{panel.window.table}.{panel.window.metrics[metric]}"
    verdict = Verdict(now, task, machine, device, "peer", key, score, since, "warn", message)
    return Finding(verdict, False, score)


def _by_group(cells: list[tuple[int, int]], panel: Panel) -> dict[tuple[int, int], list[int]]:
    """Entities by metric and peer group."""
    found: dict[tuple[int, int], list[int]] = {}
    for metric, entity in cells:
        found.setdefault((metric, int(panel.group[entity])), []).append(entity)
    return found
