"""Panel: the state of the comparison of peers for one table, and the results of its last step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.methods.peers.baseline import Baseline
from detector.methods.peers.cusum import ActiveCells, CusumState, no_cells
from detector.methods.peers.fusion import Fusion
from detector.methods.peers.slow.frozen import Frozen
from detector.methods.peers.slow.lag import Lag
from detector.methods.peers.slow.lasting import Lasting
from detector.methods.peers.slow.sudden import Sudden
from detector.methods.peers.slow.warming import Warming
from detector.methods.peers.throughput_loss import ThroughputLoss
from detector.stats.arrays import Array, Bools, Floats, Ints, Singles
from detector.stats.grouped import Groups, groups_of
from detector.stats.trimmed_mean import TrimmedMeanFilter
from detector.timeseries.live_window import Window
from store.schema.time import NEVER

NO_TASK = -1


def _unlimited() -> Singles:
    return np.ones((0, 1), np.float32)


@dataclass(slots=True)
class Limits:
    """How far healthy machines go by what the fleet has taught, in multiples of the built-in thresholds.

    Arrays [stream, machine]; the last column is for machines that it does not know yet.
    """

    metrics: Singles = field(default_factory=_unlimited)
    fused: Singles = field(default_factory=_unlimited)
    """One stream: the sum over all metrics."""
    small: Singles = field(default_factory=_unlimited)
    """[row, machine]: small lasting differences."""


@dataclass(slots=True)
class Panel:
    """State of one table; arrays are [metric, entity]."""

    window: Window
    smoothing: TrimmedMeanFilter = field(default_factory=TrimmedMeanFilter)
    baseline: Baseline = field(default_factory=Baseline)
    cusum: CusumState = field(default_factory=CusumState)
    fusion: Fusion = field(default_factory=Fusion)
    throughput: ThroughputLoss = field(default_factory=ThroughputLoss)
    frozen: Frozen = field(default_factory=Frozen)
    repeating: Bools = field(default_factory=lambda: np.zeros(0, bool))
    """[entity]: whether its readings repeat themselves."""
    lag: Lag = field(default_factory=Lag)
    lasting: Lasting = field(default_factory=Lasting)
    sudden: Sudden = field(default_factory=Sudden)
    warming: Warming = field(default_factory=Warming)
    warming_alone: Warming = field(default_factory=Warming)
    """The same of machines of which the task has few, ..."""
    alone: Groups = field(default_factory=lambda: groups_of(np.zeros(0, np.int64)))
    """... beside those of other such tasks, one group of all of them."""
    tasks: list[str] = field(default_factory=list)
    task_index: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Each entity's task, an index into `tasks`, or -1."""
    groups: Groups = field(default_factory=lambda: groups_of(np.zeros(0, np.int64)))
    """The peer group of each entity."""
    group_labels: list[tuple[int, str]] = field(default_factory=list)
    """[group]: its task, an index into `tasks`, and what its members are within it; empty: all there are."""
    pauses_since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[group]: since when (Unix ns) it pauses, while it is young; 0: it works."""
    machine: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Each entity's machine as a number."""
    judged_at: int = NEVER
    assignment_version: tuple[int, int] = (-1, -1)
    """The version of the tasks and the number of entities for which `groups` holds."""
    values: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """The smoothed readings of the last step."""
    deviation: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """Their signed deviations, in multiples of the smallest significant one."""
    center: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[metric, group]: the peers' median, the usual offsets taken off."""
    peers_valid: Bools = field(default_factory=lambda: np.zeros((0, 0), bool))
    """[metric, group]: whether the peers predict a metric."""
    cells: ActiveCells = field(default_factory=no_cells)
    evidence: Floats = field(default_factory=lambda: np.zeros(0))
    """[cell]: the CUSUM of each active cell in multiples of its alarm threshold ..."""
    height: Floats = field(default_factory=lambda: np.zeros(0))
    """... and in multiples of the built-in threshold."""
    limits: Limits = field(default_factory=Limits)
    """Thresholds that the fleet has taught."""

    @property
    def group(self) -> Ints:
        """Each entity's peer group."""
        return self.groups.of

    def row_of(self, metric: str) -> int | None:
        """The row of a metric in `values` and `center`; None: the last step had no such metric."""
        names = self.window.metrics[: len(self.values)]
        return names.index(metric) if metric in names else None

    def worked(self, rows: Ints, values: Singles) -> Singles:
        """[row, entity]: the smoothed `values` of some metrics, but of shares of time the mean of all that was read.

        Of a long iteration a device waits in one reading of several, which is no error.
        """
        found: Singles = values[rows]
        shares = np.array([self.window.metrics[row].endswith("_ratio") for row in rows], bool)
        known = ~np.isnan(found[shares])
        found[shares] = np.where(known, self.smoothing.mean(rows[shares]), np.nan)
        return found

    def evict(self, before: int) -> None:
        """Drop entities not read since `before` (Unix ns) and tasks without any; groups have to be assigned again."""
        left = self.window.evict(before)
        if left is None:
            return
        sums = self.fusion
        for state in (self.smoothing, self.baseline, self.cusum, sums.baseline, sums.cusum):
            _select(state, left)
        self.lasting.select(left)
        self.sudden.select(left)
        self.warming.select(left)
        self.warming_alone.select(left)
        self.frozen.select(left)
        self.lag = Lag()
        self.repeating = _left(self.repeating, left)
        sums.group, sums.parts = _left(sums.group, left), _left(sums.parts, left)
        sums.cells, sums.evidence, sums.height = _cells_of(sums.cells, (sums.evidence, sums.height), left)
        self.values, self.deviation = (_left(array, left) for array in (self.values, self.deviation))
        self.task_index, self.machine = _left(self.task_index, left), _left(self.machine, left)
        self.groups = groups_of(_left(self.group, left))
        used = np.unique(self.task_index[self.task_index != NO_TASK])
        self.tasks = [self.tasks[at] for at in used.tolist()]
        self.task_index = np.where(self.task_index == NO_TASK, NO_TASK, np.searchsorted(used, self.task_index))
        self.group_labels, self.assignment_version = [], (-1, -1)
        self.cells, self.evidence, self.height = _cells_of(self.cells, (self.evidence, self.height), left)

    def works_for(self, tasks: Collection[str]) -> Bools:
        """[1, group]: whether the group's task is one of these; the last column, of entities without one, is False."""
        return np.array([[self.tasks[task] in tasks for task, _ in self.group_labels] + [False]], bool)


def _left(array: NDArray[Any], left: Ints) -> NDArray[Any]:
    """The array without those along its last axis that are not left; what came later may not be in it yet."""
    return array[..., left[left < array.shape[-1]]]


def _cells_of(cells: ActiveCells, evidence: tuple[Floats, Floats], left: Ints) -> tuple[ActiveCells, Floats, Floats]:
    """The cells of the entities that are left, by their new numbers."""
    there = np.isin(cells.entity, left)
    found = cells.where(there)
    return replace(found, entity=np.searchsorted(left, found.entity)), evidence[0][there], evidence[1][there]


def _select(state: TrimmedMeanFilter | Baseline | CusumState, left: Ints) -> None:
    """Select the entities that are left in all arrays, on their last axis."""
    for part in fields(state):
        if isinstance(array := getattr(state, part.name), np.ndarray):
            setattr(state, part.name, _left(array, left))


def looked_up(limits: Singles, stream: Ints, machine: Ints) -> Singles:
    """The limits of some streams and machines, 1 where nothing is learned of a stream."""
    padded = np.vstack([limits, np.ones((1, limits.shape[1]), np.float32)])
    found: Singles = padded[np.minimum(stream, len(limits)), np.minimum(machine, limits.shape[1] - 1)]
    return found
