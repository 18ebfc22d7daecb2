"""Roles: which ranks of a task are replicas of each other, as their communicators show it.

Stages of a pipeline carry different loads, so a rank's peers are those of its own stage. The stage is a rank's place in
the communicators with operations from one rank to the next (Send, Recv): one for a whole pipeline, or one for each
pair of neighbours. Where none is seen, ranks that smaller communicators than the task's largest join have one role:
tensor, data and expert groups lie within a stage.
"""

from __future__ import annotations

import zlib
from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np

from detector.stats.arrays import Ints
from detector.topology.compaction import Compaction
from detector.topology.components import connected_components
from detector.topology.rank_table import RankTable
from store.schema.time import NEVER, SECOND

UNKNOWN = -1
_JOINED, _MIXED, ALIKE = 10**6, 10**9, 10**10
"""Below these a role is a stage, a set of joined ranks, a mix of those on one machine; from the last on, a likeness."""
_INTERVAL_NS = 20 * SECOND
_RECENT_NS = 600 * SECOND
"""So long a process that is not read any more still holds its place among the others."""
_LONGEST = 256
"""More stages than this are none: the ranks were misread."""


@dataclass(slots=True)
class Roles:
    """What is known of roles; a rank that is not read for a while retains its own."""

    process: dict[tuple[str, ...], int] = field(default_factory=dict)
    """(machine, GPU) -> role."""
    machine: dict[str, int] = field(default_factory=dict)
    """The role of all its ranks, or a number for their mix."""
    alike: dict[str, int] = field(default_factory=dict)
    """Machine -> group of machines with similar readings, in tasks without known communicators."""
    pipes: Ints = field(default_factory=lambda: np.zeros(0, np.int64), compare=False)
    """Communicators, by number, that were seen to go from rank to rank."""
    mark: int = 0
    """Of which rank was on which communicator at the last look ..."""
    learned: int = 0
    """... and at the time when roles were learned: while no rank comes or goes there is nothing to learn."""
    looked_at: int = NEVER

    def of(self, machine: str, device: str | None) -> int:
        """The role of a machine or of one of its devices; of a port that of its machine."""
        whole = self.machine.get(machine, UNKNOWN)
        if whole == UNKNOWN:
            return self.alike.get(machine, UNKNOWN)
        if device is None or not device.startswith("gpu:"):
            return whole
        return self.process.get((machine, device[4:]), whole if whole < _MIXED else UNKNOWN)

    def find_alike(self, groups: dict[str, int]) -> bool:
        """Take machines that read alike for peers; whether any is another's than before."""
        before = dict(self.alike)
        self.alike = {name: role for name, role in (self.alike | groups).items() if role != UNKNOWN}
        return before != self.alike

    def look(self, now: int, ranks: RankTable) -> bool:
        """Learn from how the ranks stand at `now` (Unix ns), now and then; whether somebody's role is another."""
        if now - self.looked_at < _INTERVAL_NS:
            return False
        self.looked_at = now
        there = _there(now, ranks)
        code = ranks.code[there]
        pairs = [word.startswith(("Send", "Recv")) for word in ranks.operation[there].tolist()]
        total = np.bincount(code, minlength=int(self.pipes.max(initial=-1)) + 1)
        seen = np.flatnonzero(2 * np.bincount(code, pairs, len(total)) > total)
        self.pipes = np.union1d(self.pipes[total[self.pipes] > 0], seen)
        before, self.mark = self.mark, zlib.crc32(np.concatenate([there, code, self.pipes]).tobytes())
        # While a task forms again, half of its ranks are on their new communicators: that shows no roles.
        if self.mark in (self.learned, 0) or self.mark != before:
            return False
        self.learned = self.mark
        return self._learn(there, ranks)

    def evict(self, left: Compaction, machines: Container[str]) -> None:
        """Forget the communicators that are not left, and machines that are none of these."""
        pipes = left.renumbered(self.pipes)
        self.pipes = pipes[pipes >= 0]
        self.process = {who: role for who, role in self.process.items() if who[0] in machines}
        self.machine = {name: role for name, role in self.machine.items() if name in machines}

    def _learn(self, there: Ints, ranks: RankTable) -> bool:
        people, person = np.unique(ranks.process[there], return_inverse=True)
        comms, comm = np.unique(ranks.code[there], return_inverse=True)
        piped = np.isin(comms, self.pipes)[comm]
        rank = ranks.rank[there].astype(np.int64)
        stage = _stages(person[piped], comm[piped], rank[piped], len(people))
        task = connected_components(person, comm, len(people))
        size = np.nan_to_num(ranks.comm_ranks[there], nan=np.inf)
        largest = np.zeros(len(people))
        np.maximum.at(largest, task[person], size)
        small = size < largest[task[person]]
        part = people[connected_components(person[small], comm[small], len(people))] + _JOINED
        part[np.bincount(person[small], minlength=len(people)) == 0] = UNKNOWN
        return self._note(people, np.where(np.isin(task, task[stage >= 0]), stage, part), ranks)

    def _note(self, people: Ints, role: Ints, ranks: RankTable) -> bool:
        """Write down the roles of processes, and of their machines; whether any is another."""
        idents, machines = list(ranks.processes), list(ranks.machines)
        process = {idents[at]: one for at, one in zip(people.tolist(), role.tolist(), strict=True)}
        of: dict[str, set[int]] = {}
        for at, one in zip(ranks.machine[people].tolist(), role.tolist(), strict=True):
            of.setdefault(machines[at], set()).add(one)
        machine = {name: _mix(roles) for name, roles in of.items()}
        changed = process.items() - self.process.items() or machine.items() - self.machine.items()
        self.process |= process
        self.machine |= machine
        return bool(changed)


def _there(now: int, ranks: RankTable) -> Ints:
    """Series of processes that were read not long ago, but for communicators that their process has no more."""
    seen = ranks.last_seen[: len(ranks.number)]
    process = ranks.process[: len(seen)]
    newest = np.full(len(ranks.processes), NEVER)
    np.maximum.at(newest, process, seen)
    fresh = (newest >= now - _RECENT_NS)[process] & (seen >= newest[process] - 3.5 * ranks.period - SECOND)
    known = (ranks.code[: len(seen)] >= 0) & np.isfinite(ranks.rank[: len(seen)])
    return np.flatnonzero(fresh & known)


def named(role: int) -> str:
    """A role in words, for people."""
    if role < _JOINED:
        return f"stage {role + 1} of the pipeline"
    if role < _MIXED:
        return "one role"
    return "one mix of stages" if role < ALIKE else "those that read alike"


def _mix(roles: set[int]) -> int:
    return roles.pop() if len(roles) == 1 else _MIXED + zlib.crc32(repr(sorted(roles)).encode())


def _stages(person: Ints, comm: Ints, rank: Ints, people: int) -> Ints:
    """How many stages lie before each person, by the longest way there; -1 where no pipeline is known."""
    stage = np.full(people, UNKNOWN)
    np.maximum.at(stage, person, rank)
    order = np.lexsort((rank, comm))
    near = np.flatnonzero(np.diff(comm[order]) == 0)
    first, then = order[near], order[near + 1]
    apart = rank[then] - rank[first]
    for _ in range(_LONGEST):
        before = stage.copy()
        np.maximum.at(stage, person[then], stage[person[first]] + apart)
        if (stage == before).all():
            return stage
    return np.full(people, UNKNOWN)
