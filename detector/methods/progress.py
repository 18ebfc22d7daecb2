"""Progress: ranks of one communicator call the same operations in the same order; when all stand still, who is missing?

The rank that is behind and itself waits for nobody is the root; ranks that wait are its victims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import SECOND, Config
from detector.rows import NEVER, Rows
from detector.tasks import Tasks
from detector.verdict import Finding, Level, Verdict
from detector.window import grown
from detector.words import subject

Ints = NDArray[np.int64]
_STARTUP_MOVES = 3  # gaps between a communicator's first operations are set-up, not its rhythm
_GAP_HALF_LIFE_S = 1800.0
_FLOATS = ("operations", "rank", "ranks", "pending", "offset", "aligned", "gap", "moves")
_SINCE_ATTACH = "attach"
"""An agent that came late and could not learn what had gone before: its count compares with no other rank's."""
_TIMES = ("seen", "moved", "calm")


@dataclass(slots=True)
class Series:
    """The newest reading of each (machine, gpu, slot); arrays over series."""

    number: dict[tuple[str, ...], int] = field(default_factory=dict)
    floats: dict[str, NDArray[np.float64]] = field(default_factory=lambda: {n: np.zeros(0) for n in _FLOATS})
    times: dict[str, Ints] = field(default_factory=lambda: {n: np.zeros(0, np.int64) for n in _TIMES})
    comm: NDArray[np.object_] = field(default_factory=lambda: np.zeros(0, object))
    operation: NDArray[np.object_] = field(default_factory=lambda: np.zeros(0, object))
    period: float = SECOND
    """Time between two rows of one series, ns."""

    def admit(self, idents: tuple[tuple[str, ...], ...]) -> Ints:
        """The series' numbers; new ones get room."""
        places = np.array([self.number.setdefault(ident, len(self.number)) for ident in idents], np.int64)
        size = (len(self.number),)
        self.floats = {name: grown(a, size, 0.0) for name, a in self.floats.items()}
        self.times = {name: grown(a, size, NEVER) for name, a in self.times.items()}
        for name in ("comm", "operation"):
            words = getattr(self, name)
            if len(words) < size[0]:
                setattr(self, name, np.append(words, np.full(2 * size[0] - len(words), "", object)))
        return places


@dataclass(frozen=True, slots=True)
class Standing:
    """The live series at one time, and what is known of each one's communicator; arrays over live series."""

    place: Ints
    comm: Ints
    lead: NDArray[np.float64]
    """Operations enqueued, usual differences in counting taken off."""
    pending: NDArray[np.bool_]
    stuck: NDArray[np.bool_]
    """Whether its communicator has moved nothing for too long while some rank waits."""
    still_since: Ints
    waits: NDArray[np.bool_]
    """Whether its process waits in any communicator."""


