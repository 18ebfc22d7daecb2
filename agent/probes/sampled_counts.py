"""Counters of probes that are on a part of the time only: what is not counted is estimated.

While probes are off, a counter grows as it did, on average, in the last seconds in which they were on. Counters that
are always counted are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from agent.process.procfs import Process

_LOOK_S = 10.0
"""Of about so many seconds the average is taken."""


@dataclass(slots=True)
class _Counter:
    """One counter; clocks are monotonic seconds."""

    raw: float
    """As counted, at the last reading."""
    clock: float
    was_on: bool
    uncounted: float = 0
    """What to add to the count."""
    grown: float = 0.0
    seconds: float = 0.0
    """Growth while probes were on lately, and in how many seconds."""

    def advance(self, raw: float, clock: float, on: bool) -> float:
        """The counter at a later reading."""
        seconds, grown = clock - self.clock, raw - self.raw
        if on and self.was_on:
            if self.seconds > _LOOK_S:
                self.grown, self.seconds = self.grown / 2, self.seconds / 2
            self.grown, self.seconds = self.grown + grown, self.seconds + seconds
        else:  # what is counted here is partly of before: a wait that began then ends now, or is never seen to end
            self.uncounted += (self.grown / self.seconds if self.seconds else 0.0) * seconds - grown
            if on:  # a new window
                self.grown, self.seconds = self.grown / max(self.seconds, 1.0), min(self.seconds, 1.0)
        self.raw, self.clock, self.was_on = raw, clock, on
        return raw + self.uncounted


class SampledCounts:
    """The counters of all processes."""

    def __init__(self) -> None:
        self._known: dict[tuple[Process, str], _Counter] = {}

    def value(self, process: Process, column: str, raw: float, clock: float, on: bool) -> float:
        """A counter as it would be had its probes always been on; `on`: whether they are now.

        `clock` is in monotonic seconds.
        """
        known = self._known.get((process, column))
        if known is None:
            known = self._known[process, column] = _Counter(raw, clock, on)
        return known.advance(raw, clock, on)

    def forget(self, living: Collection[Process]) -> None:
        """Drop the counters of all other processes."""
        self._known = {key: one for key, one in self._known.items() if key[0] in living}
