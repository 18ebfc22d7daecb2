"""Small lasting lateness: a rank that its peers wait for by a few per cent of the time, for a minute or more.

The lateness of a process is averaged over blocks, which are nearly independent, and compared with its own past in units
of the spread over blocks. A CUSUM of log-likelihood ratios (Page 1954) adds up what speaks for a shift, in nats. Only
what samples of awaited data show is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.methods.progress.live_ranks import LiveRanks
from detector.stats.arrays import Bools, Floats, Ints
from detector.stats.columns import Columns, column
from detector.stats.cusum import Cusum
from detector.stats.ewma import Ewma
from detector.stats.grouped import middle_of
from store.schema.time import SECOND

BLOCK_NS = 10 * SECOND
THRESHOLD_NATS = 12.0
"""e to this power is some 160,000: so many blocks of health for a false alarm of one process, or 19 days."""
MIN_SHIFT = 0.05
"""The least shift that is looked for, as a share of time, summed over the communicators of a process ..."""
MIN_SPREADS = 1.5
"""... and in spreads."""
MIN_SLOWER = 0.01
"""By which share iterations are longer where a rank delays others; else it is late without harm."""
_MIN_SPREAD = 0.01
_MIN_BLOCKS, _MEMORY = 6, 60  # blocks that make a past, and that it consists of
_MIN_SAMPLES, _MIN_PEERS = 4, 4
_MOST_NATS, _LEAST_NATS = 3.5, -3.0  # of one block
_SUSPECT = 0.1  # times as fast learns the past of a process that is suspect
_BESIDE = 0.25  # of a block's samples: with another suspect in more of them, it is that one which lengthens iterations
_MACHINE_RATIO = 1.5  # a shift is so many times that of every other machine of its task


@dataclass(slots=True)
class LatenessTrend(Columns):
    """Columns are [process], numbered as in the rank table."""

    past: Ewma = field(default_factory=Ewma)
    """Of the blocks' lateness."""
    cusum: Cusum = field(default_factory=Cusum)
    """In nats."""
    late: Floats = column()
    stretch: Floats = column()
    samples: Floats = column()
    """Sums over the samples of this block, and their number ..."""
    disturbed: Floats = column()
    """... and how many of them came while a process of the task was suspect, ..."""
    beside: Floats = column()
    """... another than this one."""
    shift: Floats = column()
    """The last block's lateness less the past, share of time."""
    least: Floats = column()
    """The shift from which on the CUSUM grows, share of time."""
    slower: Floats = column()
    """By which share its iterations were longer in it than usual; during an alarm the most of its blocks."""
    began: int = 0
    """When this block began, Unix ns."""

    def evict(self, processes: Ints) -> None:
        """Keep these processes only."""
        for columns in (self, self.past, self.cusum):
            columns.select(processes)

    def update(self, now: int, live: LiveRanks, late: Floats, stretch: Floats, normal: Bools) -> None:
        """Add a sample at `now` (Unix ns); [process] of `live`, NaN where nothing is known.

        `late`: share of time by which others wait longer; `stretch`: by which iterations are longer than usual;
        `normal`: whether a process is no suspect. Of a task with a suspect nothing is learned.
        """
        for columns in (self, self.past, self.cusum):
            columns.resize(int(live.number.max()) + 1)
        suspects = np.bincount(live.task + 1, ~normal)[live.task + 1]
        known = live.running & (live.task >= 0) & ~np.isnan(late)
        number = live.number[known]
        self.late[number] += late[known]
        self.stretch[number] += np.nan_to_num(stretch[known])
        self.samples[number] += 1
        self.disturbed[number] += (suspects > 0)[known]
        self.beside[number] += (suspects > ~normal)[known]
        if now - self.began >= BLOCK_NS:
            self._close(now, live)
            self.late[:] = self.stretch[:] = self.samples[:] = self.disturbed[:] = self.beside[:] = 0.0
            self.began = now

    def _close(self, now: int, live: LiveRanks) -> None:
        """Judge the block that ends."""
        whole = np.flatnonzero((self.samples[live.number] >= _MIN_SAMPLES) & (live.task >= 0))
        peers = np.bincount(live.task[whole], minlength=int(live.task.max(initial=-1)) + 1)
        whole = whole[peers[live.task[whole]] >= _MIN_PEERS]
        if not len(whole):
            return
        number, task = live.number[whole], live.task[whole]
        mean, stretch = self.late[number] / self.samples[number], self.stretch[number] / self.samples[number]
        stretch = np.where(self.beside[number] > _BESIDE * self.samples[number], 0.0, stretch)
        judged = self.past.count[number] >= _MIN_BLOCKS
        own = np.sqrt(self.past.variance[number])
        spread = np.maximum(np.maximum(own, middle_of(own, task)), _MIN_SPREAD)
        away = np.where(judged, mean - self.past.mean[number], 0.0)
        shift = away - middle_of(away, task)
        wanted = np.maximum(MIN_SHIFT, MIN_SPREADS * spread)
        # What lengthened iterations once goes on to do so while it lasts: a usual iteration is learned meanwhile.
        held = np.where(self.cusum.alarmed[number], self.slower[number], 0.0)
        self.shift[number], self.least[number], self.slower[number] = shift, wanted / 2, np.maximum(stretch, held)
        gain = np.where(judged, _nats(shift, wanted, spread), 0.0)
        clear = _is_worst(shift, task, live.machine[whole])
        gain = np.where(clear, gain, np.minimum(gain, 0.0))
        over = (shift < wanted / 2) & (stretch < MIN_SLOWER)  # what comes later is not the same
        gain = np.where(over, -2 * THRESHOLD_NATS, gain)
        self.cusum.update(number, gain, now, THRESHOLD_NATS, 2 * THRESHOLD_NATS)
        weight = self.past.warmup_weight(number, _MEMORY) * np.where(self.cusum.value[number] > 0, _SUSPECT, 1.0)
        bounded = np.where(judged, np.clip(away, -2 * spread, 2 * spread), mean - self.past.mean[number])
        weight = np.where(self.disturbed[number] > 0, 0.0, weight)
        self.past.update(number, self.past.mean[number] + bounded, weight)


def _nats(shift: Floats, wanted: Floats, spread: Floats) -> Floats:
    """The logarithm of how much likelier each shift is with the wanted one than without, bounded."""
    nats: Floats = np.clip(wanted / spread**2 * (shift - wanted / 2), _LEAST_NATS, _MOST_NATS)
    return nats


def _is_worst(shift: Floats, task: Ints, machine: Ints) -> Bools:
    """Whether a process is shifted the most of its task, and far more than any other machine of it."""
    worst = np.zeros(len(shift), bool)
    for one in np.unique(task).tolist():
        members = np.flatnonzero(task == one)
        first = members[int(shift[members].argmax())]
        elsewhere = shift[members[machine[members] != machine[first]]]
        worst[first] = shift[first] > _MACHINE_RATIO * max(0.0, float(elsewhere.max(initial=0.0)))
    return worst
