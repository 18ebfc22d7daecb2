"""How long a training iteration takes, from the order in which a process asks for its operations.

An iteration is what comes again: between two occurrences of some operation the same operations are asked for, as often
as between the next two. The operation that shows this best is the anchor; from then on only its times count, so that
a checkpoint, an evaluation or some more micro-batches make one iteration long and leave the others alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.nccl.call_history import Ints, departs

TICK_NS = 1024
"""The unit of time in a log (bpf/programs/nccl.bpf.c)."""
_REMEMBERED = 16384
_OFTEN = 5
"""An operation that came less often says nothing yet: it may be a checkpoint's."""
_ANCHORS, _TIMES = 12, 4
_LIKE = 0.6
"""Share of the best likeness at which a shorter iteration is preferred: twice an iteration is as like as one."""
_OFF = 0.15
_LEAST = 0.5
_ABOUT = 1.3
_FIRST_LOOK = 32
_RARER, _LOOK_AGAIN = 4, 1 << 20
_STALE, _LATE_S = 3, 3.0
"""After so many iterations and seconds without another one none is reported: logs are read every few seconds."""
_SPAN_NS, _MANY = 4_000_000_000, 8
"""Of so many iterations in so long, pauses in some of them count, as those of garbage collection."""
_HURRY = 8
_FINE_BITS = 16
"""The lower bits of a signature tell count and datatype, the others communicator and kind."""


@dataclass(frozen=True, slots=True)
class PeriodAnchor:
    """The operation that marks the beginning of an iteration."""

    signature: int
    shift: int
    """So many lower bits of signatures are left out."""
    times: int
    """How often it comes in an iteration."""
    length: float
    """Operations of an iteration."""


