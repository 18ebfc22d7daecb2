"""How many operations a communicator has had: counted by probes, and carried on from memory while they are off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from store.schema.sample import Value

BIRTH, MEMORY, ATTACH = "birth", "memory", "attach"
"""Where a count begins: at the communicator's birth, at a base read from memory, or when probes were attached."""
_AGREEING = 3
"""Readings with operations between them that have to agree: one proves nothing."""
_MISSED = 10
"""Readings in a row that may disagree, such as of calls under way, before a count is no longer believed."""
_TRIES = 3 * _MISSED
"""Readings after which a library's own count is given up; one that disagrees, or cannot be had, counts for three."""
_POINT_TO_POINT = ("Send", "Recv", "PutSignal", "Signal", "WaitSignal")
_ONLY_PROBES = (
    "bytes_total",
    "unsized_total",
    "host_blocked_seconds_total",
    "iteration_seconds",
    "groups_total",
    "groups_open",
    "replayed",
)
"""Columns that are unknown while calls carry no probes."""


@dataclass(slots=True)
class CountOrigin:
    """What to add to the count of one communicator so that it begins with its birth.

    Probes may come late, but ranks are compared by the index of an operation. A communicator with a birth that was
    seen needs nothing. For another one the library's own count (Memory.operations) gives the base, if it moves in
    step with ours.
    """

    base: int = 0
    origin: str | None = None
    """birth, memory or attach; None while it is not yet known."""
    _tracker: CountTracker = field(default_factory=lambda: CountTracker())
    _tries: int = 0

    def settle(self, born: bool, operations: int, own: int | None) -> None:
        """Learn from one reading: our count, and the library's own (None: it cannot be read)."""
        if self.origin is not None:
            return
        if own is not None:
            self._tracker.compare(operations, own)
        self._tries += 3 if own is None or self._tracker.missed else 1
        if born:
            self.origin = BIRTH
        elif self._tracker.in_step and self._tracker.apart >= 0:
            self.base, self.origin = self._tracker.apart, MEMORY
        elif self._tries > _TRIES:
            self.origin = ATTACH

    def refute(self) -> None:
        """The library's own count was seen to part from ours: a base that came from it is none."""
        if self.origin == MEMORY:
            self.base, self.origin = 0, ATTACH


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
    agreed: int = 0
    missed: int = 0
    """Readings, with operations between them, that agreed; and those that did not since the last one that did."""

    @property
    def refuted(self) -> bool:
        """Whether both have moved for long and never agreed again."""
        return self.missed > _MISSED

    def compare(self, total: int, own: int) -> None:
        """Compare both counts, read while no operation came. The library counts an operation a moment after us."""
        if self.total < 0 or own - total > self.apart:
            self.apart, self.total, self.agreed, self.missed = own - total, total, 0, 0
        elif total > self.total:
            agrees, self.total = own - total == self.apart, total
            self.agreed += agrees
            self.missed = 0 if agrees else self.missed + 1
        self.in_step = self.agreed >= _AGREEING and not self.refuted

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
