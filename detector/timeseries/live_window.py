"""From rows to arrays: one table's readings on a grid of steps, counters as rates."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.model.metrics import is_counter, is_judged
from detector.stats.arrays import Array, Floats, Ints, grown
from detector.stats.grouped import median
from detector.timeseries.rows import Rows, device_of
from store.schema.time import NEVER, SECOND

Entity = tuple[str, str | None]
"""Machine and device; the device is None where the machine as a whole is read."""


@dataclass(slots=True)
class Window:
    """The newest reading of every metric of every series of one table; arrays are [series, metric], as rows come.

    An `nccl` row is one communicator of a process; its slots are folded into one entity, the GPU: counters and shares
    of time add up, since a rank is at one communicator after the other; of other gauges the largest counts.
    """

    table: str
    metrics: list[str] = field(default_factory=list)
    entities: list[Entity] = field(default_factory=list)
    step_ns: int = 0
    """Time between two rows of one series, learned from the rows; 0 while unknown."""
    raw: Floats = field(default_factory=lambda: np.full((0, 0), np.nan))
    """The newest known value of each counter ..."""
    raw_time: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """... and its time."""
    value: NDArray[np.float32] = field(default_factory=lambda: np.full((0, 0), np.nan, np.float32))
    """What the newest row says, a counter as its rate; an unknown one leaves nothing to hold on to."""
    row_time: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """When each series' newest row was read."""
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
        names = [rows.metrics[place] for place in columns]
        self._admit(rows, names)
        counter = np.array([is_counter(self.table, name) for name in names], bool)
        place, target = np.array(columns, np.int64), np.array([self.metrics.index(name) for name in names], np.int64)
        series = self._places[rows.ident]
        for turn in _turns(series):
            late = rows.time[turn] > self.row_time[series[turn]]
            take = turn if late.all() else turn[late]
            self._learn_step(rows.time[take] - self.row_time[series[take]])
            taken = rows.values if len(take) == len(rows.values) else rows.values[take]
            new = np.full((len(take), len(self.metrics)), np.nan, np.float32)
            new[:, target[~counter]] = taken[:, place[~counter]]
            new[:, target[counter]] = self._rates(
                series[take], rows.time[take], taken[:, place[counter]], target[counter]
            )
            self.value[series[take], : len(self.metrics)] = new
            self.row_time[series[take]] = rows.time[take]

    def snapshot(self, now: int, hold_steps: float) -> NDArray[np.float32]:
        """[metric, entity] at `now`: the newest value of each, NaN where none is fresh enough."""
        hold = int(hold_steps * max(self.step_ns, 1))
        count = len(self._series)
        value = self.value[:count, : len(self.metrics)].T.copy()
        value[:, self.row_time[:count] < now - hold] = np.nan
        return value if len(self.entities) == count else self._folded(value)

    def evict(self, before: int) -> Ints | None:
        """Forget series not read since `before` (Unix ns); the places of the entities that are left, None: of all."""
        count = len(self._series)
        series = np.flatnonzero(self.row_time[:count] >= before)
        if len(series) == count:
            return None
        names = list(self._series)
        self._series = {names[old]: new for new, old in enumerate(series.tolist())}
        left, self.owner = np.unique(self.owner[series], return_inverse=True)
        self.entities = [self.entities[old] for old in left.tolist()]
        self._entity = {who: place for place, who in enumerate(self.entities)}
        self.raw, self.raw_time, self.value = self.raw[series], self.raw_time[series], self.value[series]
        self.row_time = self.row_time[series]
        self._idents, self._places = (), np.zeros(0, np.int64)
        return left

    def _folded(self, value: NDArray[np.float32]) -> NDArray[np.float32]:
        known = ~np.isnan(value)
        owner = self.owner[: value.shape[1]]
        out = np.full((len(self.metrics), len(self.entities)), np.nan, np.float32)
        for place, metric in enumerate(self.metrics):
            mine, some = owner[known[place]], value[place, known[place]]
            if is_counter(self.table, metric) or metric.endswith("_ratio"):
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
        owners = []
        for ident in rows.idents:
            if ident not in self._series:
                self._series[ident] = len(self._series)
                owners.append(self._entity_of(ident))
        self.owner = np.append(self.owner, np.array(owners, np.int64))
        self._idents = rows.idents
        self._places = np.array([self._series[ident] for ident in rows.idents], np.int64)
        shape = (len(self._series), len(self.metrics))
        self.raw, self.value = grown(self.raw, shape, np.nan, 0), grown(self.value, shape, np.nan, 0)
        self.raw_time, self.row_time = grown(self.raw_time, shape, NEVER, 0), grown(self.row_time, shape[:1], NEVER)

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
        self.steps_seen = [*self.steps_seen[-15:], median(usual)]
        self.step_ns = round(median(np.array(self.steps_seen)))

    def _rates(self, series: Ints, time: Ints, values: Array, target: Ints) -> Floats:
        """[row, counter]: growth a second since the last known value; unknown for the first and after a reset."""
        in_order = np.array_equal(series, np.arange(len(series)))  # mostly; a slice is gathered three times as fast
        cell = (slice(len(series)), target) if in_order else np.ix_(series, target)
        known = ~np.isnan(values)
        before, since = self.raw[cell], self.raw_time[cell]
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = (values - before) / ((time[:, None] - since) / SECOND)
            rate[~(rate >= 0)] = np.nan
        whole = known.all()
        self.raw[cell] = values if whole else np.where(known, values, before)
        self.raw_time[cell] = time[:, None] if whole else np.where(known, time[:, None], since)
        return rate


def _turns(series: Ints) -> list[Ints]:
    """Row numbers split so that each part has every series at most once, in order: all first rows, all second, …"""
    if not len(series):
        return []
    order = np.argsort(series, kind="stable")
    ordered = series[order]
    others = ordered[1:] != ordered[:-1]
    if others.all():
        return [np.arange(len(series))]
    start = np.flatnonzero(np.r_[True, others])
    nth = np.empty(len(series), np.int64)
    nth[order] = np.arange(len(series)) - np.repeat(start, np.diff(np.r_[start, len(series)]))
    by_turn = np.argsort(nth, kind="stable")
    return np.split(by_turn, np.cumsum(np.bincount(nth))[:-1])