@dataclass(slots=True)
class Progress:
    """The method and its memory."""

    config: Config
    series: Series = field(default_factory=Series)

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in new `nccl` rows and name the ranks that hold up a communicator which stands still."""
        new = rows.get("nccl")
        if new is not None and len(new.time) and "comm" in new.texts and "operations_total" in new.metrics:
            self._feed(new)
        standing = self._standing(now)
        if standing is None or not standing.stuck.any():
            return []
        idents = list(self.series.number)
        found = [*self._never_entered(now, standing, idents), *self._wrong_collective(now, standing, idents)]
        teams = [tasks.task_of(verdict.machine) for verdict in found]
        return [
            Finding(replace(verdict, task=task), True, 1.0)
            for verdict, task in zip(found, teams, strict=True)
            if task is not None
        ]

    def _feed(self, rows: Rows) -> None:
        state = self.series
        places = state.admit(rows.idents)[rows.ident]
        place, back = np.unique(places[::-1], return_index=True)
        last = len(places) - 1 - back
        newer = rows.time[last] > state.times["seen"][place]
        place, last = place[newer], last[newer]
        time, comm = rows.time[last], rows.text("comm")[last]
        gap = time - state.times["seen"][place]
        if (gap < 10**17).any():
            state.period += 0.1 * (float(np.median(gap[gap < 10**17])) - state.period)
        renewed = comm != state.comm[place]
        for name in ("moves", "gap", "offset"):
            state.floats[name][place[renewed]] = 0.0
        operations = rows.number("operations_total")[last]
        before = state.floats["operations"][place]
        moved = renewed | ((operations != before) & ~np.isnan(operations))  # null says nothing, so not that it moved
        operations = np.where(np.isnan(operations) & ~renewed, before, operations)
        self._note_moves(place[moved], time[moved])
        state.times["seen"][place] = time
        state.comm[place], state.operation[place] = comm, rows.text("operation")[last]
        for name, column in (("operations", operations), *((n, rows.number(n)[last]) for n in ("rank", "ranks"))):
            state.floats[name][place] = column
        state.floats["pending"][place] = np.nan_to_num(rows.number("pending")[last])
        from_birth = rows.text("counted_from")[last] != _SINCE_ATTACH
        state.floats["aligned"][place[renewed | from_birth]] = from_birth[renewed | from_birth]

    def _note_moves(self, place: Ints, time: Ints) -> None:
        floats, moved = self.series.floats, self.series.times["moved"]
        # Time in which nobody waited for anybody, such as a checkpoint, is no gap.
        since = np.maximum(moved[place], self.series.times["calm"][place])
        gap = np.where(floats["moves"][place] >= _STARTUP_MOVES, (time - since) / SECOND, 0.0)
        faded = floats["gap"][place] * 0.5 ** (gap / _GAP_HALF_LIFE_S)
        floats["gap"][place] = np.maximum(faded, gap)
        floats["moves"][place] += 1
        moved[place] = time

    def _standing(self, now: int) -> Standing | None:
        state = self.series
        count = len(state.number)
        live = np.flatnonzero(now - state.times["seen"][:count] <= 3.5 * state.period + SECOND)
        live = live[state.comm[live] != ""] if len(live) else live
        if not len(live):
            return None
        _, comm = np.unique(state.comm[live].astype(str), return_inverse=True)
        pending = state.floats["pending"][live] > 0
        count = int(comm.max()) + 1
        moved, rest = np.full(count, NEVER), np.full(count, NEVER)
        gap, waiting = np.zeros(count), np.zeros(count, bool)
        np.maximum.at(moved, comm, np.maximum(state.times["moved"], state.times["calm"])[live])
        np.maximum.at(rest, comm, state.times["moved"][live])
        np.maximum.at(gap, comm, state.floats["gap"][live])
        np.logical_or.at(waiting, comm, pending)
        patience = np.maximum(self.config.still_s, self.config.still_gaps * gap) + state.period / SECOND
        still = now - moved
        state.times["calm"][live[~waiting[comm]]] = now
        stuck = waiting & (still > patience * SECOND) & (np.bincount(comm) > 1)
        self._learn_offsets(live, comm, ~waiting & (now - rest > 2 * state.period + SECOND))
        lead = state.floats["operations"][live] + state.floats["offset"][live]
        lead[state.floats["aligned"][live] == 0] = np.nan
        idents = list(state.number)
        process = _codes([idents[place][:2] for place in live])
        waits = np.zeros(len(live), bool)
        np.logical_or.at(waits, process, pending)
        return Standing(live, comm, lead, pending, stuck[comm], moved[comm], waits[process])

    def _learn_offsets(self, live: Ints, comm: Ints, calm: NDArray[np.bool_]) -> None:
        """Agents that came late count fewer operations; where nothing waits, the counts should agree."""
        operations = self.series.floats["operations"][live]
        most = np.zeros(len(calm))
        np.maximum.at(most, comm, np.nan_to_num(operations))
        at_rest = calm[comm]
        self.series.floats["offset"][live[at_rest]] = (most[comm] - operations)[at_rest]
        self.series.floats["aligned"][live[at_rest]] = 1.0

    def _never_entered(self, now: int, standing: Standing, idents: list[tuple[str, ...]]) -> list[Verdict]:
        front = np.full(standing.comm.max() + 1, -np.inf)
        np.maximum.at(front, standing.comm, np.nan_to_num(standing.lead, nan=-np.inf))
        lag = front[standing.comm] - standing.lead
        names = self.series.operation[standing.place].astype(str)
        paired = np.isin(standing.comm, standing.comm[_is_paired(names)])
        root = standing.stuck & ~paired & (lag >= 1) & ~standing.waits
        out = []
        for comm in np.unique(standing.comm[root]):
            mine = standing.comm == comm
            few = max(1, int(mine.sum()) // 4)
            if (root & mine).sum() <= few:
                out += [self._missing(now, standing, at, idents, float(lag[at])) for at in np.flatnonzero(root & mine)]
        return out

    def _missing(self, now: int, standing: Standing, at: np.intp, idents: list[tuple[str, ...]], lag: float) -> Verdict:
        place = standing.place[at]
        mine = standing.comm == standing.comm[at]
        waiting, seconds = int((standing.pending & mine).sum()), (now - standing.still_since[at]) / SECOND
        machine, device = _who(idents[place])
        wanted = self.series.operation[standing.place[mine & standing.pending][0]]
        message = (
            f"{self._rank(place, machine, device)} never entered {_named(wanted)}: "
            f"{lag:.0f} operation{'s' * (lag != 1)} behind, {waiting} rank{'s' * (waiting != 1)} "
            f"waiting for it since {seconds:.0f} s"
        )
        since = int(standing.still_since[at])
        # One rank that writes a checkpoint while the others wait at a barrier looks the same, for a while.
        level: Level = "crit" if seconds >= self.config.sure_s else "warn"
        return Verdict(now, "", machine, device, "progress", "nccl.operations_total", lag, since, level, message)

    def _wrong_collective(self, now: int, standing: Standing, idents: list[tuple[str, ...]]) -> list[Verdict]:
        names = self.series.operation[standing.place].astype(str)
        ranks = self.series.floats["ranks"][standing.place]
        out = []
        for comm in np.unique(standing.comm[standing.stuck]):
            mine = np.flatnonzero((standing.comm == comm) & ~np.isnan(standing.lead))
            if not len(mine):
                continue
            mine = mine[standing.lead[mine] == np.nanmax(standing.lead[mine])]
            if len(set(names[mine])) < 2 or _is_paired(names[mine]).any() or "" in names[mine]:
                continue
            # Two ranks alone cannot outvote each other: communicators of the same size vote with them.
            voters = mine if len(mine) > 2 else np.flatnonzero(ranks == ranks[mine[0]])
            (usual, most), *others = Counter(names[voters].tolist()).most_common()
            odd = [at for at in mine if names[at] != usual]
            if most > sum(count for _, count in others) and 3 * len(odd) <= len(voters):
                out += [self._differing(now, standing, at, idents, usual) for at in odd]
        return out

    def _differing(
        self, now: int, standing: Standing, at: np.intp, idents: list[tuple[str, ...]], usual: str
    ) -> Verdict:
        place = standing.place[at]
        machine, device = _who(idents[place])
        peers = int((standing.comm == standing.comm[at]).sum()) - 1
        message = (
            f"{self._rank(place, machine, device)} called the wrong collective: "
            f"{_named(self.series.operation[place])} "
            f"where its {peers} peer{'s' * (peers != 1)} called {_named(usual)}; "
            "this is software, no hardware is blamed"
        )
        since = int(standing.still_since[at])
        return Verdict(now, "", machine, device, "progress", "nccl.operation", 1.0, since, "crit", message)

    def _rank(self, place: np.int64, machine: str, device: str | None) -> str:
        """Who is meant, with its rank where that is known: `m03 gpu:0 (rank 24)`."""
        rank = self.series.floats["rank"][place]
        return subject(machine, device) + ("" if np.isnan(rank) else f" (rank {rank:.0f})")


def _is_paired(names: NDArray[Any]) -> NDArray[np.bool_]:
    """Send and Recv differ between ranks by nature."""
    kinds = np.char.lower(names.astype(str))
    found: NDArray[np.bool_] = np.char.startswith(kinds, "send") | np.char.startswith(kinds, "recv")
    return found


def _codes(keys: list[tuple[str, ...]]) -> Ints:
    known: dict[tuple[str, ...], int] = {}
    return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)


def _who(ident: tuple[str, ...]) -> tuple[str, str | None]:
    return ident[0], f"gpu:{ident[1]}" if len(ident) > 1 and ident[1] else None


def _named(operation: str) -> str:
    """`AllReduce:float32:1024` as people say it."""
    kind, _, rest = operation.partition(":")
    return f"{kind} ({rest.replace(':', ' × ')})" if rest else kind or "an operation"
