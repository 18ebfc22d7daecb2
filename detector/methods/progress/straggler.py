"""Lateness: each rank beside those it talks to, communicator by communicator; who comes last, or sends slowest?

Ranks that wait for a late one are found at work longer than it, in the communicators that they share with it; those of
its victims that others wait for in turn are themselves seen to wait. So what is missing is added up over all the
communicators of a process, and only the root keeps a sum. Times need no common clock: shares of looks are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.methods.progress.live_ranks import LiveRanks
from detector.stats.arrays import Floats, Ints, grown
from detector.topology.rank_table import Left, RankTable
from store.schema.time import SECOND

LATE, SENDING, OTHERS, BEHIND, LENGTH = 0, 1, 2, 3, 4
SIGNALS = 5
"""How much less than the others a rank waits, how much more it sends, how much the others wait; by how many steps, -1
to 1, others of its machine are further on within an operation; and how long its iterations take, in seconds."""
BOUND = 0.16
"""The least sum over a process's communicators that counts, in shares of time."""
_OF_PROCESSES = ("evidence", "since", "looks", "firsts", "convicted")
_SMOOTH_S = 3.0
_WARM = 15  # readings that make a norm, if it then says how things are
_NORM_S = 300.0
_FADING = 0.1  # of a rank is forgotten at each reading that lacks it: only then is the rest a communicator of its own
_STEP = 1.5  # the strongest second counts that many weak ones
_ENOUGH = 8.0  # seconds at twice the bound that convict
_LOOKS = 5  # ... in so many looks or more: with coarse steps two or three say no more than one disturbance does
_EARNED = 4.0  # so many times what the others wait more than usual; where another became quicker they do not
_MAINLY = 0.25  # a slow sender delays its own next operators, so it comes late too
_APART = 1.5  # times as much as on any other machine of the task
_NEAR, _BY_STEPS = 0.75, 0.25  # ranks of one machine so near to its worst are told apart by steps, which weigh so much


@dataclass(frozen=True, slots=True)
class Straggler:
    """One process that stands out: a place among the processes of the crowd."""

    process: int
    signal: int
    """What most of it is: it comes late, or it sends slowly."""
    score: float
    """In multiples of the least sum that counts."""
    weight: float
    """Evidence in multiples of what convicts."""
    share: float
    """Of the looks since it began, those that found it worst of its task."""
    since: int


