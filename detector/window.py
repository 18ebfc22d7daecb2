"""From the store's rows to arrays: one table's readings on a grid of steps, counters as rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from detector.config import SECOND
from store.catalogue import METRICS, TABLES

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
NEVER = -(2**62)
"""A time before all times; differences to any real time still fit in 64 bits."""
Entity = tuple[str, str | None]
"""Machine and device; the device is None where the machine as a whole is read."""


class ArrowTable(Protocol):
    """The part of `pyarrow.Table` that is used here."""

    @property
    def schema(self) -> Any:
        """Column names and types."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    def column(self, i: str) -> Any:
        """One column."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table in time order: who (an index into `idents`), when, and what."""

    table: str
    time: Ints
    ident: Ints
    idents: tuple[tuple[str, ...], ...]
    """Machine, then the table's keys (a missing key column is left out)."""
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Floats
    """[row, metric], NaN where null."""
    texts: Mapping[str, tuple[Ints, Sequence[str]]]
    """Text columns that are not keys: codes and the words they stand for."""

    def span(self, after: int, until: int) -> Rows:
        """The rows with after < time <= until."""
        low, high = np.searchsorted(self.time, [after, until], side="right")
        texts = {name: (codes[low:high], words) for name, (codes, words) in self.texts.items()}
        return Rows(
            self.table,
            self.time[low:high],
            self.ident[low:high],
            self.idents,
            self.keys,
            self.metrics,
            self.values[low:high],
            texts,
        )

    def text(self, name: str) -> NDArray[np.object_]:
        """A text column in words; empty where null or absent."""
        if name not in self.texts:
            return np.full(len(self.time), "", object)
        codes, words = self.texts[name]
        return np.array(words, object)[codes]

    def number(self, name: str) -> Floats:
        """A numeric column; NaN where null or absent."""
        if name not in self.metrics:
            return np.full(len(self.time), np.nan)
        column: Floats = self.values[:, self.metrics.index(name)]
        return column

    def who(self, place: int) -> NDArray[np.object_]:
        """Machine (place 0) or the table's key at that place, for each row; empty where the key is absent."""
        words = np.array([ident[place] if place < len(ident) else "" for ident in self.idents] or [""], object)
        return words[self.ident]


def _is_number(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "bool"))


def _is_text(kind: str) -> bool:
    return "string" in kind or "utf8" in kind


def _codes(column: Any) -> tuple[Ints, list[str]]:
    """Dictionary codes of a text column; null reads as the empty word."""
    encoded = column.cast("string").fill_null("").combine_chunks().dictionary_encode()
    if hasattr(encoded, "combine_chunks"):
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64), encoded.dictionary.to_pylist()


def rows_of(name: str, table: ArrowTable) -> Rows:
    """A table as the store reads it, in numpy's terms; columns that are neither number nor text are left out."""
    kinds = {str(f.name): str(f.type) for f in table.schema}
    texts = {c: _codes(table.column(c)) for c, kind in kinds.items() if _is_text(kind)}
    known = TABLES.get(name)
    keys = tuple(c for c in (known.keys if known else texts) if c in kinds and c != "machine")
    texts |= {c: _codes(table.column(c)) for c in keys if c not in texts}
    numbers = tuple(c for c, kind in kinds.items() if _is_number(kind) and c != "time" and c not in keys)
    count = table.num_rows
    values = np.full((count, len(numbers)), np.nan)
    for place, column in enumerate(numbers):
        values[:, place] = table.column(column).to_numpy()
    time = np.asarray(table.column("time").to_numpy(), np.int64)
    ident, idents = _identities(texts, keys, count)
    rest = {c: v for c, v in texts.items() if c not in keys and c != "machine"}
    order = np.argsort(time, kind="stable")
    if count and (np.diff(order) != 1).any():
        time, ident, values = time[order], ident[order], values[order]
        rest = {c: (codes[order], words) for c, (codes, words) in rest.items()}
    return Rows(name, time, ident, idents, keys, numbers, values, rest)


