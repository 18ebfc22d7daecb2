"""Stragglers: the process that its peers wait for in every iteration, or that sends more slowly than they do.

A victim both waits and is waited for, so its signals cancel when they are summed over its communicators; only the
straggler keeps a positive sum. A CUSUM (Page 1954) of that sum decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.config import StragglerConfig
from detector.methods.progress.lateness_trend import LatenessTrend
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.wait_excess import WaitExcess, iteration_factor
from detector.methods.progress.wait_signals import LATE, SENDING
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.columns import Columns, column
from detector.stats.cusum import Cusum
from detector.stats.ewma import Ewma
from detector.stats.grouped import middle_of
from detector.topology.compaction import Compaction
from detector.topology.rank_table import RankTable
from store.schema.time import SECOND

_SPREADS, _HIGH, _LEAST = 3.3, 2.0, 0.6
"""Where awaited data is read an excess counts from so many spreads on, of `min_excess` this share at least."""
_MEMORY_S, _MIN_SAMPLES = 300.0, 20
_DIRECT, _CLEARLY = 0.1, 2.0
"""The share of time from which on a rank's own absence from operations, or sending, tells, and in multiples of that of
the one that stands for its machine."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """One process that its peers wait for."""

    process: int
    """Its place among the processes of the live ranks."""
    cause: int
    """The place of the one on its machine that shows it itself: another where ranks share a way into the machine."""
    signal: int
    """What most of it is: LATE or SENDING."""
    score: float
    """Excess in multiples of the least that counts."""
    evidence: float
    """The CUSUM in multiples of its threshold."""
    share: float
    """Share of the samples since the onset in which it was the worst of its task."""
    waiting: float
    """Share of time by which other ranks wait longer than usual."""
    onset: int
    """Unix ns."""


@dataclass(slots=True)
class StragglerDetector(Columns):
    """Columns are [process], numbered as in the rank table."""

    excess: WaitExcess = field(default_factory=WaitExcess)
    cusum: Cusum = field(default_factory=Cusum)
    """Of seconds at twice the least excess that counts."""
    past: Ewma = field(default_factory=Ewma)
    """Of the excess, without a suspect in the task."""
    recent: Ewma = field(default_factory=Ewma)
    """Of the excess, over as long as an alarm takes."""
    least: Floats = column()
    """The least excess that counts."""
    total: Floats = column(rows=2)
    """[LATE or SENDING, process]: the newest excess."""
    waiting: Floats = column()
    """The newest excess of other ranks' waiting in one communicator, share of time."""
    sample_count: Floats = column()
    """Samples since the onset."""
    worst_count: Floats = column()
    """Those of them in which the process was the worst of its task."""
    direct: Floats = column()
    """Share of time by which it is absent from operations, or sends, more than usual: what its own memory shows."""
    updated_at: int = 0
    trend: LatenessTrend = field(default_factory=LatenessTrend)
    """Of lateness too small for the CUSUM above."""

    def evict(self, left: Compaction) -> None:
        """Drop the series and processes that are not left."""
        self.excess.evict(left)
        for columns in (self.cusum, self.past, self.recent):
            columns.select(left.processes)
        self.trend.evict(left.processes)
        self.select(left.processes)

    def update(self, now: int, ranks: RankTable, live: LiveRanks, config: StragglerConfig) -> list[Straggler]:
        """The stragglers at `now` (Unix ns); rows count once a period."""
        for columns in (self, self.cusum, self.past, self.recent):
            columns.resize(int(live.number.max()) + 1)
        seconds = (now - self.updated_at) / SECOND if self.updated_at else 1.0
        if seconds >= 0.95 * ranks.period / SECOND:
            self.updated_at = now
            self._add(now, ranks, live, min(seconds, 2 * ranks.period / SECOND), config)
        found = np.flatnonzero(self.cusum.alarmed[live.number] & (live.task >= 0))
        return [self._straggler(place, live, config) for place in found.tolist()]

    def late_by_little(self, live: LiveRanks) -> list[int]:
        """Places of the live processes that are late by little, for long."""
        self.trend.cusum.resize(int(live.number.max()) + 1)
        return np.flatnonzero(self.trend.cusum.alarmed[live.number] & (live.task >= 0)).tolist()

    def evidence(self, config: StragglerConfig) -> Floats:
        """[process]: the CUSUM in multiples of its threshold."""
        return self.cusum.value / config.threshold_seconds

    def _add(self, now: int, ranks: RankTable, live: LiveRanks, seconds: float, config: StragglerConfig) -> None:
        number, threshold = live.number, config.threshold_seconds
        normal = self.cusum.value[number] <= 0
        (late, sending, others, behind, absent, *_), waiting = self.excess.update(ranks, live, seconds, normal, config)
        self.trend.update(now, live, *self.excess.lateness(ranks, live, config), normal)
        # A rank is a straggler only as far as other ranks wait for it.
        total = np.minimum((late, sending), config.max_excess_per_wait * np.maximum(others, 0.0))
        score = total.sum(0)
        known = live.running & ~np.isnan(score)
        self.total[:, number] = np.where(np.isnan(total), self.total[:, number], total)
        self.waiting[number] = np.where(known, waiting, self.waiting[number])
        self.direct[number] = np.nan_to_num(np.maximum(absent, 0.0) + np.maximum(sending, 0.0))
        worst, is_clear = _worst(score, behind, live, config)
        # A second's few samples are noise: whether others are late too is also asked of as long as an alarm takes.
        weight = self.recent.warmup_weight(number[known], threshold / seconds)
        self.recent.update(number[known], score[known], np.minimum(weight, 1.0))
        is_clear |= _worst(np.where(known, self.recent.mean[number], np.nan), behind, live, config)[1]
        least = self.least[number] = self._least(ranks, live, seconds, config)
        self._learn(late + sending, known, normal, seconds, live)
        gain = np.where(is_clear, np.clip(score / least - 1, -1.0, config.max_gain), -1.0) * known
        factor = np.ones(len(number))
        np.maximum.at(factor, live.process, iteration_factor(ranks, live, config))
        # Rows that are minutes apart must not raise an alarm by one disturbance, nor one long iteration.
        gain = np.minimum(gain * seconds, threshold / config.min_samples) / factor
        rose = self.cusum.update(number, gain, now, threshold, 3 * threshold)
        self.sample_count[rose] = self.worst_count[rose] = 0.0
        self.sample_count[number] += known
        self.worst_count[number] += worst & known

    def _learn(self, excess: Floats, known: Bools, normal: Bools, seconds: float, live: LiveRanks) -> None:
        """Add an excess [live process], 0 before there is a baseline, to the past of tasks without a suspect."""
        suspects = np.bincount(live.task + 1, ~normal) > 0
        past, all_of_them = self.past, live.number
        high = excess - past.mean[all_of_them] > _HIGH * np.sqrt(past.variance[all_of_them])  # what begins is not usual
        high &= past.count[all_of_them] >= _MIN_SAMPLES
        usual = known & (excess != 0) & ~suspects[live.task + 1] & ~high
        number = all_of_them[usual]
        past.update(number, excess[usual], past.warmup_weight(number, _MEMORY_S / seconds))

    def _least(self, ranks: RankTable, live: LiveRanks, seconds: float, config: StragglerConfig) -> Floats:
        """[live process]: the least excess that counts: noise of samples of awaited data is small, and it is known.

        It allows for the error of a baseline that consists of few samples, `seconds` apart.
        """
        own = np.sqrt(self.past.variance[live.number])
        spread = np.maximum(own, middle_of(own, live.task))
        read = np.bincount(live.process, ~np.isnan(ranks.receiving[live.series]), len(live.number)) > 0
        fits = read & (self.past.count[live.number] >= _MIN_SAMPLES)
        least = np.where(
            fits, np.clip(_SPREADS * spread, _LEAST * config.min_excess, config.min_excess), config.min_excess
        )
        samples = np.full(len(live.number), np.inf)
        np.minimum.at(samples, live.process, np.maximum(self.excess.baseline.count[0, live.series], 1.0))
        # The mean of n samples has 2 T / n times the variance of an EWMA with the time constant T.
        allowed: Floats = least * np.sqrt(1 + 2 * config.smoothing_seconds / (samples * seconds))
        return allowed

    def _straggler(self, place: int, live: LiveRanks, config: StragglerConfig) -> Straggler:
        number = int(live.number[place])
        late, sending = self.total[:, number].tolist()
        # A slow sender also delays its own next operation, so that it is late too.
        signal = SENDING if sending > config.slow_sender_share * (late + sending) else LATE
        share = float(self.worst_count[number]) / max(float(self.sample_count[number]), 1.0)
        score, evidence = (late + sending) / float(self.least[number]), float(self.evidence(config)[number])
        waiting, onset = float(self.waiting[number]), int(self.cusum.onset[number])
        return Straggler(place, self._cause(place, live), signal, score, evidence, share, waiting, onset)

    def _cause(self, place: int, live: LiveRanks) -> int:
        """The process on the same machine that plainly is absent from operations, or sends, for longer; else itself.

        Ranks that receive within their machine await nothing that is seen: a late one shows on the one that receives
        from the network for all of them.
        """
        here = (live.machine == live.machine[place]) & (live.task == live.task[place])
        direct = np.where(here, self.direct[live.number], 0.0)
        most = int(direct.argmax())
        return most if direct[most] >= max(_DIRECT, _CLEARLY * direct[place]) else place


def _worst(score: Floats, behind: Floats, live: LiveRanks, config: StragglerConfig) -> tuple[Bools, Bools]:
    """[process]: whether it is the worst of its task, and whether it is so by far compared with other machines."""
    task, machine = live.task, live.machine  # task -1 is the last place of what follows
    most = _largest(score, task)
    first = score >= most[task]
    worst_machine = np.full(len(most), -1, np.int64)
    worst_machine[task[first]] = machine[first]
    here = machine == worst_machine[task]
    elsewhere = _largest(np.where(here, -np.inf, score), task)
    # Ranks of one machine that share communicators are late together; the one behind within an operation is the cause.
    near = here & (score >= config.tie_ratio * most[task])
    ranked = np.where(near, score * (1 + config.tie_step_weight * np.clip(behind, -1.0, 1.0)), -np.inf)
    worst = near & (ranked >= _largest(ranked, task)[task])
    return worst, worst & (score > config.machine_ratio * np.maximum(elsewhere[task], 0.0))


def _largest(score: Floats, task: Ints) -> Floats:
    """[task]: the largest known score; NaN is left out."""
    largest = np.full(int(task.max(initial=-1)) + 2, -np.inf)
    np.fmax.at(largest, task, score)
    return largest
