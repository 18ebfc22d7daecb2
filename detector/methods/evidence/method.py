"""Evidence: hard facts that need no statistics (events and readings), and silence while the peers go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from detector.config import Config
from detector.methods.contract import Method
from detector.methods.evidence.conditions import idle_machines
from detector.methods.evidence.events import DOWN, READABLE, EventState
from detector.methods.evidence.heartbeats import missed_heartbeats
from detector.methods.evidence.liveness import NOT_LIFE, Liveness
from detector.methods.evidence.rules import ANY, RULES, Rule, err_alike, in_words, state_tables
from detector.methods.evidence.state_table import NO_TASK, StateTable
from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Bools, Ints, grown
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

_CERTAIN, _CLUE = 2.0, 0.5
"""Multiples of what raises an alarm: of a critical event, and of one that is no fault by itself."""
_LONG = 5.0
"""Limits of a silence that is a cause of its own."""
_TRAFFIC = "rdma.transmit_bytes_total"
_BACK_NS = 60 * SECOND
_BOOT = "context_switches_total"
"""Counted by the kernel since it started: when it falls, the machine has restarted."""


@dataclass(slots=True)
class RuleState:
    """The rules of one table and how far each has come; arrays [rule, entity]."""

    states: StateTable
    rules: tuple[Rule, ...]
    since: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """When its condition began; NEVER while it is not met."""
    met: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """When it was last met."""
    on: Bools = field(default_factory=lambda: np.zeros((0, 0), bool))
    verdicts: dict[tuple[int, int], Verdict] = field(default_factory=dict)
    """(rule, entity) -> what is said of it."""
    checked: int = 0
    """Entities that were looked up among the acknowledged ones."""

    def judge(self, now: int, tasks: Tasks, config: Config) -> list[Finding]:
        """What the rules find at `now` (Unix ns); what is mild has no consequences."""
        if not self.states.entities:
            return []
        self.states.assign_tasks(tasks)
        self._acknowledge(tasks)
        shape = (len(self.rules), self.states.value.shape[1])
        self.since, self.met = (grown(array, shape, NEVER) for array in (self.since, self.met))
        self.on = grown(self.on, shape, 0)
        for at, rule in enumerate(self.rules):
            self._follow(at, self._condition(rule, now, config), now)
        held = [(int(rule), int(entity)) for rule, entity in np.argwhere(self.on & (self.states.task != NO_TASK))]
        new = {rule for rule, entity in held if (rule, entity) not in self.verdicts}
        alike = {rule: err_alike(self.rules[rule], self.states, now) for rule in new}
        self.verdicts = {cell: self.verdicts.get(cell) or self._verdict(*cell, now, alike[cell[0]]) for cell in held}
        return [self._finding(*cell, now) for cell in self.verdicts]

    def _finding(self, rule: int, entity: int, now: int) -> Finding:
        said = self.verdicts[rule, entity]
        task = self.states.tasks[self.states.task[entity]]
        return Finding(replace(said, time=now, task=task), said.level == "crit", self.rules[rule].evidence)

    def _condition(self, rule: Rule, now: int, config: Config) -> Bools:
        found = rule.test(self.states, rule.column, now)
        if rule.at_most == ANY or not found.any():
            return found
        states, assigned = self.states, self.states.task != NO_TASK
        team = np.full(int(states.machine.max()) + 1, NO_TASK, np.int64)
        team[states.machine[assigned]] = states.task[assigned]
        odd = np.unique(states.machine[found & assigned])
        size, many = (np.bincount(part[part >= 0], minlength=len(states.tasks) + 1) for part in (team, team[odd]))
        share = config.common_cause_share if rule.at_most is None else rule.at_most
        few: Bools = many <= np.maximum(1, share * size)
        return found & few[states.task]

    def _follow(self, at: int, met: Bools, now: int) -> None:
        rule, since = self.rules[at], self.since[at]
        if not met.any() and (since == NEVER).all():  # mostly
            return
        self.met[at] = np.where(met, now, self.met[at])
        since[met & (since == NEVER)] = now
        over = ~met & (now - self.met[at] >= rule.clear_after_s * SECOND)
        lasts = now - since >= rule.assert_after_s * SECOND
        if rule.assert_after_s:  # one reading does not last, however rare they are
            lasts &= self.states.since[self.states.row(rule.column)] > since
        self.on[at] = (self.on[at] & ~over) | (met & lasts)
        since[~met & ~self.on[at]] = NEVER

    def _verdict(self, rule: int, entity: int, now: int, alike: Counter[str]) -> Verdict:
        states, fact = self.states, self.rules[rule]
        machine, device = states.entities[entity]
        metric, since = f"{fact.table}.{fact.column}", int(self.since[rule, entity])
        task, words = states.tasks[states.task[entity]], in_words(fact, states, entity, now, alike)
        return Verdict(now, task, machine, device, "evidence", metric, fact.evidence, since, fact.level, words)

    def _acknowledge(self, tasks: Tasks) -> None:
        """Forget what the operator or a restart has made void; the orders may name entities that are new."""
        orders, states = tasks.orders, self.states
        new = range(self.checked, len(states.entities)) if orders.cleared else ()
        self.checked = len(states.entities)
        seen = [at for at in new if not np.isnan(states.value[:, at]).all()]
        known = [at for at in seen if {(states.entities[at][0], None), states.entities[at]} & orders.cleared.keys()]
        if orders.fresh:
            known += [at for at, who in enumerate(states.entities) if any(order.covers(*who) for order in orders.fresh)]
        if known:
            self.forget(np.array(known), True)
        if orders.back:
            self.forget(self.of(orders.back), False)

    def evict(self, before: int) -> None:
        """Forget entities not read since `before` (Unix ns)."""
        left = self.states.evict(before)
        if left is None:
            return
        self.checked = int((left < self.checked).sum())
        known = left[left < self.on.shape[1]]
        self.since, self.met, self.on = self.since[:, known], self.met[:, known], self.on[:, known]
        place = {old: new for new, old in enumerate(left.tolist())}
        self.verdicts = {(rule, place[at]): verdict for (rule, at), verdict in self.verdicts.items() if at in place}

    def of(self, machines: Iterable[str]) -> Ints:
        """The entities of some machines."""
        names = frozenset(machines)
        return np.array([at for at, (name, _) in enumerate(self.states.entities) if name in names], np.int64)

    def forget(self, those: Ints, gauges: bool) -> None:
        """Reset some entities; of `gauges` what they read now counts no more either."""
        self.states.acknowledge(those, gauges)
        some = those[those < self.on.shape[1]]
        self.since[:, some] = self.met[:, some] = NEVER
        self.on[:, some] = False


@dataclass(slots=True)
class Evidence(Method):
    """The method and its memory."""

    config: Config
    liveness: Liveness = field(default_factory=Liveness)
    facts: EventState = field(default_factory=EventState)
    rule_states: dict[str, RuleState] = field(
        default_factory=lambda: {table: RuleState(states, RULES[table]) for table, states in state_tables().items()}
    )
    boot: StateTable = field(default_factory=lambda: StateTable("host", (_BOOT,), (_BOOT,), boot_counter=_BOOT))

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new; every hard fact that stands and every silence is a finding."""
        for name, new in rows.items():
            if name not in NOT_LIFE and len(new.time):
                self.liveness.feed(new, self.config.silent_seconds)
        for machine, until in tasks.orders.back.items():
            self.liveness.acknowledge(machine, until)
        if "event" in rows and len(rows["event"].time):
            self.facts.feed(rows["event"], tasks.orders)
        self._read(rows)
        self._refuted()
        self.facts.judge_exits(now, tasks, int(self.config.exit_grace_seconds * SECOND))
        self.facts.fade(now, tasks.orders, self.config)
        found = [
            finding for rule_state in self.rule_states.values() for finding in rule_state.judge(now, tasks, self.config)
        ]
        found = self._at_work(now, found)
        found += [Finding(verdict, True, verdict.score) for verdict in self._events(now, tasks)]
        found += [Finding(verdict, False, verdict.score) for verdict in self._warnings(now, tasks)]
        silent = missed_heartbeats(self.liveness, now, tasks, self.config)
        return found + [Finding(verdict, True, _of_silence(verdict)) for verdict in silent]

    def restore(self, verdicts: Iterable[Verdict]) -> None:
        """Resume what an earlier detector has reported of causes that last."""
        for verdict in verdicts:
            self.facts.restore(verdict)

    def newest(self) -> int:
        """The time of the newest row, Unix ns."""
        return self.liveness.newest()

    def evict(self, before: int, tasks: Tasks) -> None:
        """Drop what was last read before `before` (Unix ns), here and from the tasks."""
        gone = self.liveness.evict(before)
        self.facts.evict(gone)
        self.boot.evict(before)
        for rule_state in self.rule_states.values():
            rule_state.evict(before)
        tasks.evict(gone, before)

    def _read(self, rows: Mapping[str, Rows]) -> None:
        """Read rows; a machine that restarted, or a GPU that was reset, is judged by what it shows now."""
        for name, rule_state in self.rule_states.items():
            if name in rows:
                rule_state.states.feed(rows[name])
                for at in rule_state.states.restarted:
                    self.facts.repaired(*rule_state.states.entities[at])
        if "host" in rows:
            self.boot.feed(rows["host"])
            machines = [self.boot.entities[at][0] for at in self.boot.restarted]
            for machine in machines:
                self.facts.repaired(machine)
            for rule_state in self.rule_states.values() if machines else ():
                rule_state.forget(rule_state.of(machines), False)

    def _events(self, now: int, tasks: Tasks) -> list[Verdict]:
        facts = [(key, fact, tasks.task_of(key[0])) for key, fact in self.facts.active.items()]
        return [
            Verdict(
                now, task, machine, device or None, "evidence", fact.metric, _CERTAIN, fact.since, "crit", fact.message
            )
            for (machine, device, code), fact, task in facts
            if task is not None and not (code == DOWN and self._is_read(machine, device, fact.since))
        ]

    def _warnings(self, now: int, tasks: Tasks) -> list[Verdict]:
        facts = [(key, fact, tasks.task_of(key[0])) for key, fact in self.facts.warned.items()]
        return [
            Verdict(
                now, task, machine, device or None, "evidence", fact.metric, _CLUE, fact.since, "note", fact.message
            )
            for (machine, device, _), fact, task in facts
            if task is not None
        ]

    def _at_work(self, now: int, found: list[Finding]) -> list[Finding]:
        """Without what is said of the traffic of machines that have nothing to send."""
        if not any(finding.verdict.metric == _TRAFFIC for finding in found):
            return found
        spare = idle_machines(self.rule_states["gpu"].states, now)
        return [f for f in found if f.verdict.metric != _TRAFFIC or f.verdict.machine not in spare]

    def _is_read(self, machine: str, device: str, since: int) -> bool:
        """Whether a port's own column tells of its link since then: that rule tolerates short drops."""
        states = self.rule_states["rdma"].states
        at = states.place.get((machine, device))
        return at is not None and bool(states.since[states.row("link_up"), at] >= since)

    def _refuted(self) -> None:
        """A GPU that is at work for a minute after is neither lost nor out of reach."""
        suspects = [key for key in self.facts.active if key[2] in READABLE]
        states = self.rule_states["gpu"].states
        if not suspects or not states.entities:
            return
        live = states.since[[states.row("duty_cycle_ratio"), states.row("power_watts")]].max(0)
        for key in suspects:
            mine = [at for who, at in states.place.items() if who[0] == key[0] and key[1] in ("", who[1])]
            if mine and live[mine].max() > self.facts.active[key].since + _BACK_NS:
                del self.facts.active[key]


def _of_silence(verdict: Verdict) -> float:
    """Evidence of a silence: a short one may follow from another machine's fault, a long one is a fault by itself."""
    return _CERTAIN if verdict.score >= _LONG else min(verdict.score, 1.0)
