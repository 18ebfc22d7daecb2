"""Durations: how long the operations of each communicator are in flight in an iteration, by Little's law.

The mean time in flight is the share of time in which something is, over the rate at which it comes: so the share of
looks that found a communicator at work, times the seconds of an iteration, is how long its operations take in one. For
how long the host waited behind them is a second witness, measured by itself. Both are gathered over windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.attribution.features import IRREGULAR_RATIO
from detector.methods.progress.live_ranks import LiveRanks
from detector.stats.arrays import Bools, Floats, Ints, grown
from detector.stats.grouped import middle_of
from detector.topology.rank_table import Left, RankTable
from store.schema.time import SECOND

LOOKS, HOST = 0, 1
WITNESSES = 2
WINDOW_S = 4.0
_ROWS = 3  # a window has as many rows at least
_WHOLE = 0.6  # of a window that has to be known
_WARM = 3  # windows that make a norm
_NORM, _NORM_WRONG = 75, 750  # windows that it remembers; while irregular it follows slowly
_SERIES = ("seen", "blocked", "flight", "span", "mean", "variance", "age")


@dataclass(frozen=True, slots=True)
class Window:
    """What a window says; arrays over the crowd's series are [witness, series], NaN where nothing is known."""

    elapsed: Floats
    """Seconds in flight in an iteration."""
    mean: Floats
    """What is usual, NaN while there is no norm ..."""
    deviation: Floats
    """... and how it varies from window to window."""
    usual: Floats
    """[process]: usual seconds of an iteration."""
    longer: Floats
    """[process]: by how many seconds iterations of its task are longer; NaN where they are regular."""


@dataclass(slots=True)
class Durations:
    """What is remembered: by series what this window has gathered and what is usual, by process its iterations."""

    comm: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    seen: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    blocked: Floats = field(default_factory=lambda: np.zeros(0))
    """The host's counter when it was last read."""
    flight: Floats = field(default_factory=lambda: np.zeros((WITNESSES, 0)))
    """[witness, series]: seconds in flight in this window ..."""
    span: Floats = field(default_factory=lambda: np.zeros((WITNESSES, 0)))
    """... of so many that are known."""
    mean: Floats = field(default_factory=lambda: np.zeros((WITNESSES, 0)))
    variance: Floats = field(default_factory=lambda: np.zeros((WITNESSES, 0)))
    age: Floats = field(default_factory=lambda: np.zeros((WITNESSES, 0)))
    """Windows that were learned from."""
    iteration: Floats = field(default_factory=lambda: np.zeros(0))
    """[process]: usual seconds of an iteration, learned in as many windows as `known` says."""
    known: Floats = field(default_factory=lambda: np.zeros(0))
    begun: int = 0

    def let_go(self, left: Left) -> None:
        """Forget the series and processes that are not left."""
        series, people = left.series[left.series < len(self.seen)], left.processes[left.processes < len(self.known)]
        self.comm = left.renumbered(self.comm[series])
        for name in _SERIES:
            setattr(self, name, getattr(self, name)[..., series])
        self.iteration, self.known = self.iteration[people], self.known[people]

    def turn(self, now: int, ranks: RankTable, crowd: LiveRanks) -> Window | None:
        """Take in what was read since; what a window says that ends at `now` (Unix ns), None where none does."""
        self._fit(len(ranks.number), int(crowd.seat.max()) + 1)
        self._gather(ranks, crowd)
        self.begun = self.begun or now
        seconds = (now - self.begun) / SECOND
        if seconds < 0.95 * max(WINDOW_S, _ROWS * ranks.period / SECOND):
            return None
        window = self._close(ranks, crowd, seconds)
        self.begun, self.flight, self.span = now, 0 * self.flight, 0 * self.span
        return window

    def _fit(self, series: int, people: int) -> None:
        self.comm, self.seen = grown(self.comm, (series,), -1), grown(self.seen, (series,), 0)
        self.blocked = grown(self.blocked, (series,), 0.0)
        for name in _SERIES[2:]:
            setattr(self, name, grown(getattr(self, name), (WITNESSES, series), 0.0))
        self.iteration, self.known = grown(self.iteration, (people,), 0.0), grown(self.known, (people,), 0.0)

    def _gather(self, ranks: RankTable, crowd: LiveRanks) -> None:
        live = crowd.live
        anew = live[self.comm[live] != ranks.code[live]]
        self.comm[anew], self.age[:, anew], self.seen[anew] = ranks.code[anew], 0.0, 0
        seconds = (ranks.times["seen"][live] - self.seen[live]) / SECOND
        seconds[(self.seen[live] == 0) | (seconds > 3.5 * ranks.period / SECOND) | ~crowd.running[crowd.process]] = 0.0
        # What communicators share is nobody's own: then no steps are told.
        share = np.where(np.isnan(ranks.floats["steps"][live]), np.nan, ranks.floats["active"][live])
        blocked = ranks.floats["blocked"][live]
        for witness, gained in ((LOOKS, share * seconds), (HOST, np.maximum(blocked - self.blocked[live], 0.0))):
            usable = ~np.isnan(gained) & (seconds > 0)
            self.flight[witness, live[usable]] += gained[usable]
            self.span[witness, live[usable]] += seconds[usable]
        self.seen[live], self.blocked[live] = ranks.times["seen"][live], blocked

    def _close(self, ranks: RankTable, crowd: LiveRanks, seconds: float) -> Window:
        """Compare the window with what is usual, then learn from it."""
        live, seat = crowd.live, crowd.seat
        iteration = _told(ranks.floats["iteration"][live], crowd)
        usable = crowd.running & (iteration > 0)
        usual = self.iteration[seat].copy()
        longer = middle_of(np.where(usable & (self.known[seat] >= _WARM), iteration - usual, np.nan), crowd.task)
        irregular = longer > (IRREGULAR_RATIO - 1) * middle_of(usual, crowd.task)
        whole = (self.span[:, live] >= _WHOLE * seconds) & usable[crowd.process]
        per_second = self.flight[:, live] / np.where(whole, self.span[:, live], np.nan)
        elapsed = per_second * iteration[crowd.process]
        mean = np.where(self.age[:, live] >= _WARM, self.mean[:, live], np.nan)
        deviation = np.sqrt(self.variance[:, live])
        self._learn(live, elapsed, irregular[crowd.process])
        pace = _pace(self.known[seat], irregular)
        self.iteration[seat] += np.where(usable, pace * (np.nan_to_num(iteration) - usual), 0.0)
        self.known[seat] += usable
        return Window(elapsed, mean, deviation, usual, np.where(irregular, longer, np.nan))

    def _learn(self, live: Ints, elapsed: Floats, irregular: Bools) -> None:
        for witness, values in enumerate(elapsed):
            known = ~np.isnan(values)
            series = live[known]
            pace = _pace(self.age[witness, series], irregular[known])
            off = values[known] - self.mean[witness, series]
            self.mean[witness, series] += pace * off
            self.variance[witness, series] = (1 - pace) * (self.variance[witness, series] + pace * off * off)
            self.age[witness, series] += 1


def _pace(age: Floats, irregular: Bools) -> Floats:
    """The share of a new window in the norm: all of the first one."""
    return np.where(irregular & (age >= _WARM), 1 / _NORM_WRONG, 1 / np.minimum(age + 1, _NORM))


def _told(iteration: Floats, crowd: LiveRanks) -> Floats:
    """[process]: what it says an iteration takes; all its series say the same, or nothing. NaN where none does."""
    most = np.full(len(crowd.seat), np.nan)
    np.fmax.at(most, crowd.process, iteration)
    return most
