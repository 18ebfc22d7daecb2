"""The behaviour of ranks from a store or recording, from outside of the job; issue latency cannot be seen there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from analysis.behaviour.measures import Behaviour
from detector.stats.arrays import Floats, Ints
from detector.timeseries.rows import Rows, rows_of
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

_NCCL = ("comm", "ranks", "bytes_total", "active_ratio", "iteration_seconds", "operation")
_RATES = (
    ("cuda", "gc_seconds_total", "gc"),
    ("cuda", "synchronize_seconds_total", "synchronise"),
    ("process", "disk_wait_seconds_total", "disk_wait"),
)


@dataclass(slots=True)
class _Series:
    """The rows of one entity, in order of time."""

    name: str
    at: Ints
    rows: Rows

    def number(self, column: str) -> Floats:
        return np.asarray(self.rows.number(column)[self.at], np.float64)

    def rate(self, column: str) -> Floats:
        """Growth by the second; NaN where a counter began again or nothing is known."""
        time, value = self.rows.time[self.at] / SECOND, self.number(column)
        grown = np.diff(value) / np.maximum(np.diff(time), 1e-3)
        return np.where(grown >= 0, grown, np.nan)


def read_store(store: ReadableStore, after: int, until: int, machines: Collection[str] | None = None) -> Behaviour:
    """The behaviour between two times (Unix ns), of some machines or all. Raises StoreError."""
    nccl = _series(store, "nccl", _NCCL, after, until, machines)
    size = max((int(np.nanmax(one.number("ranks"), initial=0)) for one in nccl), default=0)
    behaviour = Behaviour(size, _program(nccl))
    for one in nccl:
        behaviour.add("iteration_seconds", one.name, one.number("iteration_seconds"))
        active = one.number("active_ratio")[1:]
        rate = np.where(active > 0.01, one.rate("bytes_total") / np.maximum(active, 0.01), np.nan)
        behaviour.add(f"bandwidth of {_group(one)}", one.name, rate)
    for one in _series(
        store, "gpu", ("tensor_active_ratio", "sm_clock_hertz", "duty_cycle_ratio"), after, until, machines
    ):
        behaviour.add("compute_rate", one.name, one.number("tensor_active_ratio") * one.number("sm_clock_hertz"))
        behaviour.add("void", one.name, 1 - one.number("duty_cycle_ratio"))
    for table, column, measure in _RATES:
        for one in _series(store, table, (column,), after, until, machines):
            behaviour.add(measure, one.name, one.rate(column))
    return behaviour


def _series(
    store: ReadableStore, table: str, columns: tuple[str, ...], after: int, until: int, machines: Collection[str] | None
) -> list[_Series]:
    rows = rows_of(table, store.read(table, after, until, columns))
    order = np.lexsort((rows.time, rows.ident))
    ident = rows.ident[order]
    found = []
    for at in np.split(order, np.flatnonzero(np.diff(ident)) + 1) if len(order) else []:
        words = rows.idents[rows.ident[at[0]]]
        if machines is None or words[0] in machines:
            found.append(_Series(f"{words[0]} gpu:{words[1]}", at, rows))
    return found


def _text(one: _Series, column: str) -> str:
    words = [word for word in one.rows.text(column)[one.at] if word]
    return str(words[-1]) if words else "unknown"


def _group(one: _Series) -> str:
    """A communicator by its last operation and its size: its own name is another one in every run."""
    kind = _text(one, "operation").split(":")[0]
    return f"{kind} over {np.nanmax(one.number('ranks'), initial=0):.0f} ranks"


def _program(series: list[_Series]) -> str:
    """Operations and sizes of the communicators."""
    return ", ".join(sorted({_group(one) for one in series}))[:400]
