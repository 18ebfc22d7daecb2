"""The stages of a step: each is a function from one frozen value to the next, and only reads the panel's state.

After the last stage `learning.learn` writes the state, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from detector.config import Config
from detector.methods.peers.baseline import Comparison, compare
from detector.methods.peers.cusum import (
    LOW,
    ActiveCells,
    CusumParams,
    CusumUpdate,
    accumulate,
    active_cells,
    cusum_params,
    no_cells,
    no_update,
    thresholds,
)
from detector.methods.peers.fusion import BOUNDS, FusedStep, fuse
from detector.methods.peers.nccl_context import hung_tasks, is_lateness_metric, throughput
from detector.methods.peers.state import Panel, looked_up
from detector.methods.peers.throughput_loss import ThroughputLoss
from detector.model.metrics import Bounds, bounds_of
from detector.stats.arrays import Array, Bools, Floats, Ints, Singles
from detector.stats.grouped import distinct
from store.schema.time import SECOND


@dataclass(frozen=True, slots=True)
class Judgement:
    """One table at one step; each stage fills in its part."""

    now: int
    """Unix ns."""
    values: Singles
    """[metric, entity], smoothed."""
    bounds: Bounds
    lateness: Bools
    """[metric]: whether a low reading is that of a rank that comes late."""
    hung: frozenset[str]
    """Tasks that make no progress, as far as NCCL's rows show."""
    comparison: Comparison
    params: CusumParams
    share: Floats | None
    """[group]: operations as a share of the usual rate; None where the table does not count any."""
    throughput: ThroughputLoss
    cells: ActiveCells = field(default_factory=no_cells)
    update: CusumUpdate = field(default_factory=no_update)
    fused: tuple[FusedStep, CusumUpdate] | None = None
    """The sums over metrics and their CUSUM; None at steps at which none are made."""


Stage = Callable[[Judgement, Panel, Config], Judgement]


def begin(panel: Panel, values: Singles, now: int, hung: frozenset[str], config: Config) -> Judgement:
    """The first value: readings [metric, entity] beside their peers', and what NCCL's rows say of the tasks."""
    window = panel.window
    bounds = bounds_of(window.table, window.metrics, config)
    comparison = compare(values, panel.groups, panel.baseline)
    share = throughput(panel, comparison.center)
    return Judgement(
        now,
        values,
        bounds,
        is_lateness_metric(panel),
        hung_tasks(panel, share) if window.table == "nccl" else hung,
        comparison,
        _params(panel, 1, config),
        share,
        panel.throughput if share is None else panel.throughput.after(share, now),
    )


def select_cells(step: Judgement, panel: Panel, config: Config) -> Judgement:
    """The cells with evidence. A rank that is long in its collectives waits for others: that is no sign of a fault."""
    bounds = step.bounds
    cells = active_cells(panel.cusum, step.comparison.deviation, bounds.high & ~step.lateness, bounds.low)
    return replace(step, cells=_eligible(cells, step, panel, config))


def weigh_by_slowdown(step: Judgement, panel: Panel, config: Config) -> Judgement:
    """In fast tables, count a deviation in full only if its task lost throughput by it, or it is a late rank's.

    What a rank reads that slows no task is no fault yet, be it odd: congestion and bursts pass.
    """
    cells, table = step.cells, panel.window.table
    if table not in config.fast_tables:
        return step
    late = step.lateness[cells.metric] & (cells.side == LOW)
    in_full = late | _coincides_with_slowdown(step, panel, late, config)
    return replace(step, cells=replace(cells, gain_factor=np.where(in_full, 1.0, config.fast_factor)))


def add_evidence(step: Judgement, panel: Panel, config: Config) -> Judgement:
    """Add the step's gain to the CUSUM of each cell."""
    learned = looked_up(panel.limits.metrics, step.cells.metric, panel.machine[step.cells.entity])
    threshold = thresholds(panel.cusum, step.cells, panel.group, step.params, step.bounds.unknown, learned)
    return replace(step, update=accumulate(panel.cusum, step.cells, panel.group, step.params, threshold, step.now))


