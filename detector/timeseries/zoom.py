"""Zoom readings: suspect machines, read many times a second, on an even time grid, counters as rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.model.metrics import bounds_of, is_counter
from detector.stats.arrays import Floats, Ints
from detector.timeseries.rows import Rows, device_of, rows_of
from store.schema.catalogue import METRICS, ZOOM, ZOOMED
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

_GAP_NS = 2 * SECOND
"""After a longer gap another zoom begins."""
_FEWEST = 40
"""Readings of a device below which nothing is made of them: two seconds at the most that an agent gives."""


@dataclass(frozen=True, slots=True)
class Look:
    """The longest zoom of one source of one machine."""

    rows: Rows
    """Those of other machines too."""
    machine: str
    series: tuple[int, ...]
    """The machine's, as places in the rows' identities: one a device."""
    grid: Ints
    """[bin], Unix ns."""
    values: dict[str, Floats]
    """Metric -> [device, bin]; NaN where a device does not have it."""

    @property
    def step_s(self) -> float:
        """From one bin to the next."""
        return float(self.grid[1] - self.grid[0]) / SECOND

    def devices(self) -> tuple[str | None, ...]:
        """The devices, as verdicts write them."""
        return tuple(device_of(self.rows.table, self.rows.idents[at][1:]) for at in self.series)


def looked_at(store: ReadableStore, span: tuple[int, int]) -> Iterator[Rows]:
    """All that was read many times a second in a time span (Unix ns), by source. Raises what the store raises."""
    there = store.tables()
    for table in ZOOMED:
        if f"{table}{ZOOM}" in there:
            yield rows_of(table, store.read(f"{table}{ZOOM}", *span))


def look_at(rows: Rows, machine: str) -> Look | None:
    """The longest zoom of a machine; None where there are too few readings."""
    series = sorted((at for at, ident in enumerate(rows.idents) if ident[0] == machine), key=lambda at: rows.idents[at])
    those = _longest(rows, np.isin(rows.ident, series))
    if those is None:
        return None
    times = [rows.time[those & (rows.ident == at)] for at in series]
    step = max(1, int(np.median(np.concatenate([np.diff(time) for time in times]))))
    grid = np.arange(max(time[0] for time in times), min(time[-1] for time in times) + 1, step)
    if len(grid) < _FEWEST:
        return None
    names = [name for name in rows.metrics if (known := METRICS.get(f"{rows.table}.{name}")) and known.compared]
    values = {name: on_grid(grid, rows, those, series, name) for name in names}
    return Look(rows, machine, tuple(series), grid, values)


def _longest(rows: Rows, mine: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """[row]: whether it belongs to the longest zoom."""
    places = np.flatnonzero(mine)
    if not len(places):
        return None
    look = np.cumsum(np.append(0, np.diff(rows.time[places]) > _GAP_NS))
    chosen = places[look == np.bincount(look).argmax()]
    found = np.zeros(len(rows.time), bool)
    found[chosen] = True
    counts = np.bincount(rows.ident[chosen], minlength=len(rows.idents))[np.unique(rows.ident[places])]
    return found if counts.min() >= _FEWEST else None


def on_grid(grid: Ints, rows: Rows, those: NDArray[np.bool_], series: list[int], name: str) -> Floats:
    """[device, bin]: a metric of some series, out of the rows that are meant."""
    out = np.full((len(series), len(grid)), np.nan)
    for place, ident in enumerate(series):
        mine = those & (rows.ident == ident)
        time, value = rows.time[mine], rows.number(name)[mine]
        known = ~np.isnan(value)
        time, value = time[known], value[known]
        if is_counter(rows.table, name):
            time, value = _rate(time, value)
        if len(time):
            out[place] = np.interp(grid, time, value)
    return out


def _rate(time: Ints, value: Floats) -> tuple[Ints, Floats]:
    """A counter's growth a second since it last grew: devices count less often than they can be asked."""
    grew = 1 + np.flatnonzero(np.diff(value) != 0)
    if len(grew) < 2:
        return time[:1], np.zeros(len(time[:1]))
    time, value = time[grew], value[grew]
    rate = np.diff(value) / np.diff(time) * SECOND
    return time[1:][rate >= 0], rate[rate >= 0]


def movement(table: str, name: str, values: Floats) -> float:
    """How far the liveliest of [device, bin] moves, in multiples of the least difference that counts."""
    known = values[~np.isnan(values).any(1)]
    if not known.size:
        return 0.0
    bounds = bounds_of(table, [name], Config())
    least = max(float(bounds.floor[0]), float(bounds.relative[0]) * float(np.abs(known).mean()), 1e-12)
    return float(known.std(1).max()) / least


def correlation(one: Floats, other: Floats, lag: int) -> float:
    """Of one curve with the other `lag` bins earlier; both are [bin]."""
    size = len(one) - abs(lag)
    first, second = one[max(lag, 0) :][:size], other[max(-lag, 0) :][:size]
    spread = float(first.std() * second.std())
    return float(((first - first.mean()) * (second - second.mean())).mean()) / spread if spread > 0 else 0.0