def _identities(
    texts: dict[str, tuple[Ints, list[str]]], keys: tuple[str, ...], count: int
) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """Each row's (machine, keys …) as an index into the distinct ones."""
    parts = [texts[c] for c in ("machine", *keys) if c in texts]
    mixed = np.zeros(count, np.int64)
    for codes, words in parts:
        mixed = mixed * max(len(words), 1) + codes
    _, first, ident = np.unique(mixed, return_index=True, return_inverse=True)
    idents = tuple(tuple(words[codes[row]] for codes, words in parts) for row in first)
    return ident.reshape(-1).astype(np.int64), idents


def device_of(table: str, keys: Sequence[str]) -> str | None:
    """The device as verdicts write it: `gpu:3`, `rdma:mlx5_0/1`; the NCCL and CUDA tables speak of GPUs."""
    if not keys or not keys[0]:
        return None
    return f"{'gpu' if table in ('nccl', 'cuda') else table}:{'/'.join(keys)}"


def grown(array: NDArray[Any], shape: tuple[int, ...], fill: float) -> NDArray[Any]:
    """The array, or a larger copy of it padded with `fill`; the last axis at least doubles, so growth is amortised."""
    if all(have >= want for have, want in zip(array.shape, shape, strict=True)):
        return array
    room = [max(have, want) for have, want in zip(array.shape, shape, strict=True)]
    if array.shape[-1] < shape[-1]:
        room[-1] = max(shape[-1], 2 * array.shape[-1])
    larger = np.full(room, fill, array.dtype)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def is_counter(table: str, metric: str) -> bool:
    """Whether the column only grows: by the catalogue, else by its name."""
    known = METRICS.get(f"{table}.{metric}")
    return known.kind == "counter" if known else metric.endswith("_total")


def is_judged(table: str, metric: str) -> bool:
    """Whether peers are compared by this column; what no catalogue knows is."""
    known = METRICS.get(f"{table}.{metric}")
    return known is None or known.bad != "none"


