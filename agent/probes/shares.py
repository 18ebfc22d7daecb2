"""Shares of the kernel's arrays: the entries that users and processes gave back; the kernel counts those taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agent.system.left_out import LeftOut
from bpf.maps import Map

_FIRST = 5
_REASONS = (
    ("processes that call NCCL or CUDA", "256 of a user"),
    ("communicators", "256 of a process, 2048 of a user"),
    ("lives of communicators", "256 events of a process, 512 of a user, between two readings"),
)
"""By the place in the kernel's array of losses, from LOSS_PROCESS_SHARE on."""


class Tally:
    """A kernel's array of counts that the agent alone writes: what was given back, by place."""

    def __init__(self, counts: Map) -> None:
        self._map = counts
        self._counts = np.zeros(counts.capacity, np.uint64)

    def add(self, number: int, times: int = 1) -> None:
        """So many more, of the user or the process of that number; users' numbers wrap around (common.bpf.h)."""
        place = number % len(self._counts)
        self._counts[place] += np.uint64(times)
        self._map.update(place.to_bytes(4, "little"), self._counts[place].tobytes())

    def clear(self, place: int) -> None:
        """Begin at 0 there: the place is another's from now on."""
        if self._counts[place]:
            self._counts[place] = 0
            self._map.update(place.to_bytes(4, "little"), bytes(8))


class KernelShares:
    """One for the whole agent, beside the programs that it belongs to."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self.processes, self.slots = Tally(maps["process_returns"]), Tally(maps["slot_returns"])
        self.slots_of, self._events_of = Tally(maps["slot_returns_of"]), Tally(maps["event_returns_of"])
        self._events, self._losses = Tally(maps["event_returns"]), maps["losses"]
        self._reported = np.zeros(len(_REASONS), np.uint64)

    @property
    def of_process(self) -> tuple[Tally, ...]:
        """Those that belong to an entry of the array of processes, and begin at 0 with it."""
        return self.slots_of, self._events_of

    def drained(self, events: Any) -> None:
        """These events have left the ring."""
        for column, tally in (("uid", self._events), ("process", self._events_of)):
            numbers, counts = np.unique(events[column], return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                tally.add(number, count)

    def report(self, left_out: LeftOut) -> None:
        """Tell what was not counted because a share was exceeded."""
        counts = self._losses.rows()[_FIRST:].copy()
        for (what, share), more in zip(_REASONS, (counts - self._reported).tolist(), strict=True):
            left_out.add(what, share, more)
        self._reported = counts
