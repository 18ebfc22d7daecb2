"""Rest: what devices read while they have nothing to do says nothing of how they differ at work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detector.config import Config
from detector.methods.peers.baseline import Baseline, Comparison, MetricBatch
from detector.methods.peers.state import Panel
from detector.model.kinds import is_done, tells_use
from detector.stats.arrays import Array, Bools
from detector.stats.grouped import Groups
from store.schema.time import SECOND

_CLOCK = "_clock_hertz"
_AT_REST = 0.5
"""Below this share of the clock that was learned at work devices are at rest, not slow."""
_STANDS, _CHECKPOINT_NS = 0.3, 120 * SECOND
"""Below this share of its usual work a group pauses, for so long at most: then that is how it works now."""


def rests(baseline: Baseline, values: Array, groups: Groups, batch: MetricBatch, clocks: Bools) -> Bools:
    """[metric of the batch, entity]: which `clocks` [metric] are those of groups at rest: nothing is learned of them.

    What was learned before a group began to work is forgotten.
    """
    begins: Bools = np.zeros(values[batch.rows].shape, bool)
    resting = begins.copy()
    rows = np.flatnonzero(clocks[batch.rows])
    if len(rows):
        level = groups.middle(baseline.level[batch.rows, : values.shape[1]][rows])
        now = groups.middle(values[batch.rows][rows])
        with np.errstate(invalid="ignore"):
            begins[rows] = groups.each((level > 0) & (level < _AT_REST * now))
            resting[rows] = groups.each(now < _AT_REST * level)
        baseline.reset_cells(batch, begins)
    return resting


def pauses(panel: Panel, values: Array, now: int, config: Config) -> Bools:
    """[entity]: which are of a young group that pauses at `now` (Unix ns), as for a checkpoint.

    All of them read alike then: what was learned of how they differ at work is right, and what they read now is not.
    """
    count, groups, names = values.shape[1], panel.groups, panel.window.metrics[: len(values)]
    keys = [f"{panel.window.table}.{name}" for name in names]
    rows = np.flatnonzero([is_done(key) or tells_use(key) for key in keys])
    if len(panel.pauses_since) != groups.count + 1:
        panel.pauses_since = np.zeros(groups.count + 1, np.int64)
    samples = groups.middle(panel.baseline.samples[rows, :count])
    if not (samples < config.startup_steps).any():  # nor where nothing tells what is done
        return np.zeros(count, bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = groups.middle(values[rows]) / groups.middle(panel.baseline.level[rows, :count])
        stands = (np.nan_to_num(share, nan=1.0, posinf=1.0).max(0) < _STANDS) & (samples < config.startup_steps).all(0)
    panel.pauses_since[:] = np.where(stands, np.where(panel.pauses_since, panel.pauses_since, now), 0)
    found: Bools = (stands & (now - panel.pauses_since < _CHECKPOINT_NS))[groups.of]
    return found


def clocks_of(panel: Panel, metrics: int) -> Bools:
    """[metric]: which of the first `metrics` of a panel are clocks."""
    return np.array([name.endswith(_CLOCK) for name in panel.window.metrics[:metrics]], bool)


def unknown_at_rest(comparison: Comparison, batch: MetricBatch, resting: Bools) -> Comparison:
    """The comparison without the distances of clocks at rest, [metric of the batch, entity]."""
    residual = comparison.residual.copy()
    residual[batch.rows][resting] = np.nan
    return replace(comparison, residual=residual)
