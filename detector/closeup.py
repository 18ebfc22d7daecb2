"""Close-up: one machine's readings many times a second, device by device, and which device moves before the others.

The devices of a machine share its clock, so a twentieth of a second between them means something. Between machines it
would not: their clocks differ by up to half a second. But whether two machines move alike at all, shifted by as much as
their clocks may differ, tells one fault and its consequence from two faults that have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.config import SECOND, Config
from detector.dissimilarity import bounds_of
from detector.history import Readable
from detector.rows import Rows, device_of, rows_of
from detector.window import is_counter
from store.catalogue import METRICS, ZOOM, ZOOMED

Floats = NDArray[np.float64]
_GAP_NS = 2 * SECOND
"""After a longer gap another look begins."""
_FEWEST = 40
"""Readings of a device below which nothing is drawn: two seconds at the most that an agent gives."""
_MOST, _LIVELY = 2, 0.1
_LAG_S, _CLOCKS_S = 0.5, 1.0
_TOGETHER_S = 4.0
ALIKE, _AS_ALIKE = 0.5, 0.95


@dataclass(frozen=True, slots=True)
class Closeup:
    """One metric of a machine's devices; arrays over bins of equal length."""

    key: str
    devices: tuple[str | None, ...]
    begin: int
    """Unix ns."""
    step_ns: int
    values: NDArray[np.float32]
    """[device, bin]: a second, where the metric is a counter."""
    alike: tuple[float, ...]
    """[device]: correlation with the mean of the others, at the shift at which it is most like it."""
    behind_s: tuple[float, ...]
    """[device]: that shift, positive where it moves after the others; NaN where it does not move as they do."""
    beside: tuple[tuple[str, float], ...] = ()
    """Other machines that were looked at in the same time, and how alike they move, at the best of all shifts."""


def closeups(store: Readable, machine: str, metric: str, span: tuple[int, int]) -> tuple[Closeup, ...]:
    """What the longest look at each source of a machine shows: the metric asked for, if there, and what moved most.

    `span` is the time looked through, Unix ns. Raises what the store raises.
    """
    there = store.tables()
    found = [one for table in ZOOMED if f"{table}{ZOOM}" in there for one in _of(store, table, machine, metric, span)]
    return tuple(sorted(found, key=lambda one: one.key != metric)[:_MOST])


def _of(store: Readable, table: str, machine: str, metric: str, span: tuple[int, int]) -> Iterator[Closeup]:
    rows = rows_of(table, store.read(f"{table}{ZOOM}", *span))
    mine = sorted((at for at, ident in enumerate(rows.idents) if ident[0] == machine), key=lambda at: rows.idents[at])
    look = _longest(rows, np.isin(rows.ident, mine))
    if look is None:
        return
    times = [rows.time[look & (rows.ident == at)] for at in mine]
    step = max(1, int(np.median(np.concatenate([np.diff(time) for time in times]))))
    grid = np.arange(max(time[0] for time in times), min(time[-1] for time in times) + 1, step)
    names = [name for name in rows.metrics if (known := METRICS.get(f"{table}.{name}")) and known.bad != "none"]
    values = {name: _on(grid, rows, look, mine, name) for name in names}
    devices = tuple(device_of(table, rows.idents[at][1:]) for at in mine)
    movement = {name: _movement(table, name, values[name]) for name in names}
    for name in sorted(names, key=lambda name: (f"{table}.{name}" != metric, -movement[name]))[:_MOST]:
        if movement[name] >= _LIVELY:
            alike, behind = _shifts(values[name], step / SECOND)
            head = f"{table}.{name}", devices, int(grid[0]), step
            beside = tuple(_beside(rows, machine, grid, name, values[name]))
            yield Closeup(*head, values[name].astype(np.float32), alike, behind, beside)


