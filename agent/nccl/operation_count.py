"""Where counting began: probes may come late, but ranks are compared by the index of an operation."""

from __future__ import annotations

from dataclasses import dataclass

BIRTH, MEMORY, ATTACH = "birth", "memory", "attach"
_TRIES = 10
"""Readings after which a library whose own count runs differently is given up."""


@dataclass(slots=True)
class CountOrigin:
    """What to add to the count of one communicator so that it begins with its birth.

    A communicator whose birth was seen needs nothing. For another one the library's own count
    (`ncclComm.opCount`) tells, if it moves in step with ours: two readings with operations between them must agree.
    """

    base: int = 0
    origin: str | None = None
    """birth, memory or attach; None while it is not yet known."""
    _guess: int = -1
    _operations: int = 0
    _tries: int = 0

    def settle(self, born: bool, operations: int, own: int | None) -> None:
        """Take in one reading: our count, and the library's own (None: it cannot be read)."""
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
    """Carries the count of one communicator on by the library's own, once that was seen to move in step with ours."""

    in_step: bool = False
    apart: int = 0
    """How much the library's own count is ahead of ours."""
    total: int = -1
    """The count as last told, or compared."""
    moved: int = 0
    """When it was last told to have grown, monotonic ns; 0: never."""

    def compare(self, total: int, own: int) -> None:
        """Take in both counts, read while no operation came. The library counts an operation a moment after us."""
        if self.total < 0 or own - total > self.apart:
            self.in_step, self.apart, self.total = False, own - total, total
        elif own - total == self.apart and total > self.total:
            self.in_step = True

    def carry(self, own: int) -> int:
        """The count by the library's own; it never falls."""
        self.total = max(self.total, own - self.apart)
        return self.total
