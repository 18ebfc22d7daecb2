"""What the agent leaves out because a user or a process exceeds its share: counted, reported, and logged once."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from store.schema.sample import Sample

log = logging.getLogger(__name__)

PREFIX = "left out: "
"""Begins the names of such rows in the table of probes."""


@dataclass(slots=True)
class _Entry:
    reason: str
    count: int = 0
    reported: int = 0


class LeftOut:
    """Counts by what was left out; only what was left out at some time has a row."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, what: str, reason: str, count: int = 1) -> None:
        """So many more of that were left out, for the reason of the share that was exceeded."""
        if not count:
            return
        if what not in self._entries:
            log.warning("%s%s: %s", PREFIX, what, reason)
        entry = self._entries.setdefault(what, _Entry(reason))
        entry.count += count

    def rows(self) -> list[Sample]:
        """A row for each: blocked where more was left out since the last row, gone where not."""
        rows = []
        for what, entry in self._entries.items():
            more, entry.reported = entry.count - entry.reported, entry.count
            values = {"library": PREFIX + what, "state": "blocked" if more else "gone", "symbols": 0, "path": None}
            reason = f"{more} in the last minute, {entry.count} in all: the share is {entry.reason}"
            rows.append(Sample("probe", {**values, "reason": reason}))
        return rows
