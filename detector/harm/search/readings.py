"""What all readings were in the last minutes, as means over some seconds, to look back on when a task loses pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.methods.peers.state import Panel
from detector.model.metrics import is_counter
from detector.stats.arrays import Ints, Singles, fitted
from store.schema.time import SECOND

ROW_NS = 10 * SECOND
"""Readings are remembered as means over so long ..."""
_ROWS = 50
"""... so many of them."""
SOON, LEAST, MOST = 3, 6, 24
"""Rows since the fall that are compared: of a great one, at least, of any, and at most ..."""
BEFORE = 12
"""... with at least so many before it; at most twice as many."""
KNOWN = 0.7
"""The share of the time since the fall in which the pace, and what caused the fall, have to be known."""


@dataclass(slots=True)
class Memory:
    """The last minutes of one table, [row, metric, entity], NaN where unknown."""

    ring: Singles = field(default_factory=lambda: np.full((_ROWS, 0, 0), np.nan, np.float32))
    """Row n lies at place n modulo their number."""
    complete: int = 0
    """Rows that were ever complete."""
    total: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """Sums of the row that is not complete, [metric, entity] ..."""
    count: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """... and of how many readings."""

    def add(self, values: Singles, complete: bool) -> None:
        """Take in readings; `complete` ends a row with them."""
        if self.total.shape != values.shape:
            self.total, self.count = (fitted(array, values.shape) for array in (self.total, self.count))
        known = ~np.isnan(values)
        np.add(self.total, values, out=self.total, where=known)
        self.count += known
        if not complete:
            return
        with np.errstate(invalid="ignore", divide="ignore"):
            row = self.total / self.count
        if self.ring.shape[1:] != values.shape:
            self.ring = fitted(self.ring, (len(self.ring), *values.shape), np.nan)
        self.ring[self.complete % len(self.ring)] = row
        self.complete += 1
        self.total, self.count = np.zeros((2, *values.shape), np.float32)

    def __len__(self) -> int:
        """Rows that are remembered."""
        return min(self.complete, len(self.ring))

    def last(self, rows: int) -> Singles:
        """The latest rows, so many at most."""
        return self.ring[np.arange(self.complete - min(rows, len(self)), self.complete) % len(self.ring)]


@dataclass(slots=True)
class Memories:
    """The memory of all tables."""

    tables: dict[str, Memory] = field(default_factory=dict)
    times: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """When each row was complete, Unix ns."""
    complete: int = 0
    """Rows that were ever complete."""

    def update(self, now: int, panels: Mapping[str, Panel]) -> bool:
        """Take in how things stand at `now` (Unix ns); whether a row is complete with it."""
        complete = not len(self.times) or now - int(self.times[-1]) >= ROW_NS
        for name, panel in panels.items():
            if panel.values.size:
                self.tables.setdefault(name, Memory()).add(_with_bursts(panel), complete)
        if complete:
            self.times = np.append(self.times, now)[-_ROWS:]
            self.complete += 1
        return complete

    def evict(self) -> None:
        """Forget all: the entities get new numbers."""
        self.tables.clear()
        self.times = self.times[:0]


def _with_bursts(panel: Panel) -> Singles:
    """What a table reads: of gauges without lone spikes, of counters all that was counted."""
    names = panel.window.metrics[: len(panel.values)]
    rows = np.array([at for at, name in enumerate(names) if is_counter(panel.window.table, name)], np.int64)
    values = panel.values.copy()
    values[rows] = panel.smoothing.mean(rows)
    return values
