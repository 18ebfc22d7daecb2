"""How long the operations of each communicator are in flight in an iteration, by Little's law.

The mean time in flight is the share of time in which an operation is in flight, divided by the rate of operations. So
the share of samples that found a communicator active, times the seconds of an iteration, is the time that its
operations take in one. The time for which the host waits behind them is measured independently. Both are averaged over
windows and compared with an EWMA baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.attribution.features import IRREGULAR_RATIO
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.wait_signals import waiting
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.columns import Columns, column
from detector.stats.ewma import Ewma, ewma_rows
from detector.stats.grouped import middle_of
from detector.topology.compaction import Compaction
from detector.topology.rank_table import RankTable
from store.schema.time import SECOND

SAMPLED, HOST = 0, 1
MEASURES = 2
"""Rows of what is measured twice: by samples of the proxy, and by the host's counter."""
WINDOW_S = 4.0
_MIN_ROWS = 3  # of a window
_MIN_COVERAGE = 0.6  # share of a window that has to be known
_WARMUP_WINDOWS = 3
_MEMORY, _IRREGULAR_MEMORY = 75, 750  # windows that a baseline averages; the second while iterations are irregular


@dataclass(frozen=True, slots=True)
class Window:
    """One window; the first three are [measure, live series], the last two [live process], all in seconds."""

    elapsed: Floats
    """In flight in an iteration; NaN: not known."""
    mean: Floats
    """The baseline's mean; NaN in warm-up."""
    deviation: Floats
    """The baseline's standard deviation."""
    iteration: Floats
    """A usual iteration."""
    delay: Floats
    """By how much iterations of its task are longer than usual; NaN where they are regular."""


@dataclass(slots=True)
class OperationTime(Columns):
    """Columns are [series], or [measure, series]."""

    comm: Ints = column(-1, np.int64)
    """The communicator that the baseline is of, as a number."""
    last_seen: Ints = column(0, np.int64)
    """When the last row was added, Unix ns; 0: none of this communicator."""
    blocked: Floats = column()
    """The host's counter in that row, seconds."""
    in_flight_s: Floats = column(rows=MEASURES)
    """In this window so far."""
    observed_s: Floats = column(rows=MEASURES)
    """Part of this window for which that is known."""
    baseline: Ewma = field(default_factory=lambda: ewma_rows(MEASURES))
    """Of the seconds in flight in an iteration, by window."""
    iteration: Ewma = field(default_factory=Ewma)
    """[process]: of the seconds of an iteration, by window."""
    window_start: int = 0

    def evict(self, left: Compaction) -> None:
        """Drop the series and processes that are not left."""
        self.select(left.series)
        self.baseline.select(left.series)
        self.comm = left.renumbered(self.comm)
        self.iteration.select(left.processes)

    def advance(self, now: int, ranks: RankTable, live: LiveRanks) -> Window | None:
        """Add the newest rows; the window that ends at `now` (Unix ns), None while one is not complete."""
        for columns in (self, self.baseline):
            columns.resize(len(ranks.number))
        self.iteration.resize(int(live.number.max()) + 1)
        self._add_rows(ranks, live)
        self.window_start = self.window_start or now
        seconds = (now - self.window_start) / SECOND
        if seconds < 0.95 * max(WINDOW_S, _MIN_ROWS * ranks.period / SECOND):
            return None
        window = self._close(ranks, live, seconds)
        self.window_start, self.in_flight_s, self.observed_s = now, 0 * self.in_flight_s, 0 * self.observed_s
        return window

    def _add_rows(self, ranks: RankTable, live: LiveRanks) -> None:
        series = live.series
        formed = series[self.comm[series] != ranks.code[series]]
        self.comm[formed], self.last_seen[formed] = ranks.code[formed], 0
        self.baseline.reset(np.s_[:, formed])
        last, max_gap_s = self.last_seen[series], 3.5 * ranks.period / SECOND
        seconds = (ranks.last_seen[series] - last) / SECOND
        seconds[(last == 0) | (seconds > max_gap_s) | ~live.running[live.process]] = 0.0
        # Where communicators share a proxy, the rows have no steps, and their samples cannot be attributed.
        active = np.where(np.isnan(ranks.steps[series]), np.nan, waiting(ranks, series, live.comm))
        blocked = ranks.blocked[series]
        in_flight = np.stack([active * seconds, np.maximum(blocked - self.blocked[series], 0.0)])
        for measure, gained in enumerate(in_flight):
            known = ~np.isnan(gained) & (seconds > 0)
            self.in_flight_s[measure, series[known]] += gained[known]
            self.observed_s[measure, series[known]] += seconds[known]
        self.last_seen[series], self.blocked[series] = ranks.last_seen[series], blocked

    def _close(self, ranks: RankTable, live: LiveRanks, seconds: float) -> Window:
        """Compare the window with the baselines, then update them."""
        series, number = live.series, live.number
        iteration = _of_process(ranks.iteration[series], live)
        known = live.running & (iteration > 0)
        usual = self.iteration.mean[number]
        delay = _delay(iteration - usual, known & (self.iteration.count[number] >= _WARMUP_WINDOWS), live.task)
        irregular = delay > (IRREGULAR_RATIO - 1) * middle_of(usual, live.task)
        observed = self.observed_s[:, series]
        covered = (observed >= _MIN_COVERAGE * seconds) & known[live.process]
        elapsed = self.in_flight_s[:, series] / np.where(covered, observed, np.nan) * iteration[live.process]
        mean = np.where(self.baseline.count[:, series] >= _WARMUP_WINDOWS, self.baseline.mean[:, series], np.nan)
        deviation = np.sqrt(self.baseline.variance[:, series])
        for measure, values in enumerate(elapsed):
            there = ~np.isnan(values)
            _learn(self.baseline, (measure, series[there]), values[there], irregular[live.process[there]])
        _learn(self.iteration, number[known], iteration[known], irregular[known])
        return Window(elapsed, mean, deviation, usual, np.where(irregular, delay, np.nan))


def _learn(baseline: Ewma, index: Ints | tuple[int, Ints], values: Floats, irregular: Bools) -> None:
    slow = irregular & (baseline.count[index] >= _WARMUP_WINDOWS)
    weight = np.where(slow, 1 / _IRREGULAR_MEMORY, baseline.warmup_weight(index, _MEMORY))
    baseline.update(index, values, weight)


def _delay(longer: Floats, known: Bools, task: Ints) -> Floats:
    """[process]: the median over its task of how much longer iterations are."""
    return middle_of(np.where(known, longer, np.nan), task)


def _of_process(iteration: Floats, live: LiveRanks) -> Floats:
    """[process]: seconds of an iteration; all series of a process say the same or nothing. NaN: not known."""
    longest = np.full(len(live.number), np.nan)
    np.fmax.at(longest, live.process, iteration)
    return longest
