"""Alert: a verdict on its way to people, as part of an incident that has a key, a beginning and an end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from detector.verdict import RANK, Level, Verdict

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
        }


class LaterError(OSError):
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
    """How often to hear of the machines that are well; 0: never."""
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
class Book:
    """Open incidents by (task, machine)."""

    open: dict[tuple[str, str], Alert] = field(default_factory=dict)
    levels: dict[str, dict[str, Level]] = field(default_factory=dict)
    """Machine -> task -> level of what is open."""

    def enter(self, verdict: Verdict) -> Alert | None:
        """What the verdict makes of its incident; None where it ends one that never was."""
        key = verdict.task, verdict.machine
        before = self.open.get(key)
        if verdict.level == "ok":
            if before is None:
                return None
            del self.open[key], self.levels[verdict.machine][verdict.task]
            found = replace(before, event="over", verdict=verdict, end=verdict.time)
        elif before is None:
            name = _key(verdict)
            found = self.open[key] = Alert(name, "begun", verdict, verdict, verdict.since, verdict.time, verdict.level)
        else:
            worst = max(before.worst, verdict.level, key=RANK.__getitem__)
            found = self.open[key] = replace(before, event="changed", verdict=verdict, finding=verdict, worst=worst)
        if verdict.level != "ok":
            self.levels.setdefault(verdict.machine, {})[verdict.task] = verdict.level
        return replace(found, standing=self.standing(verdict.machine))

    def take_up(self, verdicts: Iterable[Verdict]) -> dict[str, Alert]:
        """Enter what was said so far, in order of time; the last state of each incident by its key."""
        alerts = [alert for verdict in verdicts if (alert := self.enter(verdict))]
        return {alert.incident: alert for alert in alerts}

    def standing(self, machine: str) -> Level:
        """The worst level of all that is open on this machine."""
        return max(self.levels.get(machine, {}).values(), key=RANK.__getitem__, default="ok")


def sample(now: int, fleet: int) -> Alert:
    """A made-up alert at `now` (Unix ns) that says so itself, holds nothing against anybody, and is over."""
    message = "this is a test of Peerwatch's alerts; nothing is wrong"
    verdict = Verdict(now, "test", "peerwatch-test", None, "test", "test.test", 0.0, now, "ok", message)
    return Alert(_key(verdict), "test", verdict, verdict, now, now, end=now, fleet=fleet)


def _key(verdict: Verdict) -> str:
    import hashlib  # OpenSSL: some MB that who only reads the settings should not pay

    words = f"{verdict.task}\0{verdict.machine}\0{verdict.time}"
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:16]
