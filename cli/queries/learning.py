"""How far the detector has learned its thresholds, from its own row in the table `threshold`."""

from __future__ import annotations

from typing import Any

from store.schema.contract import ReadableStore
from store.schema.time import SECOND

RECENT_NS = 1800 * SECOND
"""Age up to which a row counts: the detector repeats it every five minutes."""


def read_learning(store: ReadableStore, now: int) -> dict[str, Any] | None:
    """The newest row as of `now` (Unix ns); None where no detector reports it."""
    if "threshold" not in store.tables():
        return None
    rows = store.read("threshold", now - RECENT_NS, now).to_pylist()
    return rows[-1] if rows else None
