"""How many operations a communicator has had: counted by probes, and carried on from memory while they are off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from store.schema.sample import Value

BIRTH, MEMORY, ATTACH = "birth", "memory", "attach"
"""Where a count begins: at the communicator's birth, at a base read from memory, or when probes were attached."""
_TRIES = 10
"""Readings after which a library's own count is given up, if it does not move in step with ours."""
_POINT_TO_POINT = ("Send", "Recv")
_ONLY_PROBES = (
    "bytes_total",
    "unsized_total",
    "host_blocked_seconds_total",
    "iteration_seconds",
    "groups_total",
    "groups_open",
)
"""Columns that are unknown while calls carry no probes."""


@dataclass(slots=True)
class CountOrigin:
    """What to add to the count of one communicator so that it begins with its birth.

    Probes may come late, but ranks are compared by the index of an operation. A communicator with a birth that was
    seen needs nothing. For another one the library's own count (`ncclComm.opCount`) gives the base, if it moves in
    step with ours: two readings with operations between them must agree.
    """

    base: int = 0
    origin: str | None = None
    """birth, memory or attach; None while it is not yet known."""
    _guess: int = -1
    _operations: int = 0
    _tries: int = 0

    def settle(self, born: bool, operations: int, own: int | None) -> None:
        """Learn from one reading: our count, and the library's own (None: it cannot be read)."""
        if self.origin is not None:
            return
        self._tries += 1
        if born:
            self.origin = BIRTH
        elif own is not None and own - operations == self._guess >= 0 and operations > self._operations:
            self.base, self.origin = self._guess, MEMORY
        elif self._tries > _TRIES:
            self.origin = ATTACH
        elif own is not None and own - operations != self._guess:
            self._guess, self._operations = max(own - operations, -1), operations


@dataclass(slots=True)
class CountTracker:
    """Continues the count of one communicator by the library's own, once that was seen to move in step with ours."""

    in_step: bool = False
    apart: int = 0
    """How much the library's own count is ahead of ours."""
    total: int = -1
    """The count as last reported, or compared."""
    moved: int = 0
    """When it was last seen to grow, monotonic ns; 0: never."""

    def compare(self, total: int, own: int) -> None:
        """Compare both counts, read while no operation came. The library counts an operation a moment after us."""
        if self.total < 0 or own - total > self.apart:
            self.in_step, self.apart, self.total = False, own - total, total
        elif own - total == self.apart and total > self.total:
            self.in_step = True

    def carry(self, own: int) -> int:
        """The count by the library's own; it never falls."""
        self.total = max(self.total, own - self.apart)
        return self.total


def continued(values: Mapping[str, Value], own: int | None, count: CountTracker, clock: int) -> dict[str, Value]:
    """The row while calls carry no probes: what memory shows goes on, the rest is unknown.

    `own` is the library's own count (None: it cannot be read), `clock` the time in monotonic ns. The ranks of a
    point-to-point communicator count differently by design; its last operation stays in the row to mark it.
    """
    before, total = count.total, None if own is None else count.carry(own)
    if total is not None and total > before:
        count.moved = clock
    point_to_point = str(values.get("operation") or "").startswith(_POINT_TO_POINT)
    active = values.get("active_ratio")
    return {
        **{name: value for name, value in values.items() if name not in _ONLY_PROBES},
        "operation": values.get("operation") if point_to_point else None,
        "operations_total": total,
        "counted_from": ATTACH if values.get("counted_from") == ATTACH else MEMORY,
        "pending": None if active is None else float(float(active) > 0),
        "idle_seconds": max(clock - count.moved, 0) / 1e9 if count.moved else None,
    }
