"""History: one table's readings over some minutes, on a grid of bins; counters as rates, a machine's slots as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.model.metrics import is_counter, is_judged
from detector.stats.arrays import Array, Ints
from detector.timeseries.live_window import Entity
from detector.timeseries.rows import Rows, device_of, rows_of
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

MOST_BINS = 240
MOST_ROWS = 2_000_000
"""Rows that are read at a time, about; the rest of the time span waits its turn."""


@dataclass(frozen=True, slots=True)
class History:
    """`values` is [metric, entity, bin]: means over a bin, rates a second of counters, NaN where nothing was read."""

    table: str
    metrics: tuple[str, ...]
    entities: tuple[Entity, ...]
    edges: Ints
    """[bin + 1], Unix ns."""
    values: NDArray[np.float32]
    there: NDArray[np.bool_]
    """[entity, bin]: whether there was any row."""

    @property
    def middle(self) -> Ints:
        """[bin]: its middle, Unix ns."""
        found: Ints = (self.edges[:-1] + self.edges[1:]) // 2
        return found


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some bins of a table by series; counters as last read."""

    idents: tuple[tuple[str, ...], ...]
    metrics: tuple[str, ...]
    values: Array
    time: Array
    """[series, bin]: of the last row, s since the first bin; NaN where there is none."""
    begin: int


def read_history(store: ReadableStore, table: str, begin: int, end: int) -> History | None:
    """The judged metrics of a table with begin < time <= end (Unix ns); None where there is nothing to compare."""
    look = rows_of(table, store.read(table, begin, min(end, begin + max((end - begin) // 8, 20 * SECOND))))
    width = max(2 * _step_of(look), (end - begin) // MOST_BINS, SECOND)
    edges = begin + width * np.arange((end - begin) // width + 1, dtype=np.int64)
    if len(edges) < 3:
        return None
    seen = int(look.time[-1] - look.time[0]) if len(look.time) else 0
    per_bin = len(look.time) / (seen // width + 1)
    bins = int(max(1, min(len(edges) - 1, MOST_ROWS // max(per_bin, 1.0))))
    pieces = [piece for piece in _pieces(store, table, edges, bins) if piece is not None]
    return _joined(table, pieces, edges) if pieces else None


def _step_of(rows: Rows) -> int:
    order = np.lexsort((rows.time, rows.ident))
    gap = np.diff(rows.time[order])[np.diff(rows.ident[order]) == 0]
    gap = gap[gap > 0]
    return int(np.median(gap)) if len(gap) else 0


def _pieces(store: ReadableStore, table: str, edges: Ints, bins: int) -> Iterator[_Piece | None]:
    for first in range(0, len(edges) - 1, bins):
        mine = edges[first : first + bins + 1]
        rows = rows_of(table, store.read(table, int(mine[0]), int(mine[-1])))
        yield _piece(rows, mine, first, int(edges[0])) if len(rows.time) else None


def _piece(rows: Rows, edges: Ints, begin: int, zero: int) -> _Piece:
    count = len(edges) - 1
    bins = np.clip((rows.time - edges[0] - 1) // (edges[1] - edges[0]), 0, count - 1)
    cell, shape = rows.ident * count + bins, (len(rows.idents), count)
    metrics = tuple(metric for metric in rows.metrics if is_judged(rows.table, metric))
    values = np.full((len(metrics), shape[0] * count), np.nan)
    for place, metric in enumerate(metrics):
        column = rows.number(metric)
        known = ~np.isnan(column)
        if is_counter(rows.table, metric):
            values[place, cell[known]] = column[known]  # rows are in order of time: the last one stays
        else:
            with np.errstate(invalid="ignore"):
                sums = np.bincount(cell[known], column[known], shape[0] * count)
                values[place] = sums / np.bincount(cell[known], minlength=shape[0] * count)
    time = np.full(shape[0] * count, np.nan)
    time[cell] = (rows.time - zero) / SECOND
    return _Piece(rows.idents, metrics, values.reshape(len(metrics), *shape), time.reshape(shape), begin)


def _joined(table: str, pieces: list[_Piece], edges: Ints) -> History:
    series = list(dict.fromkeys(ident for piece in pieces for ident in piece.idents))
    metrics = list(dict.fromkeys(metric for piece in pieces for metric in piece.metrics))
    number = {ident: at for at, ident in enumerate(series)}
    values = np.full((len(metrics), len(series), len(edges) - 1), np.nan)
    time = np.full(values.shape[1:], np.nan)
    for piece in pieces:
        who = np.array([number[ident] for ident in piece.idents], np.int64)
        span = np.arange(piece.begin, piece.begin + piece.time.shape[1])
        time[np.ix_(who, span)] = piece.time
        what = np.array([metrics.index(metric) for metric in piece.metrics], np.int64)
        values[np.ix_(what, who, span)] = piece.values
    for place, metric in enumerate(metrics):
        if is_counter(table, metric):
            values[place] = _rates(values[place], time)
    named = [(i[0], device_of(table, i[1:2] if table == "nccl" else i[1:])) for i in series]
    entities = {who: at for at, who in enumerate(dict.fromkeys(named))}
    owner = np.array([entities[who] for who in named], np.int64)
    folded = _folded(table, metrics, values, owner) if len(entities) < len(named) else values
    there = np.zeros((len(entities), values.shape[-1]), bool)
    np.logical_or.at(there, owner, ~np.isnan(time))
    return History(table, tuple(metrics), tuple(entities), edges, folded.astype(np.float32), there)


def _rates(values: Array, time: Array) -> Array:
    """[series, bin]: growth a second since the bin that was last known; unknown for the first and after a reset."""
    bins = np.arange(values.shape[1])
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, bins), axis=1)
    before = np.concatenate([np.full((len(values), 1), -1), last[:, :-1]], axis=1)
    each = np.arange(len(values))[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        rate: Array = (values - values[each, before]) / (time - time[each, before])
        rate[(before < 0) | ~(rate >= 0) | ~np.isfinite(rate)] = np.nan
    return rate


def _folded(table: str, metrics: list[str], values: Array, owner: Ints) -> Array:
    """Counters and shares of time add up over an entity's series; of other gauges the largest counts."""
    out = np.full((len(metrics), int(owner.max()) + 1, values.shape[-1]), np.nan)
    for place, metric in enumerate(metrics):
        if is_counter(table, metric) or metric.endswith("_ratio"):
            known = np.zeros(out.shape[1:], bool)
            np.logical_or.at(known, owner, ~np.isnan(values[place]))
            total = np.zeros(out.shape[1:])
            np.add.at(total, owner, np.nan_to_num(values[place]))
            out[place] = np.where(known, total, np.nan)
        else:
            np.fmax.at(out[place], owner, values[place])
    return out
