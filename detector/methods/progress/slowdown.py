"""Culprits: who makes the iterations of a task longer, as Holmes (NSDI'25) tells it, from windows of durations.

Where iterations are longer than usual, a forest tells in which communicators ranks are abnormally long, and the rules
of `attribution/features.py` tell whose doing that is. What is found is added up over windows. Nobody is judged while
iterations are regular.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from detector.attribution.features import ABNORMAL, FEATURES, OperatorBaseline, OperatorInfo, blame, features
from detector.attribution.forest import Forest, load
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.operation_time import WITNESSES, Durations, Window
from detector.model.operations import is_point_to_point
from detector.stats.arrays import Bools, Floats, Ints, grown
from detector.stats.grouped import mean_of, middle_of
from detector.topology.rank_table import Left, RankTable

Kind = Literal["late", "slow"]
KINDS: tuple[Kind, Kind] = ("late", "slow")
LATE, SLOW = 0, 1
TOP = 2
SURE = 3.5
"""The sum that names a rank by itself: five windows that all say the same, longer than what passes by itself ..."""
SAID = 1.5
"""... and the one from which it supports what is found otherwise: two windows."""
_KEPT = 0.85  # of the sums, from window to window
_APART = 2.0  # times as much as on any other machine of the task
_ALIKE = 0.5  # of the largest sum
_NOTHING = 0.1  # what is left of a sum that was something
_WORTH_ASKING = 0.25  # of what iterations are longer
_TINY = 1e-12
_QUARTILE = 0.6745  # of a normal distribution, in standard deviations


@dataclass(frozen=True, slots=True)
class Suspect:
    """A process that makes iterations longer."""

    process: int
    """Its place among the processes of the crowd."""
    kind: Kind
    """It comes late, or its communication is slow."""
    score: float
    """Windows that point at it; older ones count for less, and those that it explains in part only."""
    since: int
    sure: bool
    """Whether this convicts by itself."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """Series that one witness knows in a window; arrays over them."""

    at: Ints
    """Places in the crowd."""
    group: Ints
    """Their communicators, numbered."""
    process: Ints
    longer: Floats
    """Seconds by which iterations of their task are longer than usual."""
    paired: Bools
    """Whether ranks send to and receive from one another: then one waits for those before it only."""


@dataclass(slots=True)
class SlowdownAttribution:
    """What speaks against each process."""

    durations: Durations = field(default_factory=Durations)
    score: Floats = field(default_factory=lambda: np.zeros((2, 0)))
    """[LATE or SLOW, process]."""
    since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[process]: when anything was held against it first, Unix ns."""
    convicted: Bools = field(default_factory=lambda: np.zeros(0, bool))

    def let_go(self, left: Left) -> None:
        """Forget the processes that are not left."""
        self.durations.let_go(left)
        people = left.processes[left.processes < len(self.since)]
        self.score, self.since, self.convicted = self.score[:, people], self.since[people], self.convicted[people]

    def judge(self, now: int, ranks: RankTable, crowd: LiveRanks, caution: float = 1.0) -> list[Suspect]:
        """Who makes the iterations of a task longer at `now` (Unix ns), TOP of each at most, the first one first.

        `caution` is how many times the usual sum convicts.
        """
        people = (int(crowd.seat.max()) + 1,)
        self.score = grown(self.score, (2, *people), 0.0)
        self.since, self.convicted = grown(self.since, people, 0), grown(self.convicted, people, False)
        begun, window = self.durations.begun, self.durations.turn(now, ranks, crowd)
        if window is not None:
            self.score[:, crowd.seat] *= _KEPT
            if not np.isnan(window.longer).all():
                self._add_up(begun, ranks, crowd, window)
        return self._suspects(crowd, SURE * caution)

    def _add_up(self, begun: int, ranks: RankTable, crowd: LiveRanks, window: Window) -> None:
        """Add this window's shares of the blame to each process's sums."""
        longer, paired = window.longer[crowd.process], _paired(ranks, crowd)
        found, spoke = np.zeros((2, len(crowd.seat))), np.zeros(len(crowd.seat))
        for witness in range(WITNESSES):
            unknown = np.isnan(window.elapsed[witness] + window.mean[witness] + longer)
            # A rank that is missing is neither normal nor abnormal: its communicator says nothing.
            at = np.flatnonzero(np.bincount(crowd.comm, unknown)[crowd.comm] == 0)
            if len(at):
                group = np.unique(crowd.comm[at], return_inverse=True)[1].astype(np.int64)
                judged = _Judged(at, group, crowd.process[at], longer[at], paired[at])
                shares = _shares(judged, *_abnormal(witness, window, judged), crowd.task)
                found += shares
                spoke += _sum_of(shares.sum(0), crowd.task) > 0
        fresh = self.score[:, crowd.seat].sum(0) < _NOTHING
        self.since[crowd.seat[fresh]] = begun
        self.score[:, crowd.seat] += found / np.maximum(spoke, 1)

    def _suspects(self, crowd: LiveRanks, enough: float) -> list[Suspect]:
        score = np.where(crowd.task >= 0, self.score[:, crowd.seat], 0.0)
        most, late = score.max(0), score[LATE] >= score[SLOW]
        self.convicted[crowd.seat] &= most >= SAID
        found = []
        for task in np.unique(crowd.task[most >= SAID]):
            mine = np.flatnonzero(crowd.task == task)
            order = mine[np.argsort(-most[mine], kind="stable")]
            if (most[mine] > _ALIKE * most[order[0]]).sum() > max(TOP, len(mine) / 2):
                continue  # it is the task, and nobody in it
            first, elsewhere = order[0], order[crowd.machine[order] != crowd.machine[order[0]]]
            apart = most[first] > _APART * most[elsewhere].max(initial=0.0)
            self.convicted[crowd.seat[first]] |= bool(apart and late[first] and most[first] >= enough)
            for at in order[:TOP][most[order[:TOP]] >= _NOTHING]:
                seat, kind = crowd.seat[at], KINDS[LATE if late[at] else SLOW]
                sure = bool(self.convicted[seat])
                found.append(Suspect(int(at), kind, float(most[at]), int(self.since[seat]), sure))
        return found


