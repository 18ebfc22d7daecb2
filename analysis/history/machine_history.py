"""What happened to each machine and each card over some weeks, from the store: one record a machine, one a card."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.history.lemons import Ranking, rank_lemons
from analysis.history.starts import HOUR_NS, read_starts, runs_of
from detector.alerts.past_incidents import DAY_NS, read_cards, read_incidents
from detector.model.verdict_rows import NOTE
from detector.timeseries.rows import rows_of
from detector.topology.maintenance import OperatorState, orders_in
from store.schema.contract import ReadableStore, StoreError
from store.schema.time import SECOND

if TYPE_CHECKING:
    from detector.alerts.alert import Alert

SAME_NS = DAY_NS
"""An incident that begins within this time after the last one's end is the same trouble, and counts once."""
_RECENT_NS = 600 * SECOND
_STARTS_EVERY_NS = 4 * HOUR_NS
CARDS_EVERY_NS = 7 * DAY_NS
_TABLES = ("source", "host")
"""Tables that every agent writes at each reading."""


@dataclass(slots=True)
class MachineHistory:
    """One machine; times in Unix ns."""

    machine: str
    hours: float = 0.0
    """Watched within the window: from its first trace on, maintenance left out."""
    incidents: list[Alert] = field(default_factory=list)
    serials: list[str] = field(default_factory=list)
    """Serial number of the card of each incident; empty where it is none of a GPU, or not known."""
    notes: list[tuple[int, str]] = field(default_factory=list)
    actions: list[tuple[int, str, str]] = field(default_factory=list)
    """What the operator did: time, code (ack, clear, maintenance, maintenance_end), device and reason."""
    starts: list[int] = field(default_factory=list)
    """Starts of jobs on it."""
    exits: list[int] = field(default_factory=list)
    """Processes that left their communicators behind."""

    @property
    def troubles(self) -> int:
        """Incidents, those counted once that begin within a day of the last one's end."""
        count, quiet = 0, -SAME_NS
        for one in self.incidents:
            count += one.opened - quiet > SAME_NS
            quiet = max(quiet, one.end or one.opened)
        return count


@dataclass(frozen=True, slots=True)
class History:
    """The fleet over a window (Unix ns)."""

    first: int
    end: int
    machines: dict[str, MachineHistory]
    ranking: Ranking
    """Indices are positions in `machines`."""

    def ranked(self) -> list[tuple[MachineHistory, float, float, bool]]:
        """Machine, shrunken incidents per 1,000 hours, probability of a lemon, and whether it is named as one."""
        all_of, found = list(self.machines.values()), self.ranking
        return [
            (all_of[at], float(found.rate[at] * 1000), float(found.chance[at]), place < found.named)
            for place, at in enumerate(found.order.tolist())
        ]

    def cards(self) -> dict[str, list[tuple[str, Alert]]]:
        """By serial number, the machine and incident of each of a card, in order of time."""
        found = defaultdict[str, list[tuple[str, "Alert"]]](list)
        for one in self.machines.values():
            for serial, incident in zip(one.serials, one.incidents, strict=True):
                if serial:
                    found[serial].append((one.machine, incident))
        return {serial: sorted(mine, key=lambda pair: pair[1].opened) for serial, mine in sorted(found.items())}


def read_history(store: ReadableStore, end: int, days: int) -> History:
    """The history of every machine over `days` days up to `end` (Unix ns). Raises StoreError for an empty store."""
    ends = store.span(max(0, end - days * DAY_NS))
    if ends is None or ends[0] > end:
        raise StoreError("the store holds nothing of that time: name another store, or more --days")
    reading = _Reading(store, max(end - days * DAY_NS, ends[0]), end)
    reading.incidents()
    orders = reading.events()
    reading.starts()
    reading.present(min(end, ends[1]) - _RECENT_NS)
    machines = dict(sorted(reading.machines.items()))
    if not machines:
        raise StoreError("the store names no machine in that time: start the agents (peerwatch agent)")
    for name, one in machines.items():
        one.hours = _hours(orders, name, reading.since.get(name, reading.first), end)
    counts = np.array([one.troubles for one in machines.values()], np.float64)
    hours = np.array([one.hours for one in machines.values()], np.float64)
    return History(reading.first, end, machines, rank_lemons(counts, hours))


