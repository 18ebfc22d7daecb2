"""Notes: deviations that slow no task, as the detector writes them to the table `event`."""

from __future__ import annotations

from typing import Any

from detector.model.verdict_rows import NOTE
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

SPAN_NS = 86_400 * SECOND


def recent_notes(store: ReadableStore, now: int) -> list[dict[str, Any]]:
    """Time (Unix ns), machine, device and message of the notes of the last day before `now`, in order of time."""
    rows = store.read("event", now - SPAN_NS, now, ("device", "message")).to_pylist()
    found = [row for row in rows if (row.get("source"), row.get("code")) == ("detector", NOTE)]
    return [{name: row.get(name) for name in ("time", "machine", "device", "message")} for row in found]
