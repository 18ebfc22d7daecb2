"""What a step leaves behind: the one place that writes the state of a panel."""

from __future__ import annotations

import math

import numpy as np

from detector.config import Config
from detector.methods.peers import fusion
from detector.methods.peers.baseline import (
    MetricBatch,
    peers_are_predictive,
    reset_contaminated,
    reset_on_level_shift,
    update_baseline,
    update_lag_variance,
    update_thresholds,
)
from detector.methods.peers.cusum import write
from detector.methods.peers.rest import clocks_of, pauses, rests, unknown_at_rest
from detector.methods.peers.slow.sudden import RARE_NS
from detector.methods.peers.slow.warming import HEAT, POWER
from detector.methods.peers.stages import Judgement, fusion_turn
from detector.methods.peers.state import Panel, looked_up
from detector.model.kinds import is_capacity, is_memory, tells_pace
from detector.model.metrics import is_counter
from detector.stats.arrays import Bools, Singles
from store.schema.time import SECOND


def read(panel: Panel, now: int, config: Config) -> Singles | None:
    """Take in the readings at `now` (Unix ns) and return them smoothed, [metric, entity]; None: there are none."""
    window = panel.window
    snapshot = window.snapshot(now, config.max_age_steps)
    if not snapshot.size:
        return None
    counters = np.array([is_counter(window.table, metric) for metric in window.metrics], bool)
    keys = [f"{window.table}.{metric}" for metric in window.metrics]
    steady = np.array([is_capacity(key) or is_memory(key) for key in keys], bool)
    panel.repeating = panel.frozen.mask(snapshot, counters, steady)
    panel.baseline.resize(snapshot.shape)
    panel.cusum.resize(snapshot.shape)
    return panel.smoothing.push(snapshot, window_steps(window.step_ns / SECOND, config))


def window_steps(step_s: float, config: Config) -> int:
    """How many steps are averaged: `smoothing_seconds` worth, but never so few that a spike cannot be dropped."""
    longest = max(config.min_smoothing_samples, math.ceil(config.smoothing_seconds))
    return min(max(math.ceil(config.smoothing_seconds / max(step_s, 1e-3)), config.min_smoothing_samples), longest)


def learn(panel: Panel, step: Judgement, config: Config) -> None:
    """Make a step the state of the panel, and learn from what is not suspect."""
    panel.values, panel.throughput = step.values, step.throughput
    panel.deviation, panel.center = step.comparison.deviation, step.comparison.center
    write(panel.cusum, step.update)
    panel.cells, panel.evidence, panel.height = step.update.cells, step.update.evidence, step.update.height
    window = panel.window
    rows = np.flatnonzero([tells_pace(f"{window.table}.{name}") for name in window.metrics])
    panel.lag.update(step.values, step.comparison.center, panel.groups, rows)
    if step.fused:
        fusion.learn(panel.fusion, *step.fused, panel.groups, fusion_turn(panel), config)
        learned = looked_up(panel.limits.small, np.arange(len(rows))[:, None], panel.machine[None])
        panel.lasting.update(step.now, panel.worked(rows, step.values), panel.baseline, panel.groups, rows, learned)
        heat, power = (panel.row_of(name) for name in (HEAT, POWER))
        if heat is not None and power is not None:
            readings = step.now, step.values[heat], step.values[power]
            panel.warming.update(*readings, panel.groups, panel.machine)
            if panel.alone.count:
                panel.warming_alone.update(*readings, panel.alone, panel.machine)
    if window.step_ns >= RARE_NS:
        times = step.now, window.step_ns
        panel.sudden.update(times, step.comparison, panel.baseline, panel.groups, step.bounds, config)
        panel.sudden.share(panel.group, panel.machine, window.step_ns, config.common_cause_share)
    _learn_baseline(panel, step, config)


def _learn_baseline(panel: Panel, step: Judgement, config: Config) -> None:
    """Update the baselines of the metrics that are next in the round."""
    baseline, comparison, groups, place = panel.baseline, step.comparison, panel.groups, panel.smoothing.place
    metrics, depth = len(step.values), len(panel.smoothing.ring)
    weight = fusion_turn(panel)
    batch = MetricBatch(slice(place % weight, metrics, weight), weight)
    resting = rests(baseline, step.values, groups, batch, clocks_of(panel, metrics))
    stands = pauses(panel, step.values, step.now, config)
    values = np.where(stands, np.nan, step.values) if stands.any() else step.values
    if panel.window.table not in config.fast_tables:
        reset_on_level_shift(baseline, values, groups, batch, step.bounds, config)
    reset_contaminated(baseline, values, comparison, groups, batch, config)
    resting |= stands
    if resting.any():
        comparison = unknown_at_rest(comparison, batch, resting)
    update_baseline(baseline, step.values, comparison, batch, _suspect(panel, step, batch), config)
    update_lag_variance(baseline, comparison, MetricBatch(slice(place % depth, metrics, depth), depth))
    if panel.peers_valid.shape != (metrics, groups.count + 1):
        panel.peers_valid = np.ones((metrics, groups.count + 1), bool)
    if step.bounds.unknown.any() and place % weight == 0:
        predictive = peers_are_predictive(baseline, comparison.deviation.shape, groups, config)
        panel.peers_valid = predictive | ~step.bounds.unknown[:, None]
    update_thresholds(baseline, comparison, groups, batch, step.bounds, panel.peers_valid, config)
    panel.cusum.retractions[:, batch.rows] *= (1 - 1 / config.retraction_decay_steps) ** weight


def _suspect(panel: Panel, step: Judgement, batch: MetricBatch) -> Bools:
    """[metric of the batch, entity]: what is to move the baseline little."""
    deviation = step.comparison.deviation[batch.rows]
    cusum = panel.cusum.value[:, batch.rows, : deviation.shape[1]].max(0, initial=0)
    threshold = np.append(step.params.threshold, np.inf)
    suspect: Bools = (cusum > panel.groups.each(threshold[None] / 8)) | (np.abs(deviation) > 1)
    suspect[:, panel.fusion.suspects()] = True
    if step.hung:
        suspect |= panel.groups.each(panel.works_for(step.hung))
    return suspect
