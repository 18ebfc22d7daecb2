"""Evidence: hard facts that need no statistics (events and readings), and silence while the peers go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from detector.config import Config
from detector.methods.evidence.events import DOWN, READABLE, EventState
from detector.methods.evidence.liveness import NOT_LIFE, Liveness, silent
from detector.methods.evidence.rules import RULES, Rule, boards, in_words, resting
from detector.methods.evidence.state_table import NO_TASK, StateTable
from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Bools, Ints, grown
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

_SCORE = 10.0
_TRAFFIC = "rdma.transmit_bytes_total"
_BACK_NS = 60 * SECOND
_BOOT = "context_switches_total"
"""Counted by the kernel since it started: when it falls, the machine has started anew."""


@dataclass(slots=True)
class Watch:
    """The rules of one table and how far each has come; arrays [rule, entity]."""

    board: StateTable
    rules: tuple[Rule, ...]
    since: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """When its condition began; NEVER while it is not met."""
    met: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """When it was last met."""
    on: Bools = field(default_factory=lambda: np.zeros((0, 0), bool))
    said: dict[tuple[int, int], Verdict] = field(default_factory=dict)
    """(rule, entity) -> what is said of it."""
    greeted: int = 0
    """So many entities were asked whether something is forgiven to them."""

    def judge(self, now: int, tasks: Tasks, config: Config) -> list[Finding]:
        """What the rules hold against whom at `now` (Unix ns); what is mild draws no consequences."""
        if not self.board.entities:
            return []
        self.board.seat(tasks)
        self._pardon(tasks)
        shape = (len(self.rules), self.board.value.shape[1])
        self.since, self.met = (grown(array, shape, NEVER) for array in (self.since, self.met))
        self.on = grown(self.on, shape, 0)
        for at, rule in enumerate(self.rules):
            self._follow(at, self._condition(rule, now, config), now)
        held = [(int(rule), int(entity)) for rule, entity in np.argwhere(self.on & (self.board.task != NO_TASK))]
        self.said = {cell: self.said.get(cell) or self._verdict(*cell, now) for cell in held}
        return [self._finding(*cell, now) for cell in self.said]

    def _finding(self, rule: int, entity: int, now: int) -> Finding:
        said = self.said[rule, entity]
        task = self.board.tasks[self.board.task[entity]]
        return Finding(replace(said, time=now, task=task), said.level == "crit", self.rules[rule].weight)

    def _condition(self, rule: Rule, now: int, config: Config) -> Bools:
        found = rule.test(self.board, rule.column, now)
        if not rule.alone or not found.any():
            return found
        board, seated = self.board, self.board.task != NO_TASK
        team = np.full(int(board.machine.max()) + 1, NO_TASK, np.int64)
        team[board.machine[seated]] = board.task[seated]
        odd = np.unique(board.machine[found & seated])
        size, many = (np.bincount(part[part >= 0], minlength=len(board.tasks) + 1) for part in (team, team[odd]))
        few: Bools = many <= np.maximum(1, config.common_cause_share * size)
        return found & few[board.task]

    def _follow(self, at: int, met: Bools, now: int) -> None:
        rule, since = self.rules[at], self.since[at]
        self.met[at] = np.where(met, now, self.met[at])
        since[met & (since == NEVER)] = now
        over = ~met & (now - self.met[at] >= rule.heal_s * SECOND)
        self.on[at] = (self.on[at] & ~over) | (met & (now - since >= rule.hold_s * SECOND))
        since[~met & ~self.on[at]] = NEVER

    def _verdict(self, rule: int, entity: int, now: int) -> Verdict:
        board, fact = self.board, self.rules[rule]
        machine, device = board.entities[entity]
        metric, since = f"{fact.table}.{fact.column}", int(self.since[rule, entity])
        task, words = board.tasks[board.task[entity]], in_words(fact, board, entity, now)
        return Verdict(now, task, machine, device, "evidence", metric, _SCORE, since, fact.level, words)

    def _pardon(self, tasks: Tasks) -> None:
        """Forget what the operator or a restart has made void; entities never met before may be forgiven already."""
        orders, board = tasks.orders, self.board
        new = range(self.greeted, len(board.entities)) if orders.cleared else ()
        self.greeted = len(board.entities)
        seen = [at for at in new if not np.isnan(board.value[:, at]).all()]
        known = [at for at in seen if {(board.entities[at][0], None), board.entities[at]} & orders.cleared.keys()]
        if orders.fresh:
            known += [at for at, who in enumerate(board.entities) if any(order.covers(*who) for order in orders.fresh)]
        if known:
            self.forget(np.array(known), True)
        if orders.back:
            self.forget(self.of(orders.back), False)

    def let_go(self, before: int) -> None:
        """Forget entities not read since `before` (Unix ns)."""
        left = self.board.let_go(before)
        if left is None:
            return
        self.greeted = int((left < self.greeted).sum())
        known = left[left < self.on.shape[1]]
        self.since, self.met, self.on = self.since[:, known], self.met[:, known], self.on[:, known]
        place = {old: new for new, old in enumerate(left.tolist())}
        self.said = {(rule, place[at]): verdict for (rule, at), verdict in self.said.items() if at in place}

    def of(self, machines: Iterable[str]) -> Ints:
        """The entities of some machines."""
        names = frozenset(machines)
        return np.array([at for at, (name, _) in enumerate(self.board.entities) if name in names], np.int64)

    def forget(self, those: Ints, gauges: bool) -> None:
        """Begin anew for some entities; of `gauges` what they read now is forgiven too."""
        self.board.pardon(those, gauges)
        some = those[those < self.on.shape[1]]
        self.since[:, some] = self.met[:, some] = NEVER
        self.on[:, some] = False


@dataclass(slots=True)
class Evidence:
    """The method and its memory."""

    config: Config
    life: Liveness = field(default_factory=Liveness)
    facts: EventState = field(default_factory=EventState)
    watches: dict[str, Watch] = field(
        default_factory=lambda: {table: Watch(board, RULES[table]) for table, board in boards().items()}
    )
    boot: StateTable = field(default_factory=lambda: StateTable("host", (_BOOT,), (_BOOT,), _BOOT))

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new; every hard fact that stands and every silence is a finding."""
        for name, new in rows.items():
            if name not in NOT_LIFE and len(new.time):
                self.life.feed(new, self.config.silent_seconds)
        for machine, until in tasks.orders.back.items():
            self.life.pardon(machine, until)
        if "event" in rows and len(rows["event"].time):
            self.facts.feed(rows["event"], tasks.orders)
        self._read(rows)
        self._refuted()
        self.facts.judge_exits(now, tasks, int(self.config.exit_grace_seconds * SECOND))
        self.facts.fade(now, tasks.orders, self.config)
        found = [finding for watch in self.watches.values() for finding in watch.judge(now, tasks, self.config)]
        found = self._at_work(now, found)
        found += [Finding(verdict, True, 2.0) for verdict in self._events(now, tasks)]
        found += [Finding(verdict, False, 1.0) for verdict in self._warnings(now, tasks)]
        return found + [Finding(verdict, True, 1.0) for verdict in silent(self.life, now, tasks, self.config)]

    def take_up(self, verdicts: Iterable[Verdict]) -> None:
        """Hold again what an earlier detector has said of causes that last."""
        for verdict in verdicts:
            self.facts.take_up(verdict)

    def let_go(self, before: int) -> frozenset[str]:
        """Forget whom nothing was heard of since `before` (Unix ns); the machines that are gone."""
        gone = self.life.let_go(before)
        self.facts.let_go(gone)
        self.boot.let_go(before)
        for watch in self.watches.values():
            watch.let_go(before)
        return gone

    def _read(self, rows: Mapping[str, Rows]) -> None:
        """Take in readings; a machine that started anew, or a GPU that was reset, is judged by what it shows now."""
        for name, watch in self.watches.items():
            if name in rows:
                watch.board.feed(rows[name])
                for at in watch.board.anew:
                    self.facts.mended(*watch.board.entities[at])
        if "host" in rows:
            self.boot.feed(rows["host"])
            machines = [self.boot.entities[at][0] for at in self.boot.anew]
            for machine in machines:
                self.facts.mended(machine)
            for watch in self.watches.values() if machines else ():
                watch.forget(watch.of(machines), False)

    def _events(self, now: int, tasks: Tasks) -> list[Verdict]:
        whose = [(key, fact, tasks.task_of(key[0])) for key, fact in self.facts.held.items()]
        return [
            Verdict(
                now, task, machine, device or None, "evidence", fact.metric, _SCORE, fact.since, "crit", fact.message
            )
            for (machine, device, code), fact, task in whose
            if task is not None and not (code == DOWN and self._is_read(machine, device, fact.since))
        ]

    def _warnings(self, now: int, tasks: Tasks) -> list[Verdict]:
        whose = [(key, fact, tasks.task_of(key[0])) for key, fact in self.facts.warned.items()]
        return [
            Verdict(now, task, machine, device or None, "evidence", fact.metric, 1.0, fact.since, "note", fact.message)
            for (machine, device, _), fact, task in whose
            if task is not None
        ]

    def _at_work(self, now: int, found: list[Finding]) -> list[Finding]:
        """Without what is said of the traffic of machines that have nothing to send."""
        if not any(finding.verdict.metric == _TRAFFIC for finding in found):
            return found
        spare = resting(self.watches["gpu"].board, now)
        return [f for f in found if f.verdict.metric != _TRAFFIC or f.verdict.machine not in spare]

    def _is_read(self, machine: str, device: str, since: int) -> bool:
        """Whether a port's own column tells of its link since then: that rule bears with a moment and the network."""
        board = self.watches["rdma"].board
        at = board.place.get((machine, device))
        return at is not None and bool(board.since[board.row("link_up"), at] >= since)

    def _refuted(self) -> None:
        """A GPU that is at work for a minute after is neither lost nor out of reach."""
        suspects = [key for key in self.facts.held if key[2] in READABLE]
        board = self.watches["gpu"].board
        if not suspects or not board.entities:
            return
        live = board.since[[board.row("duty_cycle_ratio"), board.row("power_watts")]].max(0)
        for key in suspects:
            mine = [at for who, at in board.place.items() if who[0] == key[0] and key[1] in ("", who[1])]
            if mine and live[mine].max() > self.facts.held[key].since + _BACK_NS:
                del self.facts.held[key]