class IterationDetector:
    """The operations of one process, as its log in the kernel has them."""

    def __init__(self) -> None:
        self._held: deque[tuple[Ints, Ints]] = deque()  # signatures and times (ticks), as they were read
        self._length = 0
        self._read: int | None = None
        self._departs: tuple[int | None, bool | None] | None = None  # number of entries, and the answer then
        self._anchor: PeriodAnchor | None = None
        self._marks = np.empty(0, np.int64)  # times of the anchor's last occurrences
        self._since_mark = self._since_look = 0
        self._look_at = _FIRST_LOOK
        self.log_nearly_full = False
        """A good part of the log was new at the last feed: the next one has to come soon."""
        self._last: tuple[int, float] | None = None  # end of the last iteration (ticks), seconds it took

    def add_log(self, count: int, entries: NDArray[np.uint64], now: int) -> None:
        """Add a log: the number of all entries, the last of them in a ring, and the time (monotonic ns)."""
        fresh = count - self._read if self._read is not None else min(count, len(entries))
        self._read, self.log_nearly_full = count, _HURRY * fresh > len(entries)
        if fresh <= 0:
            return
        if fresh > len(entries):  # some are lost: what follows has no place behind what was
            self._held.clear()
            self._length, self._marks, fresh = 0, self._marks[:0], len(entries)
        new = entries[(count - fresh + np.arange(fresh)) % len(entries)]
        ticks = now // TICK_NS
        # The nearest time with these 32 bits: what came while we read is a moment ahead of us.
        apart = ((new >> np.uint64(32)).astype(np.int64) - ticks + (1 << 31)) & 0xFFFFFFFF
        times = ticks + apart - (1 << 31)
        signatures = (new & np.uint64(0xFFFFFFFF)).astype(np.int64)
        self._hold(signatures, times)
        self._mark(signatures, times)
        self._since_look += fresh
        if self._since_look >= self._look_at or self._is_lost():
            self._look()

    def seconds(self, now: int) -> float | None:
        """How long the last iteration took, or those of the last seconds; None where that is not known."""
        if self._last is None:
            return None
        end, took = self._last
        return took if (now // TICK_NS - end) * TICK_NS / 1e9 < _STALE * took + _LATE_S else None

    def departs(self) -> bool | None:
        """Whether one of the last operations departs from the order of those before; None: not known."""
        if self._departs is None or self._departs[0] != self._read:
            signatures = [part for part, _ in self._held]
            self._departs = self._read, departs(np.concatenate(signatures)) if signatures else None
        return self._departs[1]

    def _hold(self, signatures: Ints, times: Ints) -> None:
        self._held.append((signatures, times))
        self._length += len(times)
        while self._length > _REMEMBERED + len(self._held[0][0]):
            self._length -= len(self._held.popleft()[0])

    def _is_lost(self) -> bool:
        """The anchor came no more for as many operations as three iterations had."""
        anchor = self._anchor
        return anchor is not None and min(self._since_mark, self._since_look) > _STALE * anchor.length + _FIRST_LOOK

    def _look(self) -> None:
        signatures, times = (np.concatenate(part) for part in zip(*self._held, strict=True))
        self._anchor = find_anchor(signatures, times, 0) or find_anchor(signatures >> _FINE_BITS, times, _FINE_BITS)
        self._since_look, self._look_at = 0, min(_RARER * self._look_at, _LOOK_AGAIN)
        self._marks, self._since_mark = self._marks[:0], 0
        self._mark(signatures, times)

    def _mark(self, signatures: Ints, times: Ints) -> None:
        """Measure the iterations that end among these operations."""
        self._since_mark += len(times)
        if self._anchor is None:
            return
        places = np.flatnonzero(signatures >> self._anchor.shift == self._anchor.signature)
        if not len(places):
            return
        marks, apart = np.concatenate((self._marks, times[places])), self._anchor.times
        took, ends = marks[apart:] - marks[:-apart], marks[apart:]
        recent = int(np.searchsorted(ends, marks[-1] - _SPAN_NS // TICK_NS))
        if len(took):
            self._last = int(marks[-1]), _typical(took[recent:], took[-len(places) :]) * TICK_NS / 1e9
        self._marks, self._since_mark = marks[recent:], len(times) - 1 - int(places[-1])


def _typical(recent: Ints, new: Ints) -> float:
    """The mean of many recent ones but the longest, which may be a checkpoint's; else the median of the new ones."""
    middle = float(np.sort(new)[len(new) // 2])
    return max(middle, float(np.sort(recent)[:-1].mean())) if len(recent) >= _MANY else middle


@dataclass(frozen=True, slots=True)
class _Candidate:
    code: int
    times: int
    like: float
    length: float
    """Operations from one occurrence to the next."""
    spread: float
    """Of the time from one to the next, as a share of it."""


def find_anchor(signatures: Ints, times: Ints, shift: int) -> PeriodAnchor | None:
    """The operation that marks the beginning of an iteration; None where none does.

    Of stretches that are about as alike the shortest count, and of their operations the one that comes most evenly.
    """
    words, codes, counts = np.unique(signatures, return_inverse=True, return_counts=True)
    often = counts >= _OFTEN
    if often.sum() < (~often).sum():  # too early to say, or sizes that are new each time
        return None
    weights = np.where(often, 1 / counts, 0.0)
    found = []
    for code, nth in _candidates(counts):
        places = np.flatnonzero(codes == code)[::nth]
        if len(places) >= _OFTEN:
            took = np.diff(times[places])
            spread = float(np.median(np.abs(took - np.median(took))) / max(float(np.median(took)), 1.0))
            length = float(np.median(np.diff(places)))
            found.append(_Candidate(code, nth, _likeness(places, codes, weights), length, spread))
    best = max(found, key=lambda one: (round(one.like, 1), -one.length), default=None)
    if best is None or best.like < _LEAST:
        return None
    good = [one for one in found if one.like >= _LIKE * best.like and _fits(best.length / one.length)]
    shortest = min(one.length for one in good)
    good = [one for one in good if one.length <= _ABOUT * shortest]
    chosen = max(good, key=lambda one: (round(one.like, 1), -one.spread))
    return PeriodAnchor(int(words[chosen.code]), shift, chosen.times, chosen.length)


def _fits(times: float) -> bool:
    """Whether a stretch goes that often into a longer one: two of three alike in an iteration are no iteration."""
    return abs(times - round(times)) <= _OFF


def _candidates(counts: Any) -> Iterator[tuple[int, int]]:
    """The rarest of the operations that come often enough, once to some times an iteration.

    Stretches that are too short to hold half of those operations are no iterations.
    """
    often = np.flatnonzero(counts >= _OFTEN)
    for code in often[np.argsort(counts[often], kind="stable")][:_ANCHORS].tolist():
        for times in range(1, _TIMES + 1):
            if 2 * times * counts.sum() >= len(often) * counts[code]:
                yield code, times


def _likeness(places: Ints, codes: Any, weights: NDArray[np.float64]) -> float:
    """How alike the stretches between these places are to the next, 0 to 1; each kind of operation counts alike."""
    inside = codes[places[0] : places[-1]]
    stretch = np.repeat(np.arange(len(places) - 1), np.diff(places))
    held = np.bincount(stretch * len(weights) + inside, minlength=(len(places) - 1) * len(weights))
    held = held.reshape(-1, len(weights))
    both, either = np.minimum(held[1:], held[:-1]).sum(0), np.maximum(held[1:], held[:-1]).sum(0)
    return float(weights @ both / max(weights @ either, 1e-9))
