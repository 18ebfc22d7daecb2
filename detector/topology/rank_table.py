"""Ranks: the newest reading of each communicator of each process, and the rhythm in which it moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Bools, Floats, Ints, grown
from detector.timeseries.rows import Rows
from store.schema.time import NEVER, SECOND

UNREAD = -2.0
"""A state that cannot be read; -1: a rank waits for none."""
_STARTUP_MOVES = 3  # gaps between a communicator's first operations are set-up, not its rhythm
_GAP_HALF_LIFE_S = 1800.0
_NAMES = 2  # times as many communicators as there are: then those that were re-formed are forgotten
_SINCE_ATTACH = "attach"
"""An agent that came late and could not learn what had gone before: its count compares with no other rank's."""
_READ = {
    "active": "active_ratio",
    "sending": "send_pending_ratio",
    "receiving": "receive_pending_ratio",
    "steps": "steps_done_total",
    "step": "step",
    "blocked": "host_blocked_seconds_total",
    "iteration": "iteration_seconds",
}
_STATES = {"sends_to": "waits_to_send_to", "receives_from": "waits_to_receive_from", "gpu": "waits_for_gpu"}
_COUNTS = ("operations", "offset", "aligned", "attached", "gap", "moves")
_FLOATS = (*_COUNTS, "rank", "ranks", "pending", "lost", *_READ, *_STATES)
_TIMES = ("seen", "moved", "calm")
NONE, UNKNOWN, SOMEBODY = -1.0, -2.0, -3.0
"""In place of a peer's rank: waits for none, not known for which, for one that cannot be read."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left once some are forgotten: places so far of series and processes, numbers so far of communicators."""

    series: Ints
    processes: Ints
    codes: Ints

    def renumbered(self, codes: Ints) -> Ints:
        """Numbers of communicators as they are now; -1 for what is none, or forgotten."""
        return np.where(np.isin(codes, self.codes), np.searchsorted(self.codes, codes), -1)