def add_fused_evidence(step: Judgement, panel: Panel, config: Config) -> Judgement:
    """The same for the sums over metrics; readings less than the smoothing apart are alike, so not at every step."""
    turn = fusion_turn(panel)
    if panel.smoothing.place % turn:
        return step
    bounds, fusion = replace(step.bounds, high=step.bounds.high & ~step.lateness), panel.fusion
    fused = fuse(fusion, step.comparison.deviation, bounds, panel.groups, config)
    cells = active_cells(fusion.cusum, fused.comparison.deviation, np.ones(1, bool), np.zeros(1, bool))
    cells = _eligible(cells, step, panel, config)
    if panel.window.table in config.fast_tables:
        cells = replace(cells, gain_factor=cells.gain_factor * config.fast_factor)
    params = _params(panel, turn, config)
    learned = looked_up(panel.limits.fused, cells.metric, panel.machine[cells.entity])
    threshold = thresholds(fusion.cusum, cells, panel.group, params, BOUNDS.unknown, learned)
    return replace(step, fused=(fused, accumulate(fusion.cusum, cells, panel.group, params, threshold, step.now)))


STAGES: tuple[Stage, ...] = (select_cells, weigh_by_slowdown, add_evidence, add_fused_evidence)


def fusion_turn(panel: Panel) -> int:
    """Steps from one sum over metrics to the next."""
    return max(1, len(panel.smoothing.ring) // 2)


def _params(panel: Panel, turn: int, config: Config) -> CusumParams:
    """The CUSUM's parameters for readings that come every `turn` steps."""
    group, window = panel.group, panel.window
    members = np.bincount(group[group >= 0], minlength=panel.groups.count)
    return cusum_params(window.table, turn * window.step_ns, members * (len(window.metrics) + 1), config)


def _eligible(cells: ActiveCells, step: Judgement, panel: Panel, config: Config) -> ActiveCells:
    """Cells of entities with peers; those of a hung task, and what many machines do at once, count less."""
    with_peers = panel.group[cells.entity] >= 0
    if not with_peers.all():
        cells = cells.where(with_peers)
    if step.hung:  # what differs between the stages of a task that runs is evidence neither way
        hung = np.array([task in step.hung for task in panel.tasks])[panel.task_index[cells.entity]]
        cells = replace(cells, deviation=np.where(hung, cells.deviation.dtype.type(1), cells.deviation))
    return replace(cells, deviation=suppress_common_cause(cells, panel, len(step.values), config))


def suppress_common_cause(cells: ActiveCells, panel: Panel, metrics: int, config: Config) -> Array:
    """[cell]: deviations less what many machines do at once, which is the task's doing.

    Of many that deviate only one that deviates twice as far as any other stays a suspect.
    """
    deviation, group, over = cells.deviation.copy(), panel.group[cells.entity], cells.deviation >= 1
    series = (cells.side * metrics + cells.metric) * panel.groups.count + group
    several = np.flatnonzero(np.bincount(series[over]) > 1)
    size = distinct(panel.group, panel.machine, panel.groups.count) if len(several) else group
    for number in several:
        members = np.flatnonzero(series == number)
        most = max(1, int(config.common_cause_share * size[group[members[0]]]))
        deviation[members] = _but_the_farthest(deviation[members], panel.machine[cells.entity[members]], most)
    return deviation


def _but_the_farthest(deviation: Array, machine: Ints, most: int) -> Array:
    """Deviations [cell] on more than `most` machines [cell] put below the threshold, but for one twice as far."""
    machines, place = np.unique(machine, return_inverse=True)
    worst = np.zeros(max(2, len(machines)))
    np.maximum.at(worst, place, np.nan_to_num(deviation))
    if (worst >= 1).sum() <= most:
        return deviation
    first, second = np.sort(worst)[[-1, -2]]
    alone = (place == worst.argmax()) & (first >= 2 * second)
    return np.where(alone, deviation, np.minimum(deviation, 0.5))


def _coincides_with_slowdown(step: Judgement, panel: Panel, late: Bools, config: Config) -> Bools:
    """[cell]: whether its task lost throughput as it began, and no rank of another machine comes late (`late`)."""
    cells = step.cells
    if step.share is None:
        return np.ones(len(cells.entity), bool)
    since = np.where(panel.cusum.value[cells.at] > 0, panel.cusum.onset[cells.at], step.now)
    elsewhere = np.zeros(len(late), bool)
    for entity in cells.entity[late & (cells.deviation >= 1)]:
        same_task = panel.task_index[cells.entity] == panel.task_index[entity]
        elsewhere |= same_task & (panel.machine[cells.entity] != panel.machine[entity])
    tolerance = max(int(config.smoothing_seconds * SECOND), 2 * panel.window.step_ns)
    return step.throughput.began_with(since, panel.group[cells.entity], tolerance) & ~elsewhere
