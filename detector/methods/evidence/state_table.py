"""State tables: the newest reading of the columns that rules read, and when each of them changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.model.metrics import is_counter
from detector.stats.arrays import Floats, Ints, grown
from detector.timeseries.live_window import Entity
from detector.timeseries.rows import Rows, device_of
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

NO_TASK = -1
TRAFFIC = 1e4
"""Units a second below which a counter of bytes stands still: an idle port's own management traffic."""
RATE_S = 60.0
"""Time constant of the mean rate of a counter."""
STALE_S = 90.0
"""A reading older than this says nothing of now; slow-changing columns are read every minute."""
_FILLS = {
    "value": np.nan,
    "acknowledged": np.nan,
    "peak": np.nan,
    "rate": 0.0,
    "since": NEVER,
    "last": NEVER,
    "before": NEVER,
}


@dataclass(slots=True)
class StateTable:
    """Arrays [column, entity]; an entity is a row's identity: a machine, a GPU, a port, a source."""

    table: str
    columns: tuple[str, ...]
    decreasing: tuple[str, ...] = ()
    """Columns of which a fall is what is counted, where otherwise it is growth."""
    rated: tuple[str, ...] = ()
    """Counters of which the rate is looked at."""
    boot_counter: str = ""
    """A counter, one of `decreasing`, that restarts with the entity itself."""
    only: tuple[str, ...] | None = None
    """Keys that are looked at; None: all."""
    entities: list[Entity] = field(default_factory=list)
    place: dict[Entity, int] = field(default_factory=dict)
    """The index of each; of a table with keys that are no devices, the last one of a machine."""
    restarted: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Entities that restarted with the newest rows."""
    names: list[str] = field(default_factory=list)
    """Each entity's last key."""
    value: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """The newest known value."""
    acknowledged: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """What does not count: a counter's first value, or its value when the operator cleared it."""
    peak: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """The highest value."""
    rate: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """By how much a counter grows in a second, averaged over a minute."""
    since: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """When the newest value was read."""
    last: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """When it last grew (or fell), bytes when they last flowed ..."""
    before: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """... and the time before that."""
    task: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    machine: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    name: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Numbers of each entity's task, machine, and (task, device) together."""
    tasks: list[str] = field(default_factory=list)
    version: tuple[int, int] = (-1, -1)
    _number: dict[tuple[str, ...], int] = field(default_factory=dict)
    _idents: tuple[tuple[str, ...], ...] = ()
    _places: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        """A row for each column, be there entities or not."""
        for name, fill in _FILLS.items():
            setattr(self, name, grown(getattr(self, name), (len(self.columns), 0), fill))

    def row(self, column: str) -> int:
        """The place of a column."""
        return self.columns.index(column)

    def now(self, column: str, now: int) -> Floats:
        """[entity]: a column's values, NaN where unknown for long."""
        at = self.row(column)
        fresh = now - self.since[at] <= STALE_S * SECOND
        return np.where(fresh, self.value[at], np.nan)

    def feed(self, rows: Rows) -> None:
        """Take in rows in order of time; of several of one entity the newest counts, and what is not new does not."""
        self.restarted = np.zeros(0, np.int64)
        some = [name for name in self.columns if name in rows.metrics]
        if not some or not len(rows.time):
            return
        self._admit(rows.idents)
        newest = np.full(len(rows.idents), -1, np.int64)
        newest[rows.ident] = np.arange(len(rows.ident))
        newest[self._places < 0] = -1
        take = newest[newest >= 0]
        place = self._places[rows.ident[take]]
        values = rows.values[take]
        before = self.last[self.row(self.boot_counter)].copy() if self.boot_counter else None
        for name in some:
            self._note(self.row(name), place, values[:, rows.metrics.index(name)], rows.time[take])
        if before is not None:
            self.restarted = np.flatnonzero(self.last[self.row(self.boot_counter)] > before)

    def _note(self, at: int, place: Ints, new: NDArray[np.floating[Any]], time: Ints) -> None:
        """Readings of one column: `new` and `time` belong to the entities at `place`."""
        known = ~np.isnan(new) & (time > self.since[at, place])
        if not known.all():
            place, new, time = place[known], new[known], time[known]
        since, old = self.since[at, place], self.value[at, place]
        self.since[at, place] = time
        if self.columns[at] in self.rated:
            self._average(at, place, new - old, (time - since) / SECOND)
        other = np.flatnonzero(new != old)  # mostly few: states seldom change
        if not len(other):
            return
        place, new, old, seconds = place[other], new[other], old[other], (time - since)[other] / SECOND
        self.value[at, place] = new
        self._count(at, place, (old - new if self.columns[at] in self.decreasing else new - old), seconds)
        # What fell below the acknowledged value was reset.
        first = new if is_counter(self.table, self.columns[at]) else np.fmin(new, 0.0)
        base = self.acknowledged[at, place]
        self.acknowledged[at, place] = np.where(np.isnan(base), first, np.fmin(base, new))
        self.peak[at, place] = np.fmax(self.peak[at, place], new)

    def _average(self, at: int, place: Ints, delta: NDArray[np.floating[Any]], seconds: Floats) -> None:
        """Add what a counter grew by to its mean rate; what is unknown, or fell, is no growth."""
        grew = np.maximum(np.nan_to_num(delta), 0.0) / seconds
        self.rate[at, place] += (grew - self.rate[at, place]) * (1 - np.exp(-seconds / RATE_S))

    def _count(self, at: int, place: Ints, delta: NDArray[np.floating[Any]], seconds: Floats) -> None:
        """Note what grew (or fell) by `delta` over so many seconds."""
        moved = delta > (TRAFFIC * seconds if "bytes" in self.columns[at] else 0.0)
        place, delta, seconds = place[moved], delta[moved], seconds[moved]
        time = self.since[at, place]
        # Two at once are two times, if the reading before is not long ago.
        twice = (delta >= 2) & (seconds <= STALE_S)
        self.before[at, place] = np.where(twice, time, self.last[at, place])
        self.last[at, place] = time

    def _admit(self, idents: Sequence[tuple[str, ...]]) -> None:
        if idents is self._idents:
            return
        for ident in idents:
            if ident not in self._number and (self.only is None or ident[-1] in self.only):
                self._number[ident] = len(self._number)
                self.names.append(ident[-1])
                device = None if self.table == "source" else device_of(self.table, ident[1:])
                self.place[ident[0], device] = len(self.entities)
                self.entities.append((ident[0], device))
        self._idents = tuple(idents)
        self._places = np.array([self._number.get(ident, -1) for ident in idents], np.int64)
        shape = (len(self.columns), len(self._number))
        for name, fill in _FILLS.items():
            setattr(self, name, grown(getattr(self, name), shape, fill))

    def assign_tasks(self, tasks: Tasks) -> bool:
        """Number tasks and machines again where one came or moved; whether that was so."""
        if self.version == (tasks.version, len(self.entities)):
            return False
        self.version = (tasks.version, len(self.entities))
        numbers: tuple[dict[object, int], ...] = ({}, {}, {})
        numbered = np.full((3, self.value.shape[1]), NO_TASK, np.int64)
        for ident, at in self._number.items():
            task = tasks.task_of(ident[0])
            numbered[1, at] = numbers[1].setdefault(ident[0], len(numbers[1]))
            if task is not None:
                numbered[0, at] = numbers[0].setdefault(task, len(numbers[0]))
                numbered[2, at] = numbers[2].setdefault((task, *ident[1:]), len(numbers[2]))
        self.tasks = [str(task) for task in numbers[0]]
        self.task, self.machine, self.name = numbered
        self.machine[self.machine == NO_TASK] = 0  # spare room; NO_TASK marks it
        return True

    def evict(self, before: int) -> Ints | None:
        """Forget entities not read since `before` (Unix ns); the places of those that are left, None: of all."""
        idents = list(self._number)
        left = np.flatnonzero(self.since[:, : len(idents)].max(0, initial=NEVER) >= before)
        if len(left) == len(idents):
            return None
        self._number = {idents[old]: new for new, old in enumerate(left.tolist())}
        self.entities = [self.entities[old] for old in left.tolist()]
        self.names = [self.names[old] for old in left.tolist()]
        self.place = {who: place for place, who in enumerate(self.entities)}
        for name in _FILLS:
            setattr(self, name, getattr(self, name)[:, left])
        self.restarted, self._idents, self.version = np.zeros(0, np.int64), (), (-1, -1)
        return left

    def acknowledge(self, those: Ints, gauges: bool) -> None:
        """Let what the counters of some entities have counted not count; of `gauges` too what they read now."""
        counter = np.array([is_counter(self.table, name) for name in self.columns], bool)
        rows = np.flatnonzero(counter | gauges)
        self.acknowledged[np.ix_(rows, those)] = self.value[np.ix_(rows, those)]
        self.peak[:, those] = self.value[:, those]
        flowing = np.array(["bytes" in name for name in self.columns], bool)
        rest = np.ix_(np.flatnonzero(~flowing), those)
        self.last[rest] = self.before[rest] = NEVER
