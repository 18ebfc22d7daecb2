"""Rest: the clocks of devices that have nothing to do say nothing of how chips differ at work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detector.methods.peers.baseline import Baseline, Comparison, MetricBatch
from detector.methods.peers.state import Panel
from detector.stats.arrays import Array, Bools
from detector.stats.grouped import Groups

_CLOCK = "_clock_hertz"
_AT_REST = 0.5
"""Below this share of the clock that was learned at work devices are at rest, not slow."""


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


def clocks_of(panel: Panel, metrics: int) -> Bools:
    """[metric]: which of the first `metrics` of a panel are clocks."""
    return np.array([name.endswith(_CLOCK) for name in panel.window.metrics[:metrics]], bool)


def unknown_at_rest(comparison: Comparison, batch: MetricBatch, resting: Bools) -> Comparison:
    """The comparison without the distances of clocks at rest, [metric of the batch, entity]."""
    residual = comparison.residual.copy()
    residual[batch.rows][resting] = np.nan
    return replace(comparison, residual=residual)