def _longest(rows: Rows, mine: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """[row]: whether it belongs to the longest look; None where there is none worth a word."""
    places = np.flatnonzero(mine)
    if not len(places):
        return None
    look = np.cumsum(np.append(0, np.diff(rows.time[places]) > _GAP_NS))
    chosen = places[look == np.bincount(look).argmax()]
    found = np.zeros(len(rows.time), bool)
    found[chosen] = True
    counts = np.bincount(rows.ident[chosen], minlength=len(rows.idents))[np.unique(rows.ident[places])]
    return found if counts.min() >= _FEWEST else None


def _on(grid: NDArray[np.int64], rows: Rows, look: NDArray[np.bool_], mine: list[int], name: str) -> Floats:
    """[device, bin]: a metric on the grid."""
    out = np.full((len(mine), len(grid)), np.nan)
    for place, ident in enumerate(mine):
        those = look & (rows.ident == ident)
        time, value = rows.time[those], rows.number(name)[those]
        known = ~np.isnan(value)
        time, value = time[known], value[known]
        if is_counter(rows.table, name):
            time, value = _rate(time, value)
        if len(time):
            out[place] = np.interp(grid, time, value)
    return out


def _rate(time: NDArray[np.int64], value: Floats) -> tuple[NDArray[np.int64], Floats]:
    """A counter's growth a second since it last grew: devices count less often than they can be asked."""
    grew = 1 + np.flatnonzero(np.diff(value) != 0)
    if len(grew) < 2:
        return time[:1], np.zeros(len(time[:1]))
    time, value = time[grew], value[grew]
    rate = np.diff(value) / np.diff(time) * SECOND
    return time[1:][rate >= 0], rate[rate >= 0]


def _beside(rows: Rows, machine: str, grid: NDArray[np.int64], name: str, mine: Floats) -> Iterator[tuple[str, float]]:
    """The other machines of which there is enough of the same time, and that move at all."""
    step_s = float(grid[1] - grid[0]) / SECOND
    for other in sorted({ident[0] for ident in rows.idents} - {machine}):
        theirs = [at for at, ident in enumerate(rows.idents) if ident[0] == other]
        those = np.isin(rows.ident, theirs) & (rows.time >= grid[0]) & (rows.time <= grid[-1])
        if not those.any():
            continue
        both = (grid >= rows.time[those].min()) & (grid <= rows.time[those].max())
        values = _on(grid[both], rows, those, theirs, name)
        lively = min(_movement(rows.table, name, part) for part in (values, mine[:, both])) if both.any() else 0.0
        if both.sum() * step_s >= _TOGETHER_S and lively >= _LIVELY:
            one, two = (part[~np.isnan(part).any(1)].mean(0) for part in (mine[:, both], values))
            lags = range(-int(_CLOCKS_S / step_s), int(_CLOCKS_S / step_s) + 1)
            yield other, max(_correlation(one, two, lag) for lag in lags)


def _movement(table: str, name: str, values: Floats) -> float:
    """How far the liveliest device moves, in multiples of the least difference that counts."""
    known = values[~np.isnan(values).any(1)]
    if not len(known):
        return 0.0
    bounds = bounds_of(table, [name], Config())
    least = max(float(bounds.floor[0]), float(bounds.relative[0]) * float(np.abs(known).mean()), 1e-12)
    return float(known.std(1).max()) / least


def _shifts(values: Floats, step_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each device how alike it is to the mean of the others, and by how many seconds it comes after them."""
    alike, behind = np.full(len(values), np.nan), np.full(len(values), np.nan)
    known = np.flatnonzero(~np.isnan(values).any(1))
    lags = np.arange(-int(_LAG_S / step_s), int(_LAG_S / step_s) + 1)
    for at in known if len(known) > 1 else ():
        others = values[known[known != at]].mean(0)
        found = np.array([_correlation(values[at], others, int(lag)) for lag in lags])
        alike[at] = best = found.max()
        if best >= ALIKE:
            # Where all comes again each iteration, a longer shift is as like as a short one: the short one is meant.
            edged = np.concatenate([[-np.inf], found, [-np.inf]])
            peak = (found >= edged[:-2]) & (found >= edged[2:]) & (found >= _AS_ALIKE * best)
            behind[at] = lags[peak][np.abs(lags[peak]).argmin()] * step_s
    return tuple(alike.tolist()), tuple(behind.tolist())


def _correlation(one: Floats, other: Floats, lag: int) -> float:
    """Of one with the other `lag` bins earlier."""
    size = len(one) - abs(lag)
    first, second = one[max(lag, 0) :][:size], other[max(-lag, 0) :][:size]
    spread = float(first.std() * second.std())
    return float(((first - first.mean()) * (second - second.mean())).mean()) / spread if spread > 0 else 0.0