@dataclass(slots=True)
class StragglerDetector:
    """The memory of the comparison: by series what is usual, by process what speaks against it."""

    comm: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    smooth: Floats = field(default_factory=lambda: np.zeros((SIGNALS, 0)))
    """[signal, series]."""
    norm: Floats = field(default_factory=lambda: np.zeros((SIGNALS, 0)))
    age: Floats = field(default_factory=lambda: np.zeros(0))
    heard: Floats = field(default_factory=lambda: np.zeros(0))
    """By series the most ranks of its communicator that were heard at once; what is heard no more fades."""
    total: Floats = field(default_factory=lambda: np.zeros((2, 0)))
    """[LATE or SENDING, process]: the newest sums."""
    evidence: Floats = field(default_factory=lambda: np.zeros(0))
    """[process], seconds."""
    since: Floats = field(default_factory=lambda: np.zeros(0))
    looks: Floats = field(default_factory=lambda: np.zeros(0))
    firsts: Floats = field(default_factory=lambda: np.zeros(0))
    convicted: Floats = field(default_factory=lambda: np.zeros(0))
    judged_at: int = 0

    def let_go(self, left: Left) -> None:
        """Forget the series and processes that are not left."""
        series = left.series[left.series < len(self.age)]
        self.comm = left.renumbered(self.comm[series])
        self.smooth, self.norm = self.smooth[:, series], self.norm[:, series]
        self.age, self.heard = self.age[series], self.heard[series]
        people = left.processes[left.processes < len(self.evidence)]
        self.total = self.total[:, people]
        for name in _OF_PROCESSES:
            setattr(self, name, getattr(self, name)[people])

    def judge(self, now: int, ranks: RankTable, crowd: LiveRanks, caution: float = 1.0) -> list[Straggler]:
        """Who stands out at `now` (Unix ns), judged once a period of the series' rows.

        `caution` is how many times the usual evidence convicts.
        """
        enough = _ENOUGH * caution
        seconds = (now - self.judged_at) / SECOND if self.judged_at else 1.0
        seats = crowd.seat
        for name in _OF_PROCESSES:
            setattr(self, name, grown(getattr(self, name), (int(seats.max()) + 1,), 0.0))
        self.total = grown(self.total, (2, int(seats.max()) + 1), 0.0)
        if seconds >= 0.95 * ranks.period / SECOND:
            self.judged_at = now
            seconds = min(seconds, 2 * ranks.period / SECOND)
            excess, people = self._excess(ranks, crowd, seconds, seats), len(crowd.machine)
            sums = np.array([np.bincount(crowd.process, part, people) for part in excess], np.float64)
            late, sending, others, behind, _ = sums
            # Nobody is late, and no sender slow, whom the others do not wait for.
            total = np.minimum((late, sending), _EARNED * np.maximum(others, 0.0))
            self.total[:, seats] = np.where(np.isnan(total), self.total[:, seats], total)
            self._add_up(now, total.sum(0), behind, crowd, enough, seconds)
        found = np.flatnonzero((self.convicted[seats] > 0) & (crowd.task >= 0))
        return [self._late(int(process), seats[process], enough) for process in found]

    def weights(self) -> Floats:
        """[process]: evidence in multiples of what usually convicts."""
        return self.evidence / _ENOUGH

    def _late(self, process: int, seat: np.int64, enough: float) -> Straggler:
        parts = self.total[:, seat]
        share = self.firsts[seat] / max(self.looks[seat], 1.0)
        score, weight = float(parts.sum()) / BOUND, float(self.evidence[seat]) / enough
        signal = SENDING if parts[SENDING] > _MAINLY * parts.sum() else LATE
        return Straggler(process, signal, score, weight, float(share), int(self.since[seat]))

    def _excess(self, ranks: RankTable, crowd: LiveRanks, seconds: float, seats: Ints) -> Floats:
        """[signal, series]: by how much each is more than usual; NaN where too few others are heard to say."""
        size = len(ranks.number)
        self.smooth, self.norm = (grown(a, (SIGNALS, size), 0.0) for a in (self.smooth, self.norm))
        self.age, self.heard = grown(self.age, (size,), 0.0), grown(self.heard, (size,), 0.0)
        self.comm = grown(self.comm, (size,), -1)
        out = np.zeros((SIGNALS, len(crowd.live)))
        runs = np.flatnonzero(crowd.running[crowd.process])
        whole = self._begin(ranks, crowd.live[runs], crowd.comm[runs])
        out[:, runs[~whole]] = np.nan
        runs = runs[whole]
        live, comm, process = crowd.live[runs], crowd.comm[runs], crowd.process[runs]
        fresh, warm = self.age[live] == 0, self.age[live] >= _WARM
        self.age[live] += 1
        calm = self.evidence[seats][process] <= 0
        slow = min(seconds / _NORM_S, 1 / _WARM)  # with coarse steps a norm of its time would be the last reading
        pace = np.where(warm, np.where(calm, slow, slow / 10), 1 / self.age[live])
        blend = 1 - np.exp(-seconds / _SMOOTH_S)
        for signal, now in enumerate(_signals(ranks, live, comm)):
            before = np.where(fresh, now, self.smooth[signal, live])
            self.smooth[signal, live] = smooth = before + blend * (now - before)
            norm = np.where(fresh, now, self.norm[signal, live])
            self.norm[signal, live] = norm + pace * (now - norm)
            out[signal, runs] = np.where(warm, smooth - norm, 0.0)
        out[OTHERS, runs] += np.where(warm, (self._stretch(live) - 1) * self.smooth[OTHERS, live], 0.0)
        self._check(live, process)
        return out

    def _stretch(self, live: Ints) -> Floats:
        """[series]: how many times as long as usual an iteration takes; 1 where that is not known.

        Programs that run ahead wait nearly all of the time anyway: who waits longer does so in longer iterations.
        """
        usual, length = self.norm[LENGTH, live], self.smooth[LENGTH, live]
        return np.where((usual > 0) & (length > 0), length / np.where(usual > 0, usual, 1.0), 1.0)

    def _begin(self, ranks: RankTable, live: Ints, comm: Ints) -> NDArray[np.bool_]:
        """[series]: whether as many ranks of its communicator are heard as usual: others are no measure.

        Where more are, or fewer for long, or it is another communicator, what is usual is learned anew.
        """
        heard = np.bincount(comm, ~np.isnan(ranks.floats["active"][live]))[comm]
        usual, other = self.heard[live], self.comm[live] != ranks.code[live]
        self.heard[live] = now = np.where(other, heard, np.maximum(heard, usual - _FADING))
        settled = (heard < usual) & (heard >= now)
        self.age[live[other | (heard > np.ceil(usual)) | settled]] = 0.0
        self.comm[live] = ranks.code[live]
        return heard >= now

    def _check(self, live: Ints, process: Ints) -> None:
        """A norm that does not say how things are when it is made was learned while the task came up: once more."""
        made = self.age[live] == _WARM
        gaps = (self.smooth - self.norm)[:OTHERS, live] * made
        late, sending = (np.abs(np.bincount(process, gap)) > BOUND for gap in gaps)
        self.age[live[made & (late | sending)[process]]] = 0.0

    def _add_up(self, now: int, score: Floats, behind: Floats, crowd: LiveRanks, enough: float, seconds: float) -> None:
        seats = crowd.seat
        worst, apart = _worst(score, behind, crowd)
        told = crowd.running & ~np.isnan(score)
        against = np.where(apart, np.clip(score / BOUND - 1, -1.0, _STEP), -1.0) * told
        before = self.evidence[seats]
        begins = seats[(before <= 0) & (against > 0)]
        self.since[begins] = now
        self.looks[begins] = self.firsts[begins] = 0.0
        self.looks[seats] += told
        self.firsts[seats] += worst & told
        self.evidence[seats] = after = np.clip(before + np.minimum(against * seconds, enough / _LOOKS), 0.0, 3 * enough)
        held = self.convicted[seats] > 0
        self.convicted[seats] = (after >= enough) | (held & (after > 0))