@dataclass(slots=True)
class Window:
    """The newest reading of every metric of every entity of one table; arrays are [metric, entity].

    An `nccl` row is one communicator of a process; its slots are folded into one entity, the GPU: counters add up,
    gauges take the largest.
    """

    table: str
    metrics: list[str] = field(default_factory=list)
    entities: list[Entity] = field(default_factory=list)
    step_ns: int = 0
    """Time between two rows of one series, learned from the rows; 0 while unknown."""
    raw: Floats = field(default_factory=lambda: np.full((0, 0), np.nan))
    raw_time: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    value: Floats = field(default_factory=lambda: np.full((0, 0), np.nan))
    value_time: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    row_time: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    owner: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Which entity each series belongs to."""
    steps_seen: list[float] = field(default_factory=list)
    _series: dict[tuple[str, ...], int] = field(default_factory=dict)
    _entity: dict[Entity, int] = field(default_factory=dict)
    _idents: tuple[tuple[str, ...], ...] = ()
    _places: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def feed(self, rows: Rows) -> None:
        """Take in rows; those not newer than their series' last row are dropped (they came twice or out of order)."""
        columns = [place for place, metric in enumerate(rows.metrics) if is_judged(self.table, metric)]
        self._admit(rows, [rows.metrics[place] for place in columns])
        target = np.array([self.metrics.index(rows.metrics[place]) for place in columns], np.int64)
        series = self._places[rows.ident]
        for turn in _turns(series):
            late = rows.time[turn] > self.row_time[series[turn]]
            take = turn[late]
            self._learn_step(rows.time[take] - self.row_time[series[take]])
            self._take(series[take], rows.time[take], rows.values[take][:, columns].T, target)

    def snapshot(self, now: int, hold_steps: float) -> NDArray[np.float32]:
        """[metric, entity] at `now`: the newest value of each, NaN where none is fresh enough."""
        hold = int(hold_steps * max(self.step_ns, 1))
        count = len(self._series)
        width = len(self.metrics)
        fresh = self.value_time[:width, :count] >= now - hold
        value = np.where(fresh, self.value[:width, :count], np.nan)
        if len(self.entities) == count:
            return value.astype(np.float32)
        return self._folded(value)

    def _folded(self, value: Floats) -> NDArray[np.float32]:
        known = ~np.isnan(value)
        owner = self.owner[: value.shape[1]]
        out = np.full((len(self.metrics), len(self.entities)), np.nan, np.float32)
        for place, metric in enumerate(self.metrics):
            mine, some = owner[known[place]], value[place, known[place]]
            if is_counter(self.table, metric):
                total = np.bincount(mine, some, len(self.entities))
                seen = np.bincount(mine, minlength=len(self.entities)) > 0
                out[place, seen] = total[seen]
            else:
                np.fmax.at(out[place], mine, some.astype(np.float32))
        return out

    def _admit(self, rows: Rows, metrics: list[str]) -> None:
        new_metrics = [metric for metric in metrics if metric not in self.metrics]
        if rows.idents is self._idents and not new_metrics:
            return
        self.metrics.extend(new_metrics)
        for ident in rows.idents:
            if ident not in self._series:
                self._series[ident] = len(self._series)
                self.owner = np.append(self.owner, self._entity_of(ident))
        self._idents = rows.idents
        self._places = np.array([self._series[ident] for ident in rows.idents], np.int64)
        shape = (len(self.metrics), len(self._series))
        self.raw, self.value = (grown(a, shape, np.nan) for a in (self.raw, self.value))
        self.raw_time, self.value_time = (grown(a, shape, NEVER) for a in (self.raw_time, self.value_time))
        self.row_time = grown(self.row_time, shape[1:], NEVER)

    def _entity_of(self, ident: tuple[str, ...]) -> int:
        keys = ident[1:2] if self.table == "nccl" else ident[1:]
        entity = (ident[0], device_of(self.table, keys))
        if entity not in self._entity:
            self._entity[entity] = len(self.entities)
            self.entities.append(entity)
        return self._entity[entity]

    def _learn_step(self, gaps: Ints) -> None:
        usual = gaps[gaps < 10**17]
        if not len(usual):
            return
        self.steps_seen = [*self.steps_seen[-15:], float(np.median(usual))]
        self.step_ns = round(float(np.median(self.steps_seen)))

    def _take(self, series: Ints, time: Ints, values: Floats, target: Ints) -> None:
        """One row of each of some series: `values` is [metric, row]."""
        self.row_time[series] = time
        cell = np.ix_(target, series)
        counter = np.array([is_counter(self.table, self.metrics[place]) for place in target], bool)[:, None]
        known = ~np.isnan(values)
        since = self.raw_time[cell]
        seconds = np.where(since > NEVER, (time - since) / SECOND, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = (values - self.raw[cell]) / seconds
            rate[~(rate >= 0)] = np.nan
        value = np.where(counter, rate, values)
        self.raw[cell] = np.where(known, values, self.raw[cell])
        self.raw_time[cell] = np.where(known, time, since)
        # An unknown value (null, first of a counter, reset) leaves nothing to hold on to.
        self.value[cell] = value
        self.value_time[cell] = np.where(known, time, self.value_time[cell])


def _turns(series: Ints) -> list[Ints]:
    """Row numbers split so that each part has every series at most once, in order: all first rows, all second, …"""
    if not len(series):
        return []
    order = np.argsort(series, kind="stable")
    ordered = series[order]
    start = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    nth = np.empty(len(series), np.int64)
    nth[order] = np.arange(len(series)) - np.repeat(start, np.diff(np.r_[start, len(series)]))
    if nth.max() == 0:
        return [np.arange(len(series))]
    by_turn = np.argsort(nth, kind="stable")
    return np.split(by_turn, np.cumsum(np.bincount(nth))[:-1])
