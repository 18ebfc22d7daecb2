"""How far each rank's wait signals exceed their own baseline."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.config import StragglerConfig
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.wait_signals import LATE, LENGTH, OTHERS, PACE, SIGNALS, wait_signals
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.columns import Columns, column
from detector.stats.ewma import Ewma, ewma_rows
from detector.topology.compaction import Compaction
from detector.topology.rank_table import RankTable

_ANOMALOUS_SLOWER = 10.0  # times slower a baseline learns while its process is suspect
_BEGINS_S = 60.0  # so long a baseline is the mean of all that was seen


def iteration_factor(ranks: RankTable, live: LiveRanks, config: StragglerConfig) -> Floats:
    """[live series]: by how much longer its iterations are than what the settings are for; at least 1.

    Where they are not read, they are as long as those of the process's other communicators, or
    `unread_iteration_seconds`. Those of a replayed CUDA graph are never counted, and are short.
    """
    read = np.fmax(ranks.iteration[live.series], np.where(ranks.has_replayed[live.series] == 1, 0.0, np.nan))
    longest = np.full(len(live.number), np.nan)
    np.fmax.at(longest, live.process, read)
    other = np.where(np.isnan(longest), config.unread_iteration_seconds, longest)[live.process]
    factor: Floats = np.fmax(np.where(np.isnan(read), other, read) / config.usual_iteration_seconds, 1.0)
    return factor


@dataclass(slots=True)
class WaitExcess(Columns):
    """Columns are [series]; the two EWMAs are [signal, series]."""

    comm: Ints = column(-1, np.int64)
    """The communicator that the baseline is of, as a number."""
    reporting_ranks: Floats = column()
    """The most ranks of it that reported at once; fades, so that a rank that left does not count for ever."""
    smooth: Ewma = field(default_factory=lambda: ewma_rows(SIGNALS))
    baseline: Ewma = field(default_factory=lambda: ewma_rows(SIGNALS))

    def evict(self, left: Compaction) -> None:
        """Drop the series that are not left."""
        for columns in (self, self.smooth, self.baseline):
            columns.select(left.series)
        self.comm = left.renumbered(self.comm)

    def update(
        self, ranks: RankTable, live: LiveRanks, seconds: float, normal: Bools, config: StragglerConfig
    ) -> tuple[Floats, Floats]:
        """[signal, process]: excess of the signals, summed over communicators; NaN where other ranks do not report.

        And [process]: the largest excess of the other ranks' waiting in one communicator.

        `seconds` passed since the last update; `normal` [process] is false while a process is suspect.
        """
        for columns in (self, self.smooth, self.baseline):
            columns.resize(len(ranks.number))
        excess = np.zeros((SIGNALS, len(live.series)))
        running = np.flatnonzero(live.running[live.process])
        complete = self._is_complete(ranks, live.series[running], live.comm[running], config)
        excess[:, running[~complete]] = np.nan
        running = running[complete]
        series, process = live.series[running], live.process[running]
        slower = iteration_factor(ranks, live, config)[running]
        warmup = config.warmup_samples * np.fmax(slower / max(seconds, 1.0), 1.0)  # in samples, of as many iterations
        warm = self.baseline.count[0, series] >= warmup
        usual = self.baseline.mean[:, series]
        signals = wait_signals(ranks, series, live.comm[running])
        self._learn(series, signals, normal[process], seconds, slower, warmup, config)
        excess[:, running] = np.where(warm, self.smooth.mean[:, series] - usual, 0.0)
        longer = self._stretch(ranks, series, config) - 1
        excess[OTHERS, running] += np.where(warm, longer * self.smooth.mean[OTHERS, series], 0.0)
        made = ~warm & (self.baseline.count[0, series] >= warmup)
        self._restart_unsettled(series, process, made, config)
        waiting = np.zeros(len(live.number))
        np.fmax.at(waiting, live.process, excess[OTHERS])
        return np.stack([np.bincount(live.process, row, len(live.number)) for row in excess]), waiting

    def lateness(self, ranks: RankTable, live: LiveRanks, config: StragglerConfig) -> tuple[Floats, Floats]:
        """[process]: lateness summed over its communicators, and by which share of a usual one iterations are longer.

        NaN where no sample tells which data is awaited.
        """
        series, count = live.series, len(live.number)
        warm = (self.baseline.count[0, series] > 0) & ~np.isnan(ranks.receiving[series])
        late = np.bincount(live.process, np.where(warm, self.smooth.mean[LATE, series], 0.0), count)
        stretch = np.zeros(count)
        np.maximum.at(stretch, live.process, np.where(warm, self._stretch(ranks, series, config) - 1, 0.0))
        known = np.bincount(live.process, warm, count) > 0
        return np.where(known, late, np.nan), np.where(known, stretch, np.nan)

    def _stretch(self, ranks: RankTable, series: Ints, config: StragglerConfig) -> Floats:
        """[series]: an iteration in multiples of a usual one; 1 where that is not known.

        Programs that run ahead wait nearly all of the time anyway: there, longer waiting shows as longer iterations.
        Where their length is not read, as under CUDA graphs, it shows as fewer steps a second: each iteration makes as
        many.
        """
        usual, now = self.baseline.mean[:, series], self.smooth.mean[:, series]
        known = (usual > 0) & (now > 0) & (self.baseline.count[:, series] >= config.warmup_samples)
        ratio = np.where(known, now, 1.0) / np.where(known, usual, 1.0)
        read = known[LENGTH] & ~np.isnan(ranks.iteration[series])
        stretch: Floats = np.where(read, ratio[LENGTH], 1 / ratio[PACE])
        return stretch

    def _learn(
        self,
        series: Ints,
        signals: Floats,
        normal: Bools,
        seconds: float,
        slower: Floats,
        warmup: Floats,
        config: StragglerConfig,
    ) -> None:
        signal, place = np.nonzero(~np.isnan(signals))
        cells, values = (signal, series[place]), signals[signal, place]
        blend = 1 - np.exp(-seconds / (config.smoothing_seconds * slower[place]))
        self.smooth.update(cells, values, np.where(self.smooth.count[cells] == 0, 1.0, blend))
        # At first the mean of all that was seen: as a task begins its ranks wait otherwise than later. With rows that
        # are minutes apart, a baseline of the time constant would be the last row.
        slow = min(seconds / config.baseline_seconds, 1 / config.warmup_samples)
        begins = self.baseline.count[cells] < max(_BEGINS_S / seconds, config.warmup_samples)
        weight = np.where(begins, self.baseline.warmup_weight(cells), slow)
        warm = self.baseline.count[cells] >= warmup[place]
        self.baseline.update(cells, values, np.where(warm & ~normal[place], weight / _ANOMALOUS_SLOWER, weight))

    def _is_complete(self, ranks: RankTable, series: Ints, comm: Ints, config: StragglerConfig) -> Bools:
        """[series]: whether as many ranks of its communicator report as usual; the mean of others is no measure.

        The baseline restarts where more ranks report than ever, where fewer did for long, and in a new communicator.
        """
        reporting = np.bincount(comm, ~np.isnan(ranks.active[series]))[comm]
        usual, other = self.reporting_ranks[series], self.comm[series] != ranks.code[series]
        faded = np.where(other, reporting, np.maximum(reporting, usual - config.rank_decay))
        restart = other | (reporting > np.ceil(usual)) | ((reporting < usual) & (reporting >= faded))
        self._restart(series[restart])
        self.reporting_ranks[series], self.comm[series] = faded, ranks.code[series]
        complete: Bools = reporting >= faded
        return complete

    def _restart_unsettled(self, series: Ints, process: Ints, made: Bools, config: StragglerConfig) -> None:
        """Restart a baseline that does not fit the present when it is `made`: the task was still loading."""
        gaps = (self.smooth.mean - self.baseline.mean)[:OTHERS, series] * made
        late, sending = (np.abs(np.bincount(process, gap)) > config.min_excess for gap in gaps)
        self._restart(series[made & (late | sending)[process]])

    def _restart(self, series: Ints) -> None:
        self.smooth.reset(np.s_[:, series])
        self.baseline.reset(np.s_[:, series])