def _signals(ranks: RankTable, live: Ints, comm: Ints) -> tuple[Floats, ...]:
    """The signals of each series; 0 where there are no others, or nothing is known."""
    waiting, sending = _waiting(ranks, live), ranks.floats["sending"][live]
    others = _others(waiting, comm)
    slower = sending - _others(sending, comm)
    behind, length = _steps_behind(ranks, live, comm), ranks.floats["iteration"][live]
    return np.nan_to_num(others - waiting), np.nan_to_num(slower), np.nan_to_num(others), behind, np.nan_to_num(length)


def _waiting(ranks: RankTable, live: Ints) -> Floats:
    """[series]: the share of looks that found the network asked for data that was not there.

    NCCL hands operations to its proxy as soon as the host enqueues them, so an operation is at work long before its GPU
    gets to it; but data that came lies there until the GPU takes it. Where no wait for data is known, an operation at
    work has to stand for it.
    """
    receiving = ranks.floats["receiving"][live]
    return np.where(np.isnan(receiving), ranks.floats["active"][live], receiving)


def _steps_behind(ranks: RankTable, live: Ints, comm: Ints) -> Floats:
    """[series]: by how many steps, -1 to 1, the others are further on; 0 where they are not at the same operation.

    Others of the same machine, which are read at the same time. Ranks of a ring need each other's chunks, so none is
    further ahead of another than there are ranks.
    """
    machine = ranks.machine[ranks.process[live]]
    _, together = np.unique(comm * (int(machine.max(initial=0)) + 1) + machine, return_inverse=True)
    step = ranks.floats["step"][live]
    gap = np.nan_to_num(_others(step, together) - step)
    return np.where(np.abs(gap) < np.bincount(comm)[comm], np.clip(gap, -1.0, 1.0), 0.0)


def _others(values: Floats, comm: Ints) -> Floats:
    """The mean of the others of each one's communicator; NaN where there are none."""
    known = ~np.isnan(values)
    total = np.bincount(comm, np.where(known, values, 0.0))[comm]
    count = np.bincount(comm, known)[comm] - known
    return np.where(count > 0, (total - np.nan_to_num(values)) / np.maximum(count, 1), np.nan)


def _worst(score: Floats, behind: Floats, crowd: LiveRanks) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[process]: whether it is the worst of its task, and whether it is so by far compared with other machines."""
    task, machine = crowd.task, crowd.machine  # the last place of what follows is of those that work for no task
    most = _most(score, task)
    first = score >= most[task]
    place = np.full(len(most), -1, np.int64)
    place[task[first]] = machine[first]
    here = machine == place[task]
    second = _most(np.where(here, -np.inf, score), task)
    # Ranks that talk only to each other come late together: whom did the other wait for?
    near = here & (score >= _NEAR * most[task])
    told = np.where(near, score * (1 + _BY_STEPS * np.clip(behind, -1.0, 1.0)), -np.inf)
    worst = near & (told >= _most(told, task)[task])
    return worst, worst & (score > _APART * np.maximum(second[task], 0.0))


def _most(score: Floats, task: Ints) -> Floats:
    """[task]: the largest that is known."""
    most = np.full(int(task.max(initial=-1)) + 2, -np.inf)
    np.fmax.at(most, task, score)
    return most
