"""What happens to a port's link, told from reading to reading: it goes down, comes up, or did both unseen."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from store.schema.time import SECOND

FLAPS_NS = 300 * SECOND
"""A link that falls twice within this time is flapping (ByteRobust, arXiv 2509.16293: two alerts in five minutes)."""


@dataclass(slots=True)
class Link:
    """What is remembered of a link from reading to reading, and the events that come of it."""

    up: bool | None = None
    downs: float | None = None
    seen: int = 0
    """Falls that were seen and that the port's own counter may yet count."""
    falls: deque[int] = field(default_factory=lambda: deque(maxlen=64))

    def follow(self, now: int, up: bool | None, downs: float | None) -> list[tuple[str, str, str]]:
        """(code, severity, message) of what happened since the last reading."""
        events = []
        if up is not None and self.up is not None and up != self.up:
            events.append(
                ("link_up", "info", "the link is up again") if up else ("link_down", "crit", "the link went down")
            )
            if not up:
                self.seen += 1
                self.falls.append(now)
        hidden = self._hidden(downs)
        self.falls.extend([now] * min(hidden, 64))
        recent = sum(fall > now - FLAPS_NS for fall in self.falls)
        if hidden or (events and not up and recent > 1):
            flapping = f"the link fell {recent} times within {FLAPS_NS // SECOND} s"
            said = flapping if recent > 1 else "the link went down and came back between two readings"
            # A warning: whether the machine is at fault, or the network, is seen beside its peers.
            events.append(("link_flap", "warn", said))
        if up and self.up:  # what the counter has not counted by now it never will
            self.seen = 0
        self.up = self.up if up is None else up
        return events

    def _hidden(self, downs: float | None) -> int:
        """How many falls the counter knows of that were not seen; a counter that decreases was reset."""
        if downs is None:
            return 0
        counted = max(int(downs - self.downs), 0) if self.downs is not None else 0
        self.downs = downs
        known = min(counted, self.seen)
        self.seen -= known
        return counted - known
