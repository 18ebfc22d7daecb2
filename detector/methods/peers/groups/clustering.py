"""Clustering: peers found from the readings themselves, in a task with communicators that show no roles.

Over ten minutes without an incident in the task, machines are split where their readings leave a clear gap: in a
metric's level, or in how it goes up and down beside the others (the first principal components of the residuals from
the common movement). A gap is clear where groups are six times as far apart as their members are spread, and by more
than the smallest significant difference. Where no gap is that clear, all are peers as before. Of readings that come
more rarely than each 15 s it takes 600 steps, two days of one each five minutes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import eq

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.methods.peers.state import NO_TASK, Panel
from detector.model.metrics import bounds_of
from detector.model.verdict import Finding
from detector.stats.arrays import Floats, Ints
from detector.stats.grouped import middle
from detector.topology.roles import ALIKE, UNKNOWN, Roles
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

STEP_NS, STEPS = 20 * SECOND, 30
_RARE_NS, _RARE_STEPS = 15 * SECOND, 20
"""Readings that are rarer than this are taken so many steps apart: loads of hours part machines for hours."""
_APART = 6.0
_SHAPES = 3
"""Principal components."""
_MOST_GAPS = 15
"""More groups than these gaps part are no stages of anything."""


@dataclass(slots=True)
class PeerClustering:
    """The readings of the last minutes, until the clusters are found."""

    series: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """By table: [step, metric, machine]."""
    taken: dict[str, int] = field(default_factory=dict)
    """Steps of each that are there."""
    version: int = -1
    """Of the tasks, for which this is done or under way."""
    taken_at: int = NEVER
    done: bool = False
    with_incidents: set[str] = field(default_factory=set)
    """Tasks that had an incident meanwhile."""

    def update(
        self, now: int, panels: Mapping[str, Panel], tasks: Tasks, with_incidents: frozenset[str], config: Config
    ) -> None:
        """Sample the readings at `now` (Unix ns); `with_incidents` are the tasks with an open incident."""
        if self.version != tasks.version:
            self.series, self.taken, self.version, self.done, self.with_incidents = {}, {}, tasks.version, False, set()
        if self.done or now - self.taken_at < _apart_ns(panels):
            return
        self.taken_at = now
        self.with_incidents |= with_incidents
        for table, panel in panels.items():
            if panel.assignment_version == (tasks.version, len(panel.window.entities)) and panel.values.size:
                self._take(table, _by_machine(panel))
        if max(self.taken.values(), default=0) >= STEPS:
            tasks.version += tasks.roles.find_alike(self._groups(panels, tasks, config))
            self.series, self.taken, self.version, self.done = {}, {}, tasks.version, True

    def _take(self, table: str, reading: NDArray[np.float32]) -> None:
        series = self.series.get(table)
        if series is None or series.shape[1:] != reading.shape:
            self.series[table], self.taken[table] = np.full((STEPS, *reading.shape), np.nan, np.float32), 0
        self.series[table][self.taken[table] % STEPS] = reading
        self.taken[table] += 1

    def _groups(self, panels: Mapping[str, Panel], tasks: Tasks, config: Config) -> dict[str, int]:
        """Machine -> group, in tasks of which nothing else is known; UNKNOWN where all are alike."""
        found: dict[str, dict[str, list[int]]] = {}
        for table, whole in self.series.items():
            panel = panels[table]
            names, task_index = _machines(panel)
            for task in np.unique(task_index[task_index != NO_TASK]).tolist():
                mine = np.flatnonzero(task_index == task)
                known = any(tasks.roles.machine.get(names[at], UNKNOWN) != UNKNOWN for at in mine)
                if _are_strangers(panel, task):
                    continue
                if not known and panel.tasks[task] not in self.with_incidents and 2 * self.taken[table] > STEPS:
                    labels = _split_by_readings(
                        whole[:, :, mine].astype(np.float64), table, panel.window.metrics, config
                    )
                    of = found.setdefault(panel.tasks[task], {})
                    for at, label in zip(mine.tolist(), labels.T.tolist(), strict=True):
                        of.setdefault(names[at], []).extend(label)
        return {name: group for of in found.values() for name, group in _merged_labels(of, config.min_peers).items()}


def _are_strangers(panel: Panel, task: int) -> bool:
    """Whether no metric of a task is compared: of machines that are no peers some are alike by chance."""
    valid = panel.peers_valid[:, np.unique(panel.group[panel.task_index == task])] if panel.peers_valid.size else None
    return valid is not None and not valid.any()


def _apart_ns(panels: Mapping[str, Panel]) -> int:
    """How far apart (ns) readings are taken."""
    step = min((panel.window.step_ns for panel in panels.values() if panel.window.step_ns), default=0)
    return max(STEP_NS, _RARE_STEPS * step if step > _RARE_NS else 0)


def _merged_labels(labels: Mapping[str, list[int]], fewest: int) -> dict[str, int]:
    """One group for each machine out of its groups by feature; where too few agree in all, the most similar one."""
    count = Counter(map(tuple, labels.values()))
    large = [label for label, members in count.items() if members >= fewest]
    if len(large) < 2:
        return dict.fromkeys(labels, UNKNOWN)
    nearest = {mine: max((sum(map(eq, mine, other)), other) for other in large)[1] for mine in count}
    return {name: ALIKE + zlib.crc32(repr(nearest[tuple(label)]).encode()) for name, label in labels.items()}


def annotate_clustered(finding: Finding, roles: Roles) -> Finding:
    """The finding, with a note if its peers were found by their readings."""
    verdict = finding.verdict
    if verdict.kind != "peer" or roles.of(verdict.machine, verdict.device) < ALIKE:
        return finding
    message = f"{verdict.message} (its peers were found by their readings)"
    return replace(finding, verdict=replace(verdict, message=message), clustered=True)


def _machines(panel: Panel) -> tuple[list[str], Ints]:
    """By the panel's numbers of machines, their names and tasks."""
    first = np.unique(panel.machine, return_index=True)[1]
    return [panel.window.entities[at][0] for at in first.tolist()], panel.task_index[first]