@dataclass(slots=True)
class _Reading:
    """Fills in the machines, a table at a time."""

    store: ReadableStore
    first: int
    end: int
    machines: dict[str, MachineHistory] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    """Of machines that came within the window, when: by their cards, or an earlier trace.

    An incident alone says nothing of it: hours would begin with the incident.
    """

    def of(self, name: str, at: int | None = None) -> MachineHistory:
        """The record of a machine; `at` is a time (Unix ns) at which it was there."""
        if at is not None and name in self.since:
            self.since[name] = min(self.since[name], at)
        return self.machines.setdefault(name, MachineHistory(name))

    def incidents(self) -> None:
        """Incidents, with the cards that they were on."""
        cards = read_cards(self.store, self.first, self.end)
        for (name, _), times in cards.times.items():
            self.of(name)
            if times[0] > self.first + CARDS_EVERY_NS:  # agents repeat cards once a week
                self.since[name] = min(self.since.get(name, self.end), times[0])
        for one in read_incidents(self.store, self.first, self.end):
            if name := one.finding.machine:
                self.of(name, one.opened).incidents.append(one)
                self.of(name).serials.append(cards.serial(name, one.finding.device, one.opened))

    def events(self) -> OperatorState:
        """Notes, orders and lost processes; returns the operator's orders."""
        if "event" not in self.store.tables():
            return OperatorState()
        columns = ("device", "message", "begin", "until", "every", "times")
        rows = self.store.read("event", self.first, self.end, columns)
        for row in rows.to_pylist():
            one, code, source = self.of(row["machine"], row["time"]), row["code"], row["source"]
            words = " ".join(str(word) for word in (row.get("device"), row.get("message")) if word)
            if source == "operator":
                one.actions.append((row["time"], code, words))
            elif (source, code) == ("detector", NOTE):
                one.notes.append((row["time"], words))
            elif code == "rank_exit":
                one.exits.append(row["time"])
        return orders_in(rows_of("event", rows), self.end) if rows.num_rows else OperatorState()

    def starts(self) -> None:
        """Starts of jobs."""
        if "startup" not in self.store.tables():
            return
        rows = read_starts(self.store, self.first, self.end, _STARTS_EVERY_NS)
        if "start_time_seconds" not in rows.column_names:
            return
        begins = defaultdict[str, set[float]](set)
        for machine, begin in zip(
            rows.column("machine").to_pylist(), rows.column("start_time_seconds").to_pylist(), strict=True
        ):
            if begin is not None and self.first < begin * SECOND <= self.end:
                begins[machine].add(begin)
        for name, found in begins.items():
            self.of(name).starts = [round(at * SECOND) for at in runs_of(list(found))]

    def present(self, after: int) -> None:
        """Machines that are read now, so that those without any trouble count for the base rate."""
        for table in _TABLES:
            if table in self.store.tables():
                for name in set(self.store.read(table, after, self.end, ()).column("machine").to_pylist()):
                    self.of(name)


def _hours(orders: OperatorState, name: str, since: int, end: int) -> float:
    """Hours from `since` to `end` (Unix ns), those of the machine's newest maintenance left out; an hour at least."""
    out = 0
    if period := orders.periods.get(name):
        for nth in range(period.times):
            begin, over = period.since + nth * period.every, period.until + nth * period.every
            out += max(0, min(over, end) - max(begin, since))
    return max(1.0, (end - since - out) / HOUR_NS)


def as_json(one: MachineHistory) -> dict[str, Any]:
    """The object that `history --json` prints of a machine."""
    incidents = [
        {
            "incident": alert.incident,
            "opened": alert.opened,
            "end": alert.end,
            "level": alert.worst,
            "device": alert.finding.device,
            "serial": serial or None,
            "metric": alert.finding.metric,
            "message": alert.finding.message,
        }
        for alert, serial in zip(one.incidents, one.serials, strict=True)
    ]
    return {
        "machine": one.machine,
        "hours": round(one.hours, 2),
        "troubles": one.troubles,
        "incidents": incidents,
        "notes": [{"time": at, "message": words} for at, words in one.notes],
        "actions": [{"time": at, "action": code, "message": words} for at, code, words in one.actions],
        "job_starts": one.starts,
        "rank_exits": one.exits,
    }
