"""The last minute of the key readings of every machine and GPU, read from the store bit by bit."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cli.queries.fleet_status import LOOK_NS, READINGS, last_seen
from detector.timeseries.rows import Rows, rows_of
from store.schema.time import SECOND

if TYPE_CHECKING:
    from store.schema.contract import Store

SECONDS = 60
OVERLAP_NS = 3 * SECOND
"""So far back is read again: the rate of a counter needs the row before."""
LAG_NS = SECOND
NOW_S = 30
"""A current value is the mean of so many seconds."""
NAMES = tuple(name for name, _, _ in READINGS)
_RANK = ("comm", "rank", "ranks", "operation", "still_seconds")
_TABLES = {table: [column for _, of, column in READINGS if of == table] for _, table, _ in READINGS}
Entity = tuple[str, ...]
"""A machine, or a machine and a GPU."""


@dataclass
class LiveHistory:
    """Sums and counts by [reading, entity, second of the ring]; `at` is the last second that was read (Unix s)."""

    entities: dict[Entity, int] = field(default_factory=dict)
    seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """[entity]: time of the last row, Unix ns."""
    verdicts: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """(task, machine) -> the last verdict."""
    ranks: Rows | None = None
    """The newest rows of communicators."""
    identity: dict[Entity, str] = field(default_factory=dict)
    """GPU -> its UUID and PCI address."""
    until: int = 0
    """Read up to here, Unix ns."""
    _sums: NDArray[np.float32] = field(default_factory=lambda: np.zeros((len(NAMES), 0, SECONDS), np.float32))
    _counts: NDArray[np.uint16] = field(default_factory=lambda: np.zeros((len(NAMES), 0, SECONDS), np.uint16))

    def read(self, store: Store, now: int, lock: AbstractContextManager[object] = nullcontext()) -> None:  # noqa: B008
        """Read what came until `now` (Unix ns), and change what is shown while holding the lock. Raises StoreError."""
        until = now - LAG_NS
        silent = {} if self.until else last_seen(store, now, LOOK_NS)
        after = max(self.until, until - SECONDS * SECOND)
        chunks = []
        for table, columns in _TABLES.items():
            more = {"nccl": list(_RANK), "gpu": ["uuid", "pci_address"]}.get(table, [])
            chunks.append(rows_of(table, store.read(table, after - OVERLAP_NS, until, [*columns, *more])))
        said = store.read("verdict", self.until and after, now).to_pylist()
        with lock:
            self._advance(after, until)
            for machine, time in silent.items():  # those that have stopped before this began are shown too
                place = self._places([(machine,)])
                self.seen[place] = time
            for row in said:
                self.verdicts[row["task"], row["machine"]] = row
            for rows in chunks:
                self._feed(rows, after)
            self.until = until

    def levels(self, machines: list[str], silent_ns: int) -> list[str]:
        """ok, warn, crit, or unknown for a machine without a reading for `silent_ns`."""
        held: dict[str, str] = {}
        for (_, machine), row in sorted(self.verdicts.items(), key=lambda one: one[1].get("level") == "crit"):
            if row.get("level") in ("warn", "crit"):
                held[machine] = str(row["level"])
        silent = self.until - self.seen[[self.entities[name,] for name in machines]] > silent_ns
        return [
            held.get(name) or ("unknown" if quiet else "ok")
            for name, quiet in zip(machines, silent.tolist(), strict=True)
        ]

    def curves(self, reading: int, entities: NDArray[np.int64]) -> NDArray[np.float64]:
        """[entity, second], the oldest first; NaN where nothing was read."""
        order = (np.arange(SECONDS) + self.until // SECOND + 1) % SECONDS
        counts = self._counts[reading, entities][:, order]
        with np.errstate(invalid="ignore", divide="ignore"):
            found: NDArray[np.float64] = np.where(
                counts > 0, self._sums[reading, entities][:, order].astype(np.float64) / counts, np.nan
            )
        return found

    def now(self, entities: NDArray[np.int64]) -> NDArray[np.float64]:
        """[reading, entity]: the means of the last NOW_S seconds; NaN where nothing was read."""
        recent = (np.arange(NOW_S) + self.until // SECOND + 1 - NOW_S) % SECONDS
        sums = self._sums[:, entities][:, :, recent].sum(axis=2, dtype=np.float64)
        counts = self._counts[:, entities][:, :, recent].sum(axis=2, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            found: NDArray[np.float64] = np.where(counts > 0, sums / counts, np.nan)
        return found

    def _advance(self, after: int, until: int) -> None:
        """Empty the seconds of the ring that are written next."""
        first, last = after // SECOND + 1, until // SECOND
        stale = np.arange(max(first, last - SECONDS + 1), last + 1) % SECONDS
        self._sums[:, :, stale] = 0
        self._counts[:, :, stale] = 0

    def _feed(self, rows: Rows, after: int) -> None:
        if not len(rows.time):
            return
        new = rows.time > after
        machines = self._places([ident[:1] for ident in rows.idents])[rows.ident]
        places = [machines]
        if rows.keys[:1] == ("gpu",):
            places.append(self._places([ident[:2] for ident in rows.idents])[rows.ident])
        for place in places:
            np.maximum.at(self.seen, place, rows.time)
        at = rows.time // SECOND % SECONDS
        for reading, (_, table, column) in enumerate(READINGS):
            if table == rows.table and column in rows.metrics:
                values = _rates(rows, column) if column.endswith("_total") else rows.number(column)
                good = new & ~np.isnan(values)
                for place in places:
                    flat = place[good] * SECONDS + at[good]
                    np.add.at(self._sums[reading].reshape(-1), flat, values[good].astype(np.float32))
                    np.add.at(self._counts[reading].reshape(-1), flat, 1)
        if rows.table == "nccl":
            self.ranks = rows
        if "uuid" in rows.texts:
            self._name(rows)

    def _places(self, entities: list[Entity]) -> NDArray[np.int64]:
        """The index of each entity; new ones get the next."""
        found = np.array([self.entities.setdefault(one, len(self.entities)) for one in entities], np.int64)
        if len(self.entities) > len(self.seen):
            more = max(len(self.entities), 64) * 2 - len(self.seen)
            self.seen = np.pad(self.seen, (0, more))
            self._sums = np.pad(self._sums, ((0, 0), (0, more), (0, 0)))
            self._counts = np.pad(self._counts, ((0, 0), (0, more), (0, 0)))
        return found

    def _name(self, rows: Rows) -> None:
        uuids, addresses = rows.text("uuid"), rows.text("pci_address")
        for at in np.flatnonzero(uuids != "").tolist():
            self.identity[rows.idents[rows.ident[at]][:2]] = f"{uuids[at]} {addresses[at]}".strip()


def _rates(rows: Rows, column: str) -> NDArray[np.float64]:
    """Growth per second since the row before of the same device; NaN at the first row and at a reset."""
    order = np.lexsort((rows.time, rows.ident))
    values = np.asarray(rows.number(column), np.float64)[order]
    seconds = np.diff(rows.time[order], prepend=0) / SECOND
    rates = np.diff(values, prepend=np.nan)
    same = np.diff(rows.ident[order], prepend=-1) == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.where(same & (rates >= 0) & (seconds > 0), rates / seconds, np.nan)
    out = np.full(len(found), np.nan)
    out[order] = found
    return out
