"""Columns of a communicator whose calls carry no probes just now: what memory tells goes on, the rest is not known."""

from __future__ import annotations

from collections.abc import Mapping

from agent.nccl.operation_count import ATTACH, MEMORY, CountTracker
from store.schema.sample import Value

_PAIRED = ("Send", "Recv")
_ONLY_PROBES = (
    "bytes_total",
    "unsized_total",
    "host_blocked_seconds_total",
    "iteration_seconds",
    "groups_total",
    "groups_open",
)


def continued(values: Mapping[str, Value], own: int | None, count: CountTracker, clock: int) -> dict[str, Value]:
    """A row as memory alone tells it. Of the row, the library's own count (None: unreadable) and the time (ns).

    Of pairs the ranks' counts differ by nature: there the last operation seen stays, which tells that they are pairs.
    """
    before, total = count.total, None if own is None else count.carry(own)
    if total is not None and total > before:
        count.moved = clock
    paired = str(values.get("operation") or "").startswith(_PAIRED)
    active = values.get("active_ratio")
    return {
        **{name: value for name, value in values.items() if name not in _ONLY_PROBES},
        "operation": values.get("operation") if paired else None,
        "operations_total": total,
        "counted_from": ATTACH if values.get("counted_from") == ATTACH else MEMORY,
        "pending": None if active is None else float(float(active) > 0),
        "idle_seconds": max(clock - count.moved, 0) / 1e9 if count.moved else None,
    }
