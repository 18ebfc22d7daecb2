"""Readings: when each machine was last read, and which are no longer read although no verdict says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from detector.config import Config
from detector.engine.incidents import Incidents
from detector.stats.arrays import Ints
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks

OTHERS = ("event", "verdict", "task")
"""Tables that people, a scheduler or the detector itself write: they say nothing of an agent."""


class Readings:
    """When each machine was last read; times are Unix ns."""

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self._number: dict[str, int] = {}
        self._seen: Ints = np.zeros(0, np.int64)
        self._places: dict[str, tuple[tuple[tuple[str, ...], ...], Ints]] = {}

    def feed(self, tables: Mapping[str, Rows]) -> None:
        """Take in the rows of one step."""
        for table, rows in tables.items():
            if table not in OTHERS and len(rows.time):
                place = self._place(rows)[rows.ident]
                np.maximum.at(self._seen, place, rows.time)

    def last(self, machine: str) -> int:
        """When a machine was last read; of one that was not read at all, when this began."""
        return int(self._seen[self._number[machine]]) if machine in self._number else self.begun

    def unread(self, machines: frozenset[str], until: int) -> dict[str, int]:
        """Those of the machines that were not read after `until`, and when each was last."""
        places = np.flatnonzero(self._seen <= until)
        names = list(self._number) if len(places) else []
        old = {names[place] for place in places} & machines
        old |= machines - self._number.keys() if self.begun <= until else frozenset()
        return {machine: self.last(machine) for machine in sorted(old)}

    def _place(self, rows: Rows) -> Ints:
        """[identity]: the number of its machine."""
        if rows.table not in self._places or self._places[rows.table][0] is not rows.idents:
            numbers = [self._number.setdefault(ident[0], len(self._number)) for ident in rows.idents]
            self._places[rows.table] = rows.idents, np.array(numbers, np.int64)
            more = len(self._number) - len(self._seen)
            self._seen = np.concatenate([self._seen, np.full(more, self.begun)])
        return self._places[rows.table][1]


def blind_spots(unread: Mapping[str, int], machines: frozenset[str], tasks: Tasks, config: Config) -> dict[str, int]:
    """Of the unread machines those of tasks in which too many are silent, or too few are left, to name single ones."""
    size, gone = Counter(map(tasks.task_of, machines)), Counter(map(tasks.task_of, unread))
    wide = {
        task
        for task, count in gone.items()
        if count > max(1, int(config.common_cause_share * size[task]))
        or size[task] in (count, *range(config.min_peers))
    }
    return {machine: at for machine, at in unread.items() if tasks.task_of(machine) in wide}


def hold(
    incidents: Incidents, now: int, until: int, unread: Collection[str], blind: Collection[str], tasks: Tasks
) -> None:
    """Hold incidents open, until `until` at most, that cannot be judged at `now`: nothing is read that could end them.

    That is so where the machine itself is not read, or so many of its task that it has no peers. Whoever was silent is
    well as soon as it is read.
    """
    wide = {tasks.task_of(machine) for machine in blind}
    for (task, machine), found in incidents.open.items():
        if machine in unread or tasks.task_of(machine) in wide:
            silent = found.verdict.metric == "event.silent"
            incidents.held_open[task, machine] = now + 1 if silent else until
