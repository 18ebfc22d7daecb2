"""Which process makes the iterations of a task longer, after Holmes (NSDI'25), from windows of operation times.

Where iterations are longer than usual, a forest finds the communicators in which ranks take abnormally long, and the
rules of `attribution/features.py` attribute that delay to ranks. The shares are summed over windows. While iterations
are regular nothing is attributed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from detector.attribution.features import ABNORMAL, FEATURES, OperatorBaseline, OperatorInfo, features
from detector.attribution.forest import Forest, load
from detector.methods.progress.delay_shares import LATE, SLOW, Delays, delay_shares, total_of_task
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.operation_time import MEASURES, OperationTime, Window
from detector.model.operations import is_point_to_point
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.columns import Columns, column
from detector.stats.grouped import mean_of
from detector.topology.compaction import Compaction
from detector.topology.rank_table import RankTable

Kind = Literal["late", "slow"]
KINDS: tuple[Kind, Kind] = ("late", "slow")
MAX_SUSPECTS = 2
"""Of a task."""
ALARM_WINDOWS = 3.5
"""The sum that raises an alarm: five windows that all point at one process, longer than what passes by itself."""
SUPPORT_WINDOWS = 1.5
"""The sum that supports a finding of another method: two windows."""
_DECAY = 0.85  # of the sums, from window to window
_MACHINE_RATIO = 2.0  # an alarm needs so many times the sum of every other machine of the task
_TIE_RATIO = 0.5  # of the largest sum
_MIN_SUM = 0.1
_MIN_EXPLAINED = 0.25  # of the delay of an iteration: less is normal without asking the forest
_OF_DELAY, _WIDEST = ("of_excess", "group"), 4.0
_QUARTILE = 0.6745  # of a normal distribution, in standard deviations


@dataclass(frozen=True, slots=True)
class Suspect:
    """A process that makes iterations longer."""

    process: int
    """Its place among the live processes."""
    kind: Kind
    """It comes late to its collectives, or its communication is slow."""
    windows: float
    """That point at it; older ones count less, and so do those of which it explains a part."""
    onset: int
    """Unix ns."""
    alarmed: bool
    """Whether this raises an alarm by itself."""


@dataclass(slots=True)
class SlowdownAttribution(Columns):
    """Columns are [process], numbered as in the rank table."""

    operation_time: OperationTime = field(default_factory=OperationTime)
    windows: Floats = column(rows=2)
    """[LATE or SLOW, process]: the decaying sum of shares."""
    onset: Ints = column(0, np.int64)
    """When the sum last rose from nothing, Unix ns."""
    alarmed: Bools = column(0, np.bool_)

    def evict(self, left: Compaction) -> None:
        """Drop the processes that are not left."""
        self.operation_time.evict(left)
        self.select(left.processes)

    def update(self, now: int, ranks: RankTable, live: LiveRanks, threshold_scale: float = 1.0) -> list[Suspect]:
        """At most MAX_SUSPECTS of each task at `now` (Unix ns), the most suspect one first.

        `threshold_scale` multiplies the sum that raises an alarm.
        """
        self.resize(int(live.number.max()) + 1)
        begin, window = self.operation_time.window_start, self.operation_time.advance(now, ranks, live)
        if window is not None:
            self.windows[:, live.number] *= _DECAY
            if not np.isnan(window.delay).all():
                self._add(begin, window, ranks, live)
        return self._suspects(live, ALARM_WINDOWS * threshold_scale)

    def _add(self, begin: int, window: Window, ranks: RankTable, live: LiveRanks) -> None:
        """Add this window's shares of the delay to each process's sums: the mean of the measures that know any."""
        shares, measures = np.zeros((2, len(live.number))), np.zeros(len(live.number))
        point_to_point = _is_point_to_point(ranks, live)
        for measure in range(MEASURES):
            delays = _delays(window, measure, live, point_to_point)
            if delays is not None:
                known = delay_shares(delays, live.task)
                shares += known
                measures += total_of_task(known.sum(0), live.task) > 0
        fresh = self.windows[:, live.number].sum(0) < _MIN_SUM
        self.onset[live.number[fresh]] = begin
        self.windows[:, live.number] += shares / np.maximum(measures, 1)

    def _suspects(self, live: LiveRanks, threshold: float) -> list[Suspect]:
        windows = np.where(live.task >= 0, self.windows[:, live.number], 0.0)
        most, is_late = windows.max(0), windows[LATE] >= windows[SLOW]
        self.alarmed[live.number] &= most >= SUPPORT_WINDOWS
        suspects: list[Suspect] = []
        for task in np.unique(live.task[most >= SUPPORT_WINDOWS]):
            members = np.flatnonzero(live.task == task)
            order = members[np.argsort(-most[members], kind="stable")]
            if (most[members] > _TIE_RATIO * most[order[0]]).sum() > max(MAX_SUSPECTS, len(members) / 2):
                continue  # the whole task is slower
            first, elsewhere = order[0], order[live.machine[order] != live.machine[order[0]]]
            is_clear = most[first] > _MACHINE_RATIO * most[elsewhere].max(initial=0.0)
            self.alarmed[live.number[first]] |= bool(is_clear and is_late[first] and most[first] >= threshold)
            for place in order[:MAX_SUSPECTS][most[order[:MAX_SUSPECTS]] >= _MIN_SUM].tolist():
                number, kind = live.number[place], KINDS[LATE if is_late[place] else SLOW]
                onset, alarmed = int(self.onset[number]), bool(self.alarmed[number])
                suspects.append(Suspect(place, kind, float(most[place]), onset, alarmed))
        return suspects


@cache
def _shipped() -> Forest:
    return load()


def _delays(window: Window, measure: int, live: LiveRanks, point_to_point: Bools) -> Delays | None:
    """What one measure knows of a window; None where it knows no communicator of an irregular task."""
    delay = window.delay[live.process]
    unknown = np.isnan(window.elapsed[measure] + window.mean[measure] + delay)
    # A rank that is missing is neither normal nor abnormal: then its communicator is left out.
    series = np.flatnonzero(np.bincount(live.comm, unknown)[live.comm] == 0)
    if not len(series):
        return None
    comm = np.unique(live.comm[series], return_inverse=True)[1].astype(np.int64)
    process, delay, paired = live.process[series], delay[series], point_to_point[series]
    mean, deviation, elapsed = (array[measure, series] for array in (window.mean, window.deviation, window.elapsed))
    excess = elapsed - mean
    quartiles = mean + _QUARTILE * deviation, 2 * _QUARTILE * deviation
    usual = OperatorBaseline(mean, deviation, *quartiles, window.iteration[process])
    size = np.full(len(mean), 10 ** _shipped().middle[FEATURES.index("size")])  # not known: as in training
    samples = features(elapsed, usual, delay, OperatorInfo(size, paired, mean_of(comm, excess)))
    may_be = (samples[:, FEATURES.index("fences")] > 0) & (excess > _MIN_EXPLAINED * delay)
    healthy = _healthy(usual, OperatorInfo(size, paired, 0 * size), comm)
    abnormal, task = np.zeros(len(mean), bool), live.task[process]
    for one in np.unique(task[may_be]):
        asked = np.flatnonzero(may_be & (task == one))
        abnormal[asked] = _tuned(healthy[:, task == one]).probability(samples[asked]) > ABNORMAL
    return Delays(comm, process, delay, paired, abnormal & (excess > 0), excess)


def _healthy(usual: OperatorBaseline, about: OperatorInfo, comm: Ints) -> Floats:
    """[level, live series, feature]: features of a regular window, by what each baseline has seen.

    Each series is at its lower quartile, mean and upper quartile in turn, its neighbours elsewhere.
    """
    found = []
    for level in (np.arange(3)[:, None] + np.arange(len(comm))) % 3 - 1:
        elapsed = usual.mean + level * _QUARTILE * usual.deviation
        found.append(features(elapsed, usual, usual.iteration, about))
    return np.stack(found)


def _tuned(healthy: Floats) -> Forest:
    """The forest for one task, of which `healthy` are features: it was fitted on single operations of another job.

    Features that are shares of the delay stay as they are: without a delay there are none. Nothing widens beyond
    _WIDEST: samples spread mostly by their own error, which the sums over windows average.
    """
    forest = _shipped()
    low, middle, high = np.percentile(healthy.reshape(-1, len(FEATURES)), [25, 50, 75], axis=0)
    fixed = np.isin(FEATURES, _OF_DELAY)
    spread = np.minimum(high - low, _WIDEST * forest.spread)
    return forest.tuned(np.where(fixed, forest.middle, middle), np.where(fixed, forest.spread, spread))


def _is_point_to_point(ranks: RankTable, live: LiveRanks) -> Bools:
    """[live series]: whether its communicator sends and receives from rank to rank."""
    paired: Bools = np.bincount(live.comm, is_point_to_point(ranks.operation[live.series]))[live.comm] > 0
    return paired
