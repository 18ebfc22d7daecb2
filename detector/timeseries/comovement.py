"""Co-movement: which suspects are independent faults, by zoom readings of the same time.

The consequence of a fault moves as the fault does, in the rhythm of the task at that time. Clocks of machines differ by
half a second, so the order of two movements is not known; but whether they are correlated at any such lag is. Two
machines without such a correlation have two faults.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from detector.timeseries.zoom import Look, correlation, look_at, looked_at, movement, on_grid
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

ALIKE = 0.5
"""Correlation from which two move alike; the best of all shifts is some tenths also where there is nothing."""
BACK_NS = 60 * SECOND
"""How far back looks are of now."""
_CLOCKS_S = 1.0
_TOGETHER_S = 4.0
_LIVELY = 1.0
"""A movement below the metric's tolerance is noise, and no consequence of a fault."""

Pair = tuple[str, str]
"""Two machines, in the order of their names."""


def apart(store: ReadableStore, now: int) -> frozenset[Pair]:
    """Pairs of machines, looked at together before `now` (Unix ns), that do not move alike by what moves most in both.

    Raises what the store raises.
    """
    best: dict[Pair, tuple[float, float]] = {}
    for rows in looked_at(store, (now - BACK_NS, now)):
        for machine in sorted({ident[0] for ident in rows.idents}):
            look = look_at(rows, machine)
            if look is None:
                continue
            for other, alike, lively in (found for name in look.values for found in beside(look, name)):
                pair = min(machine, other), max(machine, other)
                best[pair] = max(best.get(pair, (0.0, 0.0)), (lively, alike))
    return frozenset(pair for pair, (_, alike) in best.items() if alike < ALIKE)


def beside(look: Look, name: str) -> Iterator[tuple[str, float, float]]:
    """The other machines that were looked at in the same time, where both move by a metric.

    Of each how alike it moves, at the best of all shifts by which clocks may differ, and how far the stiller of both
    moves, in multiples of the least difference that counts.
    """
    rows, grid = look.rows, look.grid
    lags = range(-int(_CLOCKS_S / look.step_s), int(_CLOCKS_S / look.step_s) + 1)
    for other in sorted({ident[0] for ident in rows.idents} - {look.machine}):
        series = [at for at, ident in enumerate(rows.idents) if ident[0] == other]
        those = np.isin(rows.ident, series) & (rows.time >= grid[0]) & (rows.time <= grid[-1])
        if not those.any():
            continue
        both = (grid >= rows.time[those].min()) & (grid <= rows.time[those].max())
        if both.sum() * look.step_s < _TOGETHER_S:
            continue
        mine, theirs = look.values[name][:, both], on_grid(grid[both], rows, those, series, name)
        lively = min(movement(rows.table, name, values) for values in (mine, theirs))
        if lively >= _LIVELY:
            one, two = (values[~np.isnan(values).any(1)].mean(0) for values in (mine, theirs))
            yield other, max(correlation(one, two, lag) for lag in lags), lively
