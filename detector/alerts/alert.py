"""Alert: the state of an incident (key, onset, level, end) as it is sent to people; IncidentTracker makes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal

from detector.alerts.brief import Brief
from detector.model.job import Job
from detector.model.verdict import RANK, Level, Verdict

REOPEN_NS = 600 * 10**9
"""A machine that is named again within this time after an incident continues it: an intermittent fault is one."""
BLIND = "blind"
"""The kind of a verdict about Peerwatch itself: it receives no readings."""
Event = Literal["begun", "changed", "repeat", "over", "note", "test"]


@dataclass(frozen=True, slots=True)
class Alert:
    """The state of one incident; times in Unix ns."""

    incident: str
    """The key: the same for all alerts of an incident, also after a restart of the detector."""
    event: Event
    verdict: Verdict
    """The newest verdict; level ok once the incident has ended."""
    finding: Verdict
    """The newest verdict of level warn or crit."""
    start: int
    """Onset, as the first verdict gives it."""
    opened: int
    """Time of the first verdict."""
    worst: Level = "ok"
    end: int | None = None
    standing: Level = "ok"
    """The worst level of the open incidents of this machine."""
    fleet: int = 0
    """Number of machines that are watched."""
    brief: Brief = field(default_factory=Brief)
    job: Job | None = None
    """The scheduler's job at the beginning: it stays, since labels are an alert's identity."""
    unread: int | None = None
    """Time (Unix ns) since which no reading of the machine comes; None while readings come."""

    @property
    def headline(self) -> str:
        """One line: what is wrong, where, how much, and the likely cause; after the end, what it was."""
        message = " ".join(self.verdict.message.split())
        if self.end is not None and self.event == "over":
            was = " ".join(self.finding.message.split())
            ended = f"{message}, after {duration(self.end - self.start)}"
            return f"{ended}. It was: {was}" if was != message else ended
        if self.brief.likely:
            message = f"{message.rstrip('.')}. Likely {self.brief.likely}"
            message += f": {self.brief.numbers[0].text}" if self.brief.numbers else ""
        return f"{message} (last seen at {clock(self.unread)} UTC; no readings since)" if self.unread else message

    def as_json(self) -> dict[str, object]:
        """The object that sinks pass on; times in Unix ns, `end` null while the incident lasts."""
        return {
            **self.verdict.as_json(),
            "incident": self.incident,
            "event": self.event,
            "worst": self.worst,
            "finding": self.finding.message,
            "evidence": list(self.finding.evidence),
            "start": self.start,
            "opened": self.opened,
            "end": self.end,
            "fleet": self.fleet,
            "headline": self.headline,
            "unread_since": self.unread,
            "job": self.job.as_json() if self.job else None,
            **self.brief.as_json(),
        }


class RetryLaterError(OSError):
    """A sink could not deliver an alert now; the next attempt is `rest_s` seconds later at the earliest, if known."""

    def __init__(self, reason: str, rest_s: float = 0.0) -> None:
        super().__init__(reason)
        self.rest_s = rest_s


class RefusedError(OSError):
    """A sink will never deliver this alert; the message says why."""


class Sink(ABC):
    """A destination of alerts. A thread of its own calls it, one call at a time."""

    repeat_s = 0.0
    """Seconds between repeated alerts of an open incident; 0: none."""
    heartbeat_s = 0.0
    """Seconds between heartbeats while at least one machine is read; 0: none."""
    takes_alerts = True
    """Whether it receives alerts, or heartbeats only."""
    min_level: Level = "warn"
    """The lowest level that it receives: `alerts.min_level`, where it has none of its own."""
    own_level: Level | None = None

    @abstractmethod
    def send(self, alert: Alert) -> str:
        """Deliver it; returns the result in a few words. Raises RetryLaterError, RefusedError, or any OSError."""

    def test(self, alert: Alert) -> str:
        """As `send`, for a test alert that must have no effect."""
        return self.send(alert)

    def heartbeat(self, machines: Collection[str]) -> None:
        """Receive the names of the healthy machines. Raises OSError."""
        return


@dataclass(slots=True)
class IncidentTracker:
    """Open incidents by (task, machine)."""

    open: dict[tuple[str, str], Alert] = field(default_factory=dict)
    levels: dict[str, dict[str, Level]] = field(default_factory=dict)
    """Machine -> task -> level of the open incident."""
    _closed: dict[str, Alert] = field(default_factory=dict)
    """Machine -> the incident that ended last."""

    def record(self, verdict: Verdict) -> Alert | None:
        """Update the incident of a verdict; returns its alert, None where the verdict ends an unknown incident."""
        key = verdict.task, verdict.machine
        before = self.open.get(key)
        if verdict.level == "ok":
            if before is None:
                return None
            del self.open[key], self.levels[verdict.machine][verdict.task]
            found = self._closed[verdict.machine] = replace(before, event="over", verdict=verdict, end=verdict.time)
            return replace(found, standing=self.standing(verdict.machine))
        before = before or self._reopened(verdict)
        if before is None:
            name = _key(verdict)
            times = verdict.since, verdict.time
            found = Alert(name, "begun", verdict, verdict, *times, verdict.level, job=verdict.job)
        else:
            worst = max(before.worst, verdict.level, key=RANK.__getitem__)
            found = replace(before, event="changed", verdict=verdict, finding=verdict, worst=worst, end=None)
        self.open[key] = found
        self.levels.setdefault(verdict.machine, {})[verdict.task] = verdict.level
        return replace(found, standing=self.standing(verdict.machine))

    def _reopened(self, verdict: Verdict) -> Alert | None:
        """The incident of this machine that ended less than REOPEN_NS ago, under any task name."""
        found = self._closed.pop(verdict.machine, None)
        near = found is not None and found.end is not None and verdict.time - found.end <= REOPEN_NS
        return found if near else None

    def restore(self, verdicts: Iterable[Verdict]) -> dict[str, Alert]:
        """Record earlier verdicts in order of time; returns the last state of each incident by its key."""
        alerts = [alert for verdict in ends_first(verdicts) if (alert := self.record(verdict))]
        return {alert.incident: alert for alert in alerts}

    def standing(self, machine: str) -> Level:
        """The worst level of the open incidents of this machine."""
        return max(self.levels.get(machine, {}).values(), key=RANK.__getitem__, default="ok")


def ends_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """In order of time; at equal times ends come first, so that an incident continues under a new task name."""
    return sorted(verdicts, key=lambda verdict: (verdict.time, verdict.level != "ok"))


def duration(span: int) -> str:
    """A duration (ns) in words."""
    seconds = max(0, span) // 10**9
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def clock(time: int) -> str:
    """The time of day (UTC) of a time in Unix ns."""
    return datetime.fromtimestamp(time // 10**9, timezone.utc).strftime("%H:%M:%S")


def alert_of_note(note: Verdict, fleet: int) -> Alert:
    """An alert on a difference that slows no task: it is sent once and opens no incident."""
    return Alert(_key(note), "note", note, note, note.since, note.time, "note", note.time, fleet=fleet)


def sample(now: int, fleet: int) -> Alert:
    """A test alert at `now` (Unix ns): it says that it is one, names no fault, and has ended."""
    message = "this is a test of Peerwatch's alerts; nothing is wrong"
    verdict = Verdict(now, "test", "peerwatch-test", None, "test", "test.test", 0.0, now, "ok", message)
    return Alert(_key(verdict), "test", verdict, verdict, now, now, end=now, fleet=fleet)


def _key(verdict: Verdict) -> str:
    import hashlib  # loads OpenSSL, some MB that a reader of the settings alone does not need

    identity = f"{verdict.task}\0{verdict.machine}\0{verdict.time}"
    return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:16]
