"""Events of the sources; repeats of one are counted, so that a storm of it makes two rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from store.schema.sample import Sample

Severity = Literal["info", "warn", "crit"]

WINDOW_NS = 60_000_000_000
"""Repeats of an event within this time are counted, and reported at its end."""
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. Two are the same when code, device and severity are."""

    code: str
    device: str
    """Such as gpu:3 or rdma:mlx5_0/1; empty: the machine as a whole."""
    severity: Severity
    message: str


def samples(source: str, now: int, events: Iterable[Event]) -> list[Sample]:
    """Rows of the table `event`, a nanosecond apart: rows of one code on two devices must not share time and keys."""
    return [
        Sample(
            "event",
            {
                "source": source,
                "code": event.code,
                "device": event.device,
                "severity": event.severity,
                "message": event.message,
            },
            now + number,
        )
        for number, event in enumerate(events)
    ]


@dataclass(slots=True)
class _Entry:
    at: int
    event: Event
    again: int = 0


class Repeats:
    """Lets the first of equal events through and counts the others until its window ends. Times are Unix ns."""

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._entries: dict[tuple[str, str, str], _Entry] = {}
        self.unfolded = 0
        """Events that were dropped since there were too many different ones to tell apart."""

    def admit(self, now: int, event: Event) -> Event | None:
        """The event if it is news, else None: it is counted."""
        key = (event.code, event.device, event.severity)
        entry = self._entries.get(key)
        if entry is not None:
            entry.again += 1
            entry.event = event
            return None
        if len(self._entries) >= _REMEMBERED:
            self.unfolded += 1
            return None
        self._entries[key] = _Entry(now, event)
        return event

    def due(self, now: int) -> list[Event]:
        """An event for each window of repeats that has ended; repeats that go on begin another one."""
        found = []
        for key, entry in [item for item in self._entries.items() if not 0 <= now - item[1].at < self._window_ns]:
            if not entry.again:
                del self._entries[key]
                continue
            seconds = max(now - entry.at, 0) / 1e9
            words = f"{entry.event.message} ({entry.again} more times in {seconds:.0f} s)"
            found.append(replace(entry.event, message=words))
            entry.at, entry.again = now, 0
        return found
