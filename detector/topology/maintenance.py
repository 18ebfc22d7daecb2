"""The operator's orders, read from the store's events: acknowledgements, cleared verdicts, maintenance."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows
from store.schema.time import LATEST, NEVER

OPERATOR = "operator"
"""The `source` of the events by which people speak to the detector."""
ACK, CLEAR, FALSE_ALARM, MAINTENANCE, END = "ack", "clear", "false_alarm", "maintenance", "maintenance_end"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Acknowledge, or clear, the verdicts on a machine or on one of its devices; `time` is Unix ns."""

    time: int
    machine: str
    device: str | None
    reason: str
    false: bool = False
    """Whether it was a false alarm."""

    def covers(self, machine: str, device: str | None) -> bool:
        """Whether the order is about this device."""
        return machine == self.machine and self.device in (None, device)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A machine is in maintenance: no verdicts while since <= time < until (Unix ns), repeated every `every` ns."""

    since: int
    until: int
    reason: str
    every: int = 0
    times: int = 1
    """How many windows there are."""
    given: int = 0
    """When it was ordered, Unix ns."""

    def window(self, now: int) -> tuple[int, int]:
        """Begin and end of the window that holds at `now` or was the last before it; of none so far, the first."""
        nth = min(max(0, (now - self.since) // self.every), self.times - 1) if self.every else 0
        return self.since + nth * self.every, min(self.until + nth * self.every, LATEST)

    def holds(self, now: int) -> bool:
        """Whether the machine is in maintenance at `now` (Unix ns)."""
        begin, end = self.window(now)
        return begin <= now < end

    def ends(self) -> int:
        """The end of the last window."""
        return min(self.until + self.every * (self.times - 1), LATEST)


@dataclass(slots=True)
class OperatorState:
    """What the operator has ordered; an order that is read twice, or late, counts once."""

    periods: dict[str, Maintenance] = field(default_factory=dict)
    """Machine -> its newest maintenance, be it over or still to come."""
    cleared: dict[tuple[str, str | None], int] = field(default_factory=dict)
    """(machine, device) -> time of the newest order to forget."""
    acks: dict[tuple[str, str | None], Acknowledgement] = field(default_factory=dict)
    """(machine, device) -> the newest acknowledgement."""
    idle: frozenset[str] = frozenset()
    """Machines in maintenance now."""
    back: dict[str, int] = field(default_factory=dict)
    """Machines with a maintenance that ended since the last step, and when it ended."""
    fresh: tuple[Acknowledgement, ...] = ()
    """Orders to forget that came since the last step."""
    gone: frozenset[str] = frozenset()
    """Machines that are forgotten since this step."""
    _new: list[Acknowledgement] = field(default_factory=list)
    _idents: tuple[tuple[str, ...], ...] = ()
    _mine: bool = False
    _at: int = NEVER

    def feed(self, rows: Rows) -> None:
        """Learn from rows of the table `event`."""
        if rows.idents is not self._idents:
            self._idents, self._mine = rows.idents, any(OPERATOR in ident[1:2] for ident in rows.idents)
        if not self._mine or rows.keys != ("source", "code"):
            return
        columns = rows.who(0), rows.who(1), rows.who(2), rows.text("device"), rows.text("message")
        for at in (columns[1] == OPERATOR).nonzero()[0]:
            machine, _, code, device, message = (column[at] for column in columns)
            time = int(rows.time[at])
            if code in (CLEAR, FALSE_ALARM):
                self._clear(Acknowledgement(time, machine, device or None, message, code == FALSE_ALARM))
            elif code == ACK:
                self.acks[machine, device or None] = Acknowledgement(time, machine, device or None, message)
            elif code == MAINTENANCE:
                self._maintain(machine, _maintenance(rows, int(at), message))
            elif code == END:
                self._maintain(machine, Maintenance(time, time, message, given=time))

    def _clear(self, order: Acknowledgement) -> None:
        if order.time > self.cleared.get((order.machine, order.device), NEVER):
            self.cleared[order.machine, order.device] = order.time
            self._new.append(order)

    def _maintain(self, machine: str, order: Maintenance) -> None:
        before = self.periods.get(machine)
        if before is None or order.given >= before.given:
            self.periods[machine] = order

    def acknowledged(self, machine: str, device: str | None, said: int) -> Acknowledgement | None:
        """The acknowledgement of what was `said` (Unix ns) of a device; none of what is worse, or back, since."""
        mine = (self.acks.get((machine, one)) for one in {None, device})
        return max((ack for ack in mine if ack and ack.time >= said), key=lambda ack: ack.time, default=None)

    def evict(self, gone: Collection[str]) -> None:
        """Forget the orders about machines that are gone, but for a maintenance that lasts."""
        self.gone = frozenset(name for name in gone if name not in self.idle)
        self.periods = {name: period for name, period in self.periods.items() if name not in self.gone}
        self.cleared = {key: time for key, time in self.cleared.items() if key[0] not in self.gone}
        self.acks = {key: ack for key, ack in self.acks.items() if key[0] not in self.gone}

    def turn(self, now: int) -> bool:
        """Begin the step at `now` (Unix ns); whether a maintenance began or ended."""
        self.fresh, self._new = tuple(self._new), []
        self.gone = frozenset()
        idle = frozenset(name for name, period in self.periods.items() if period.holds(now))
        self.back = {name: min(self.periods[name].window(now)[1], now) for name in self.idle - idle}
        self._at = now
        changed, self.idle = idle != self.idle, idle
        return changed

    def forgiven(self, machine: str, device: str | None) -> int:
        """Until when (Unix ns) all is forgotten of a device; a fact that is not later counts no more."""
        times = [self.cleared.get((machine, None), NEVER), self.cleared.get((machine, device), NEVER)]
        period = self.periods.get(machine)
        if period is None or period.since > self._at:
            return max(times)
        return max(*times, LATEST if machine in self.idle else period.window(self._at)[1])

    def ends(self, verdict: Verdict) -> str:
        """Why this verdict ends at this step, in words; empty where the operator did not end it."""
        if verdict.machine in self.idle:
            return f"is in maintenance{_because(self.periods[verdict.machine].reason)}"
        if verdict.machine in self.gone:
            return "was removed: it sent no readings for days"
        covered = [order for order in self.fresh if order.covers(verdict.machine, verdict.device)]
        return f"was cleared by the operator{_because(covered[-1].reason)}" if covered else ""


def orders_in(events: Rows, now: int) -> OperatorState:
    """The orders that hold at `now` (Unix ns), as the rows of the table `event` say."""
    orders = OperatorState()
    orders.feed(events)
    orders.turn(now)
    return orders


def in_maintenance(orders: OperatorState) -> dict[str, Maintenance]:
    """Machines in maintenance now."""
    return {name: orders.periods[name] for name in sorted(orders.idle)}


def planned(orders: OperatorState, now: int) -> dict[str, Maintenance]:
    """Machines not in maintenance at `now` (Unix ns) for which one is still to come."""
    later = {name: period for name, period in orders.periods.items() if period.ends() > now}
    return {name: later[name] for name in sorted(later.keys() - orders.idle)}


def _maintenance(rows: Rows, at: int, reason: str) -> Maintenance:
    """The maintenance that a row orders; a column of floats holds a time to a quarter of a microsecond."""
    time = int(rows.time[at])

    def number(name: str, usual: int) -> int:
        value = rows.number(name)[at]
        return int(value) if value == value else usual

    begin, until, every, times = number("begin", time), number("until", LATEST), number("every", 0), number("times", 1)
    return Maintenance(begin, until, reason, max(0, every), max(1, times) if every > 0 else 1, time)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
