"""History: the highest excursions of each stream, day by day for a week, with the machine-hours behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.calibration import Stream
from detector.stats.arrays import Floats, Ints, grown
from detector.thresholds.excursions import Excursions
from store.schema.time import SECOND

DAYS, PLACES = 7, 64
"""Days remembered, and the highest excursions of a day and stream."""
DAY_NS = 86400 * SECOND
SMALL = "~"
"""Ends the name of a stream of small lasting differences."""
EVERY_MACHINE = -1
"""In place of a machine: what the operator has called a false alarm binds all machines."""


def _places(dtype: type) -> object:
    return field(default_factory=lambda: np.zeros((DAYS, 0, PLACES), dtype))


@dataclass(slots=True)
class History:
    """What is remembered of one table; a stream is a metric, or another reading of it that is judged by itself."""

    streams: list[str] = field(default_factory=list)
    peaks: Floats = field(default_factory=lambda: np.zeros((DAYS, 0, PLACES)))
    """[day, stream, place], in no order; 0: free."""
    machines: Ints = field(default_factory=lambda: np.zeros((DAYS, 0, PLACES), np.int64))
    """Number of each peak's machine, an index into `names`, or EVERY_MACHINE."""
    names: list[str] = field(default_factory=list)
    """Machines that have a peak or had one."""
    hours: Floats = field(default_factory=lambda: np.zeros((DAYS, 0)))
    """[day, stream]: machine-hours in which it was judged."""
    crossed: Floats = field(default_factory=lambda: np.zeros((DAYS, 0)))
    """[day, stream]: excursions that reached the threshold and were no page."""
    day: int = 0
    """The day (since 1970) of the newest entry."""

    def places(self, streams: list[str]) -> Ints:
        """The numbers of some streams; new ones get room."""
        known = {name: at for at, name in enumerate(self.streams)}
        self.streams += [name for name in streams if name not in known]
        known = {name: at for at, name in enumerate(self.streams)}
        size = len(self.streams)
        self.peaks = grown(self.peaks, (DAYS, size, PLACES), 0.0, 1)
        self.machines = grown(self.machines, (DAYS, size, PLACES), 0, 1)
        self.hours, self.crossed = (grown(part, (DAYS, size), 0.0) for part in (self.hours, self.crossed))
        return np.array([known[name] for name in streams], np.int64)

    def turn(self, now: int) -> None:
        """Forget the days that are a week ago at `now` (Unix ns)."""
        today = now // DAY_NS
        for day in range(max(self.day + 1, today - DAYS + 1), today + 1):
            for part in (self.peaks, self.hours, self.crossed):
                part[day % DAYS] = 0
        self.day = max(self.day, today)

    def add(self, found: Excursions) -> None:
        """Remember excursions; their streams and machines are numbered as here."""
        for at in np.argsort(-found.peak, kind="stable")[: PLACES * len(self.streams)].tolist():
            day = int(found.ended[at] // DAY_NS)
            if day > self.day - DAYS:
                self._put(day % DAYS, int(found.stream[at]), float(found.peak[at]), int(found.machine[at]))

    def _put(self, day: int, stream: int, peak: float, machine: int) -> None:
        """Remember a peak if it is higher than the lowest of the day."""
        mine = self.peaks[day, stream]
        place = int(mine.argmin())
        if peak > mine[place]:
            mine[place] = peak
            self.machines[day, stream, place] = machine

    def cross(self, found: Excursions) -> None:
        """Count excursions that reached the threshold and were no page."""
        np.add.at(self.crossed, (found.ended // DAY_NS % DAYS, found.stream), 1.0)

    def count(self, now: int, streams: Ints, hours: Floats) -> None:
        """Count machine-hours [stream] of the day of `now` (Unix ns)."""
        self.hours[now // DAY_NS % DAYS, streams] += hours

    def of(self, stream: int) -> tuple[Floats, Ints, float]:
        """Peaks of a stream and their machines, and the height from which on they are all there."""
        peaks, machines = self.peaks[:, stream], self.machines[:, stream]
        full = (peaks > 0).all(1)
        least = float(peaks[full].min(1).max()) if full.any() else 0.0
        known = peaks > 0
        return peaks[known], machines[known], least

    def seed(self, now: int, name: str, seeds: Stream) -> None:
        """Remember what a calibration has of a stream as if it had been seen on the day of `now` (Unix ns)."""
        self.turn(now)
        stream = self.places([name])
        machines = self.numbers([f"recorded machine {number}" for number in seeds.machines])
        same = np.ones(len(machines), np.int64)
        self.add(Excursions(stream[0] * same, machines, np.array(seeds.peaks, np.float64), now * same, now * same))
        self.count(now, stream, np.array([seeds.hours]))
        self.crossed[now // DAY_NS % DAYS, stream] += seeds.crossed

    def numbers(self, names: list[str]) -> Ints:
        """The numbers of some machines."""
        known = {name: at for at, name in enumerate(self.names)}
        for name in names:
            if name not in known:
                known[name] = len(known)
        self.names = list(known)
        return np.array([known[name] for name in names], np.int64)