def _by_machine(panel: Panel) -> NDArray[np.float32]:
    """[metric, machine]: the mean of its devices, as far as they are read."""
    count, machine = int(panel.machine.max()) + 1, panel.machine[: panel.values.shape[1]]
    out = np.full((len(panel.values), count), np.nan, np.float32)
    for row, values in enumerate(panel.values):
        known = ~np.isnan(values)
        total = np.bincount(machine[known], values[known], count)
        devices = np.bincount(machine[known], minlength=count)
        np.divide(total, devices, out=out[row], where=devices > 0)
    return out


def _split_by_readings(series: Floats, table: str, metrics: list[str], config: Config) -> Ints:
    """[feature, machine]: groups by each feature that leaves clear gaps; `series` is [step, metric, machine]."""
    bounds = bounds_of(table, metrics, config)
    labels = [np.zeros(series.shape[2], np.int64)]
    for metric in range(series.shape[1]):
        mine = series[:, metric]
        if np.isnan(mine).all(0).any() or series.shape[2] < 2 * config.min_peers:
            continue
        level = middle(mine.T).astype(np.float64)
        least = max(bounds.floor[metric], bounds.relative[metric] * abs(float(np.median(level))))
        rest = np.nan_to_num(mine - level - middle(mine - level)[:, None])
        shapes = np.linalg.eigh(rest @ rest.T)[1][:, -_SHAPES:].T @ rest / len(rest) ** 0.5
        labels += [
            found for feature in (level, *shapes) if (found := _split_at_gaps(feature, least, config.min_peers)).any()
        ]
    return np.stack(labels)


def _split_at_gaps(values: Floats, least: float, fewest: int) -> Ints:
    """Groups of a feature [machine], by the most of its largest gaps that leave groups clearly apart; all 0: one group.

    Fewer than `fewest` next to a gap are no group of their own, they belong to their neighbours.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    gap = np.diff(ordered)
    best = np.zeros(len(values), np.int64)
    cuts: list[int] = []
    for at in np.argsort(-gap)[:_MOST_GAPS].tolist():
        if gap[at] <= least or not np.isfinite(gap[at]):
            break
        edges = [-1, *sorted(cuts), len(values) - 1]
        if min(abs(edge - at) for edge in edges) < fewest:
            continue
        cuts.append(at)
        group = np.searchsorted(sorted(cuts), np.arange(len(values)), side="left")
        size = np.bincount(group)
        middle = np.bincount(group, ordered) / size
        spread = float(np.mean((ordered - middle[group]) ** 2)) ** 0.5
        if np.diff(middle).min() > _APART * spread:
            best[order] = group
    return best