@dataclass(slots=True)
class RankTable:
    """The newest reading of each (machine, gpu, slot); arrays over series."""

    number: dict[tuple[str, ...], int] = field(default_factory=dict)
    floats: dict[str, Floats] = field(default_factory=lambda: {n: np.zeros(0) for n in _FLOATS})
    times: dict[str, Ints] = field(default_factory=lambda: {n: np.zeros(0, np.int64) for n in _TIMES})
    comm: NDArray[np.object_] = field(default_factory=lambda: np.zeros(0, object))
    operation: NDArray[np.object_] = field(default_factory=lambda: np.zeros(0, object))
    code: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The communicator as a number; -1: not known."""
    processes: dict[tuple[str, ...], int] = field(default_factory=dict)
    """(machine, GPU) -> its number, in the order of numbers."""
    process: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The process as a number."""
    machine: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each process, as a number."""
    machines: dict[str, int] = field(default_factory=dict)
    period: float = SECOND
    """Time between two rows of one series, ns."""
    paced: bool = False
    """Whether that was learned."""
    lost: dict[str, float] = field(default_factory=dict)
    """Machine -> probe hits that its kernel side could not keep at all."""
    _comms: dict[str, int] = field(default_factory=lambda: {"": -1})

    def let_go(self, before: int) -> Left | None:
        """Forget series not read since `before` (Unix ns), and what only they were of; what is left, None: all."""
        idents = list(self.number)
        series = np.flatnonzero(self.times["seen"][: len(idents)] >= before)
        crowded = len(self._comms) > _NAMES * (1 + len(np.unique(self.code[: len(idents)])))
        if len(series) == len(idents) and not crowded:
            return None
        self.number = {idents[old]: new for new, old in enumerate(series.tolist())}
        self.floats = {name: array[series] for name, array in self.floats.items()}
        self.times = {name: array[series] for name, array in self.times.items()}
        self.comm, self.operation = self.comm[series], self.operation[series]
        left = Left(series, *self._let_go_names(series))
        self.code = left.renumbered(self.code[series])
        return left

    def _let_go_names(self, series: Ints) -> tuple[Ints, Ints]:
        """The numbers, so far, of processes and communicators that are left; they are given new ones here."""
        people, self.process = np.unique(self.process[series], return_inverse=True)
        places, self.machine = np.unique(self.machine[people], return_inverse=True)
        names, machines = list(self.processes), list(self.machines)
        self.processes = {names[old]: new for new, old in enumerate(people.tolist())}
        self.machines = {machines[old]: new for new, old in enumerate(places.tolist())}
        self.lost = {machine: lost for machine, lost in self.lost.items() if machine in self.machines}
        codes = np.unique(self.code[series])
        codes, comms = codes[codes >= 0], list(self._comms)
        self._comms = {"": -1} | {comms[old + 1]: new for new, old in enumerate(codes.tolist())}
        return people, codes

    def note_losses(self, rows: Rows) -> None:
        """Take in what the agents' sources say of themselves."""
        total = rows.number("lost_total")
        for at in np.flatnonzero(total > 0):
            machine = rows.idents[rows.ident[at]][0]
            self.lost[machine] = max(float(total[at]), self.lost.get(machine, 0.0))

    def feed(self, rows: Rows) -> None:
        """Take in new `nccl` rows; of several of one series the newest counts."""
        places = self._admit(rows.idents)[rows.ident]
        place, back = np.unique(places[::-1], return_index=True)
        last = len(places) - 1 - back
        newer = rows.time[last] > self.times["seen"][place]
        place, last = place[newer], last[newer]
        time, comm = rows.time[last], rows.text("comm")[last]
        self._learn_period(time - self.times["seen"][place])
        renewed = comm != self.comm[place]
        for name in ("moves", "gap"):
            self.floats[name][place[renewed]] = 0.0
        operations = rows.number("operations_total")[last]
        before = self.floats["operations"][place]
        counted = ~np.isnan(operations)  # null says nothing, so not that it moved
        moved = renewed | ((operations != before) & counted)
        operations = np.where(counted | renewed, operations, before)
        self._note_moves(place[moved], time[moved])
        self.times["seen"][place] = time
        self.comm[place], self.operation[place] = comm, rows.text("operation")[last]
        # One more for each communicator seen, but -1 for none.
        codes = [self._comms.setdefault(name, len(self._comms) - 1) for name in comm[renewed]]
        self.code[place[renewed]] = codes
        self.floats["operations"][place] = operations
        self._note_states(place, rows, last)
        self._note_origin(place, rows.text("counted_from")[last], counted, renewed | (operations < before))

    def _note_origin(self, place: Ints, origin: NDArray[np.object_], counted: Bools, anew: Bools) -> None:
        """Whether the counts compare with other ranks'; a count that begins elsewhere than before is another."""
        attached = counted & (origin == _SINCE_ATTACH)
        other = anew | (counted & (attached != self.floats["attached"][place]))
        self.floats["attached"][place[counted]] = attached[counted]
        self.floats["offset"][place[other]] = self.floats["aligned"][place[other]] = 0.0
        self.floats["aligned"][place[counted & ~attached]] = 1.0

    def _note_states(self, place: Ints, rows: Rows, last: Ints) -> None:
        for name in ("rank", "ranks"):
            self.floats[name][place] = rows.number(name)[last]
        for name, column in _READ.items():
            self.floats[name][place] = rows.number(column)[last]
        for name, column in _STATES.items():
            self.floats[name][place] = np.nan_to_num(rows.number(column)[last], nan=UNREAD)
        for name, column in (("pending", "pending"), ("lost", "lost_total")):
            self.floats[name][place] = np.nan_to_num(rows.number(column)[last])

    def _admit(self, idents: tuple[tuple[str, ...], ...]) -> Ints:
        """The series' numbers; new ones get room."""
        before = len(self.number)
        places = np.array([self.number.setdefault(ident, len(self.number)) for ident in idents], np.int64)
        size = (len(self.number),)
        self.code, self.process = (grown(a, size, -1) for a in (self.code, self.process))
        if size[0] > before:
            self._seat(before)
        self.floats = {name: grown(a, size, 0.0) for name, a in self.floats.items()}
        self.times = {name: grown(a, size, NEVER) for name, a in self.times.items()}
        for name in ("comm", "operation"):
            words = getattr(self, name)
            if len(words) < size[0]:
                setattr(self, name, np.append(words, np.full(2 * size[0] - len(words), "", object)))
        return places

    def _seat(self, first: int) -> None:
        """Give series from `first` on the numbers of their process and machine."""
        for place, ident in enumerate(list(self.number)[first:], first):
            process = self.processes.setdefault(ident[:2], len(self.processes))
            self.process[place] = process
            self.machine = grown(self.machine, (len(self.processes),), -1)
            self.machine[process] = self.machines.setdefault(ident[0], len(self.machines))

    def _learn_period(self, gap: Ints) -> None:
        if (gap < 10**17).any():
            found = float(np.median(gap[gap < 10**17]))
            self.period = self.period + 0.1 * (found - self.period) if self.paced else found
            self.paced = True

    def _note_moves(self, place: Ints, time: Ints) -> None:
        floats, moved = self.floats, self.times["moved"]
        # Time in which nobody waited for anybody, such as a checkpoint, is no gap.
        since = np.maximum(moved[place], self.times["calm"][place])
        gap = np.where(floats["moves"][place] >= _STARTUP_MOVES, (time - since) / SECOND, 0.0)
        faded = floats["gap"][place] * 0.5 ** (gap / _GAP_HALF_LIFE_S)
        floats["gap"][place] = np.maximum(faded, gap)
        floats["moves"][place] += 1
        moved[place] = time

    def live(self, now: int) -> Ints:
        """The series of known communicators that were read not long before `now` (Unix ns)."""
        count = len(self.number)
        live = np.flatnonzero(now - self.times["seen"][:count] <= 3.5 * self.period + SECOND)
        return live[self.code[live] >= 0]

    def learn_offsets(self, live: Ints, comm: Ints, calm: NDArray[np.bool_]) -> None:
        """Agents that came late count fewer operations; where nothing waits, the counts should agree."""
        operations = self.floats["operations"][live]
        most = np.zeros(len(calm))
        np.maximum.at(most, comm, np.nan_to_num(operations))
        at_rest = calm[comm] & ~np.isnan(operations)
        self.floats["offset"][live[at_rest]] = (most[comm] - operations)[at_rest]
        self.floats["aligned"][live[at_rest]] = 1.0


_ALWAYS = 0.9  # share of looks: in a standstill they all find the same


def told(peer: Floats, share: Floats) -> Floats:
    """Whom each rank waits for; where no peer can be read, whether it does: `share` of the looks found it so."""
    unknown = peer == UNKNOWN
    guess = np.where(share > _ALWAYS, SOMEBODY, np.where(share < 1 - _ALWAYS, NONE, UNKNOWN))
    return np.where(unknown, guess, peer)