def sentences(suspects: Sequence[Suspect], who: Mapping[int, tuple[str, str, str]]) -> dict[tuple[str, str], str]:
    """By task and machine of the suspects, in words, all whom its task suspects.

    `who` each process is: its name, its task and its machine.
    """
    said: dict[str, list[str]] = {}
    for suspect in suspects:
        name, task, _ = who[suspect.process]
        what = "comes late" if suspect.kind == "late" else "communicates slowly"
        said.setdefault(task, []).append(f"{name} {what} ({suspect.score:.1f} windows)")
    places = [who[suspect.process][1:] for suspect in suspects]
    return {(task, machine): f"by how long operations take: {', then '.join(said[task])}" for task, machine in places}


@cache
def _shipped() -> Forest:
    return load()


def _abnormal(witness: int, window: Window, judged: _Judged) -> tuple[Bools, Floats]:
    """What is abnormal in a window, and by how many seconds an iteration all of it is longer than usual."""
    mean, deviation, elapsed = (a[witness, judged.at] for a in (window.mean, window.deviation, window.elapsed))
    quartiles = mean + _QUARTILE * deviation, 2 * _QUARTILE * deviation
    usual, excess = OperatorBaseline(mean, deviation, *quartiles, window.usual[judged.process]), elapsed - mean
    size = np.full(len(mean), 10 ** _shipped().middle[FEATURES.index("size")])  # not known: as in training
    about = OperatorInfo(size, judged.paired, mean_of(judged.group, excess))
    samples = features(elapsed, usual, judged.longer, about)
    wrong = np.zeros(len(mean), bool)
    # What is no longer than usual, or explains nothing, is normal without asking.
    asked = np.flatnonzero((samples[:, FEATURES.index("fences")] > 0) & (excess > _WORTH_ASKING * judged.longer))
    wrong[asked] = _shipped().probability(samples[asked]) > ABNORMAL
    return wrong & (excess > 0), excess


def _shares(judged: _Judged, wrong: Bools, excess: Floats, task: Ints) -> Floats:
    """[LATE or SLOW, process]: the share of each in what its task is held up; less where it explains a part only."""
    group, process, own = judged.group, judged.process, excess * wrong
    # In which order a rank's communicators come is not known: whoever waits more elsewhere is a victim.
    elsewhere = np.asarray(np.bincount(process, own)[process] - own, np.float64)
    parts = np.where(judged.paired, 0.0, blame(group, wrong, own, elsewhere))
    cost = (np.bincount(group, own) / np.maximum(np.bincount(group, wrong), 1))[group]
    explains = np.minimum(1.0, np.stack([cost, cost - _alike(group, excess, task[process])]) / judged.longer).clip(0.0)
    whole, held = (_by_process(some, process, len(task)) for some in (parts, parts * explains))
    # What explains half of the longer iteration or less is something else's consequence, or all of them are longer.
    best = np.zeros(len(task))
    np.maximum.at(best, process, np.where(parts > 0, explains, 0.0).max(0))
    held *= np.clip(2 * _most_of(best, task) - 1, 0.0, 1.0)
    # A slow link holds up all ranks of its communicators, so that many share the blame: the first of them has it.
    held[SLOW] *= _sum_of(whole[SLOW], task) / np.maximum(_most_of(whole[SLOW], task), _TINY)
    shares: Floats = held / np.maximum(_sum_of(whole.sum(0), task), _TINY)
    return shares


def _alike(group: Ints, excess: Floats, task: Ints) -> Floats:
    """By how much communicators of as many ranks of the task are longer; 0 where there is no other."""
    members = np.bincount(group)[group]
    kind = np.unique(np.stack([task, members]), axis=1, return_inverse=True)[1].reshape(-1)
    others = np.bincount(kind, 1 / members)[kind] > 1.5
    return np.where(others, np.maximum(middle_of(mean_of(group, excess), kind), 0.0), 0.0)


def _by_process(parts: Floats, process: Ints, count: int) -> Floats:
    """[LATE or SLOW, process]: sums over each process's communicators."""
    return np.stack([np.bincount(process, part, count) for part in parts])


def _sum_of(values: Floats, task: Ints) -> Floats:
    """Each one's task's sum; -1 is a task too."""
    return np.asarray(np.bincount(task + 1, values)[task + 1], np.float64)


def _most_of(values: Floats, task: Ints) -> Floats:
    """Each one's task's largest."""
    most = np.zeros(int(task.max(initial=-1)) + 2)
    np.maximum.at(most, task + 1, values)
    return most[task + 1]


def _paired(ranks: RankTable, crowd: LiveRanks) -> Bools:
    """Whether a communicator is used to send and receive, rank by rank."""
    paired: Bools = np.bincount(crowd.comm, is_point_to_point(ranks.operation[crowd.live]))[crowd.comm] > 0
    return paired
