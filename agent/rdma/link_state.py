"""The link of an RDMA port from reading to reading: it went down, came up, or did both between two readings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Link:
    """What is remembered of a link; how often a link may fall is the detector's question (rules.py)."""

    up: bool | None = None
    downs: float | None = None
    """The port's own count of falls at the last reading."""
    seen: int = 0
    """Falls that were seen and that the port's own counter may yet count."""

    def follow(self, up: bool | None, downs: float | None) -> list[tuple[str, str, str]]:
        """(code, severity, message) of what happened since the last reading; None: a value that cannot be read."""
        events = []
        if up is not None and self.up is not None and up != self.up:
            if up:
                events.append(("link_up", "info", "the link is up again"))
            else:
                events.append(("link_down", "crit", "the link went down"))
                self.seen += 1
        if hidden := self._hidden(downs):
            # A warning: whether the machine is at fault, or the network, is seen beside its peers.
            times = f" {hidden} times" if hidden > 1 else ""
            events.append(("link_flap", "warn", f"the link went down and came back{times} between two readings"))
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
