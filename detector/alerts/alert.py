"""Alert: a verdict on its way to people, as part of an incident that has a key, a beginning and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Literal

from detector.alerts.brief import Brief
from detector.model.verdict import RANK, Level, Verdict

REOPEN_NS = 600 * 10**9
"""A machine that is named again within this time after an incident continues it: a fault that comes and goes is one."""
BLIND = "blind"
"""The kind of a verdict on Peerwatch itself: it sees no readings."""
Event = Literal["begun", "changed", "repeat", "over", "test"]


@dataclass(frozen=True, slots=True)
class Alert:
    """How one incident stands; times in Unix ns."""

    incident: str
    """The key: the same for all alerts of an incident, and after the detector has started anew."""
    event: Event
    verdict: Verdict
    """The newest word; once the incident is over, that it is."""
    finding: Verdict
    """The newest word that held something against the machine."""
    start: int
    """When the pattern began, as it was first said."""
    opened: int
    """When it was first said."""
    worst: Level = "ok"
    end: int | None = None
    standing: Level = "ok"
    """The worst level of all that is open on this machine."""
    fleet: int = 0
    """How many machines are watched."""
    brief: Brief = field(default_factory=Brief)
    unread: int | None = None
    """Since when (Unix ns) nothing is read that could change this; None while readings come."""

    @property
    def headline(self) -> str:
        """One line: what is wrong, where, how much, and the likely cause; once it is over, what it was."""
        message = " ".join(self.verdict.message.split())
        if self.end is not None and self.event == "over":
            was = " ".join(self.finding.message.split())
            return f"{message}, after {duration(self.end - self.start)}" + (
                f". It was: {was}" if was != message else ""
            )
        if self.brief.likely:
            message = f"{message.rstrip('.')}. Likely {self.brief.likely}"
            message += f": {self.brief.numbers[0].text}" if self.brief.numbers else ""
        return f"{message} (as last seen at {clock(self.unread)} UTC: nothing is read)" if self.unread else message

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
            **self.brief.as_json(),
        }


class RetryLaterError(OSError):
    """A sink could not pass an alert on now; it is tried again, not before `rest_s` seconds where that is known."""

    def __init__(self, reason: str, rest_s: float = 0.0) -> None:
        super().__init__(reason)
        self.rest_s = rest_s


class RefusedError(OSError):
    """A sink does not pass this alert on, now or later; the message says why."""


class Sink(ABC):
    """Where alerts go. Each is called by a thread of its own, one call at a time."""

    repeat_s = 0.0
    """An incident that lasts is told again this often; 0: never."""
    beat_s = 0.0
    """How often to hear of the machines that are well, while any is read; 0: never."""
    hears = True
    """Whether it takes alerts at all, or only heartbeats."""
    least: Level = "warn"
    """Incidents that are milder are none of its business."""

    @abstractmethod
    def send(self, alert: Alert) -> str:
        """Pass it on, and say in a few words what came of it. Raises LaterError, RefusedError, or any OSError."""

    def test(self, alert: Alert) -> str:
        """As `send`, for a made-up alert that must do no harm."""
        return self.send(alert)

    def beat(self, machines: Collection[str]) -> None:
        """Hear which machines are well. Raises OSError."""
        return


@dataclass(slots=True)
class IncidentTracker:
    """Open incidents by (task, machine)."""

    open: dict[tuple[str, str], Alert] = field(default_factory=dict)
    levels: dict[str, dict[str, Level]] = field(default_factory=dict)
    """Machine -> task -> level of what is open."""
    _closed: dict[str, Alert] = field(default_factory=dict)
    """Machine -> the incident that was over last."""

    def enter(self, verdict: Verdict) -> Alert | None:
        """What the verdict makes of its incident; None where it ends one that never was."""
        key = verdict.task, verdict.machine
        before = self.open.get(key)
        if verdict.level == "ok":
            if before is None:
                return None
            del self.open[key], self.levels[verdict.machine][verdict.task]
            found = self._closed[verdict.machine] = replace(before, event="over", verdict=verdict, end=verdict.time)
            return replace(found, standing=self.standing(verdict.machine))
        before = before or self._continued(verdict)
        if before is None:
            name = _key(verdict)
            found = Alert(name, "begun", verdict, verdict, verdict.since, verdict.time, verdict.level)
        else:
            worst = max(before.worst, verdict.level, key=RANK.__getitem__)
            found = replace(before, event="changed", verdict=verdict, finding=verdict, worst=worst, end=None)
        self.open[key] = found
        self.levels.setdefault(verdict.machine, {})[verdict.task] = verdict.level
        return replace(found, standing=self.standing(verdict.machine))

    def _continued(self, verdict: Verdict) -> Alert | None:
        """The incident that was over a short while ago on this machine, by whatever name its task went."""
        found = self._closed.pop(verdict.machine, None)
        near = found is not None and found.end is not None and verdict.time - found.end <= REOPEN_NS
        return found if near else None

    def take_up(self, verdicts: Iterable[Verdict]) -> dict[str, Alert]:
        """Enter what was said so far, in order of time; the last state of each incident by its key."""
        alerts = [alert for verdict in ends_first(verdicts) if (alert := self.enter(verdict))]
        return {alert.incident: alert for alert in alerts}

    def standing(self, machine: str) -> Level:
        """The worst level of all that is open on this machine."""
        return max(self.levels.get(machine, {}).values(), key=RANK.__getitem__, default="ok")


def ends_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """In order of time; of one moment what is over first, so that a task that goes by another name continues."""
    return sorted(verdicts, key=lambda verdict: (verdict.time, verdict.level != "ok"))


def duration(span: int) -> str:
    """So many ns in words."""
    seconds = max(0, span) // 10**9
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def clock(time: int) -> str:
    """The time of day (UTC) of a time in Unix ns."""
    return datetime.fromtimestamp(time // 10**9, timezone.utc).strftime("%H:%M:%S")


def sample(now: int, fleet: int) -> Alert:
    """A made-up alert at `now` (Unix ns) that says so itself, holds nothing against anybody, and is over."""
    message = "this is a test of Peerwatch's alerts; nothing is wrong"
    verdict = Verdict(now, "test", "peerwatch-test", None, "test", "test.test", 0.0, now, "ok", message)
    return Alert(_key(verdict), "test", verdict, verdict, now, now, end=now, fleet=fleet)


def _key(verdict: Verdict) -> str:
    import hashlib  # OpenSSL: some MB that who only reads the settings should not pay

    words = f"{verdict.task}\0{verdict.machine}\0{verdict.time}"
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:16]
