"""Which machines train together: from the task table, else from shared communicators, else all of them.

Machines of which all communicators are read in full, and join few machines or one, train apart from the others.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from detector.stats.arrays import Ints
from detector.timeseries.rows import Rows
from detector.topology.components import connected_components
from detector.topology.jobs import Jobs
from detector.topology.maintenance import OperatorState
from detector.topology.rank_table import RankTable
from detector.topology.roles import Roles
from store.schema.time import NEVER

EVERYBODY = "all"
_MIN_TASK = 4


@dataclass(slots=True)
class Tasks:
    """Which machine works for which task; grows with the number of machines and communicators seen."""

    only: str | None = None
    """Limits judging to one task."""
    machines: frozenset[str] | None = None
    """Limits judging to some machines, which then are one task where no task table says otherwise."""
    said: dict[str, str] = field(default_factory=dict)
    """Machine -> task as the task table says."""
    left: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Machine -> when (Unix ns) the table last said another task of it than before, and which it was before."""
    members: dict[str, set[str]] = field(default_factory=dict)
    """Communicator -> machines."""
    comm_seen: dict[str, int] = field(default_factory=dict)
    """When each communicator was last read, Unix ns."""
    seen: set[str] = field(default_factory=set)
    orders: OperatorState = field(default_factory=OperatorState)
    """A machine in maintenance works for no task."""
    roles: Roles = field(default_factory=Roles)
    jobs: Jobs = field(default_factory=Jobs)
    """The jobs of schedulers, which name tasks."""
    version: int = 0
    """Grows whenever somebody may belong to another task."""
    apart: bool = False
    """Whether all communicators were once read in full, while none joined machines enough to compare them."""
    _few: bool = False
    """Whether communicators join fewer machines than that, of several."""
    _found: dict[str, str] = field(default_factory=dict)
    _stale: bool = True
    _idents: dict[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    _unseen: dict[str, list[int]] = field(default_factory=dict)

    def feed(self, rows: Rows) -> None:
        """Learn from one table's rows."""
        self._meet(rows)
        if rows.table == "event":
            self.orders.feed(rows)
        if rows.table == "job":
            self._change(self.jobs.feed(rows))
        if rows.table == "task":
            for machine, task, time in zip(rows.who(0), rows.text("task"), rows.time.tolist(), strict=True):
                if (before := self.said.get(machine)) != task:
                    self._change(True)
                    self.said[machine] = task
                    if before:
                        self.left[machine] = time, before
        elif rows.table == "nccl" and "comm" in rows.texts and not self.said:
            self.comm_seen |= dict.fromkeys(rows.texts["comm"][1], int(rows.time.max(initial=NEVER)))
            for machine, comm in set(zip(rows.who(0), rows.text("comm"), strict=True)):
                if comm and machine not in self.members.setdefault(comm, set()):
                    self.members[comm].add(machine)
                    self._change(True)

    def evict(self, gone: frozenset[str], before: int) -> None:
        """Forget machines that are gone, and communicators not read since `before` (Unix ns)."""
        old = {comm for comm, time in self.comm_seen.items() if time < before}
        if not old and not gone:
            return
        self.comm_seen = {comm: time for comm, time in self.comm_seen.items() if comm not in old}
        self.members = {comm: names - gone for comm, names in self.members.items() if comm not in old}
        self.said = {machine: task for machine, task in self.said.items() if machine not in gone}
        self.left = {machine: last for machine, last in self.left.items() if machine not in gone}
        self.roles.alike = {machine: role for machine, role in self.roles.alike.items() if machine not in gone}
        self.seen -= gone
        self.orders.evict(gone)
        self.jobs.evict(gone)
        self._idents, self._unseen = {}, {}
        self._change(True)

    def turn(self, now: int) -> None:
        """Begin the step at `now` (Unix ns), all rows of which are fed."""
        self.version += self.orders.turn(now)

    def learn_roles(self, now: int, ranks: RankTable) -> None:
        """Learn what each rank does in its task from how the ranks stand at `now` (Unix ns)."""
        self.version += self.roles.look(now, ranks)
        if self._few and not self.apart and ranks.are_whole(now):
            self.apart = True
            self._change(True)

    def _meet(self, rows: Rows) -> None:
        if rows.idents is not self._idents.get(rows.table):
            self._unseen[rows.table] = [at for at, ident in enumerate(rows.idents) if ident[0] not in self.seen]
            self._idents[rows.table] = rows.idents
        if self._unseen[rows.table]:
            there = np.bincount(rows.ident, minlength=len(rows.idents)) > 0
            met = {rows.idents[at][0] for at in self._unseen[rows.table] if there[at]}
            self._change(bool(met - self.seen))
            self.seen |= met
            self._unseen[rows.table] = [at for at in self._unseen[rows.table] if rows.idents[at][0] not in self.seen]

    def _change(self, changed: bool) -> None:
        self._stale |= changed
        self.version += changed

    def names(self) -> frozenset[str]:
        """All tasks that machines work for, be they asked about or not."""
        return frozenset(self._known().values())

    def task_of(self, machine: str) -> str | None:
        """The machine's task; None where it works for none, is in maintenance, or is not asked about."""
        if machine in self.orders.idle:
            return None
        task = self._known().get(machine)
        return task if self.only in (None, task) else None

    def moved(self, machine: str) -> int:
        """When a scheduler gave it another task last, Unix ns."""
        return self.left.get(machine, (NEVER, ""))[0]

    def task_at(self, machine: str, time: int) -> str | None:
        """The task that it worked for at `time` (Unix ns), if a scheduler has taken it out of one since then."""
        moved, before = self.left.get(machine, (NEVER, ""))
        if moved <= time or self.task_of(machine) is None or self.only not in (None, before):
            return self.task_of(machine)
        return before

    def _known(self) -> dict[str, str]:
        if self._stale:
            self._found, self._stale = self._assign(), False
        return self._found

    def _assign(self) -> dict[str, str]:
        wanted = sorted(self.seen if self.machines is None else self.seen & self.machines)
        if self.said:
            return {machine: self.said[machine] for machine in wanted if self.said.get(machine)}
        if self.machines is None:
            names = sorted(set().union(*self.members.values()))
            first = self._first_of_component(names)
            # Machines that share no communicator with another one would each be a task without peers.
            largest = np.bincount(first, minlength=1).max()
            self._few = largest < _MIN_TASK and largest < len(names)
            if largest >= _MIN_TASK:
                return self._by_communicators(names, first)
            if self._few and self.apart:
                return dict.fromkeys(wanted, EVERYBODY) | self._by_communicators(names, first)
        by_job = {machine: self.jobs.sure(machine) for machine in wanted}
        size = Counter(by_job.values())
        return {
            machine: job if job and size[job] >= min(_MIN_TASK, len(wanted)) else EVERYBODY
            for machine, job in by_job.items()
        }

    def _by_communicators(self, names: list[str], first: Ints) -> dict[str, str]:
        """Machine -> task, which is called after the scheduler's job, and only without one after its first machine.

        A machine without a communicator, such as one without probes, belongs to the task of its job.
        """
        groups: dict[int, list[str]] = {}
        for name, place in zip(names, first.tolist(), strict=True):
            groups.setdefault(place, []).append(name)
        titles = self.jobs.names(groups.values())
        found = {
            machine: title or f"task of {group[0]}"
            for group, title in zip(groups.values(), titles, strict=True)
            for machine in group
        }
        others = {machine: name for machine in self.seen - found.keys() if (name := self.jobs.sure(machine))}
        return found | {machine: name for machine, name in others.items() if name in titles}

    def _first_of_component(self, names: list[str]) -> Ints:
        """[machine]: the place of the first machine that it shares communicators with, directly or over others."""
        number = {name: place for place, name in enumerate(names)}
        pairs = [(number[name], comm) for comm, joined in enumerate(self.members.values()) for name in joined]
        machine, comm = np.array(pairs, np.int64).reshape(-1, 2).T
        return connected_components(machine, comm, len(names))
