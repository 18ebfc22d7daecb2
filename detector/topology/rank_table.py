"""The rank table: the newest row of each communicator of each process, and how often each of them makes progress."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Bools, Floats, Ints, grown
from detector.timeseries.rows import Rows
from detector.topology.compaction import Compaction
from detector.topology.rank_columns import RankColumns
from store.schema.time import NEVER, SECOND

NO_RANK, UNKNOWN, SOME_RANK = -1.0, -2.0, -3.0
"""In place of a peer's rank: waits for none, state not readable, waits for one that is not readable."""
_WARMUP_GAPS, _GAP_HALF_LIFE_S = 3, 1800.0  # gaps between a communicator's first operations are set-up
_AHEAD, _IN_STEP_S = 3.0, 1.0
"""Operations, and seconds of them, by which ranks of one communicator are apart, read at one time."""
_MAX_NAMES = 2  # times the communicators in use: above that, those that are no longer in use are evicted
_COUNTED_SINCE_ATTACH = "attach"
_ORIGINS = ("birth", "memory", _COUNTED_SINCE_ATTACH)
"""The agent started late and does not know the count before: its count compares with no other rank's."""
_NUMBERS = {
    "rank": "rank",
    "comm_ranks": "ranks",
    "pid": "pid",
    "active": "active_ratio",
    "sending": "send_pending_ratio",
    "receiving": "receive_pending_ratio",
    "unsent": "unsent_ratio",
    "steps": "steps_done_total",
    "ring_step": "step",
    "blocked": "host_blocked_seconds_total",
    "iteration": "iteration_seconds",
    "channel": "waits_channel",
    "net_device": "waits_net_device",
    "departs": "departs",
    "replayed": "replayed",
}
_STATES = {
    "sends_to": "waits_to_send_to",
    "receives_from": "waits_to_receive_from",
    "credit_from": "waits_for_credit_from",
    "awaiting_gpu": "waits_for_gpu",
}
_COUNTS = {"pending": "pending", "lost_calls": "lost_total"}
_ALWAYS = 0.9  # share of samples: in a hang all of them show the same


@dataclass(slots=True)
class RankTable(RankColumns):
    """The columns, and how rows change them."""

    _comms: dict[str, int] = field(default_factory=lambda: {"": -1})
    """Name and size -> number: two communicators of one name differ in their ranks."""

    def update(self, rows: Rows) -> None:
        """Read new `nccl` rows; of several rows of one series the newest counts."""
        series, row = self._newest(self._admit(rows.idents)[rows.ident], rows)
        time, comm, operations = rows.time[row], rows.text("comm")[row], rows.number("operations_total")[row]
        self._learn_period(time - self.last_seen[series])
        unread = (time - self.last_seen[series]) / SECOND
        away = (self.last_seen[series] > NEVER) & (unread * SECOND > 3.5 * self.period + SECOND)
        ranks = rows.number("ranks")[row]
        formed = (comm != self.comm[series]) | (np.abs(ranks - self.comm_ranks[series]) > 0)
        for own in (self.moves, self.gap, self.has_replayed, self.offset, self.aligned):
            own[series[formed]] = 0.0
        before, known = self.operations[series], np.isfinite(operations)
        self._note_pace(series, formed | away, time, rows, row)
        # A count that falls is that of an agent that began again; one that stays is wrong if a call was made since.
        called = rows.number("idle_seconds")[row] < unread
        progress = formed | called | (~(operations <= before) & known) | self._is_replaying(series, rows, row)
        operations = np.where(known | formed, operations, before)
        self._note_progress(series[progress], time[progress], away[progress])
        if not away.all():  # in a pause of all readings no agent restarted
            self.back[series[away]] = time[away]
        self.last_seen[series] = time
        self.comm[series], self.operation[series] = comm, rows.text("operation")[row]
        # Numbers count from 0, and the dictionary also holds the name of no communicator.
        names = [f"{name} {size:.0f}" if name else "" for name, size in zip(comm[formed], ranks[formed], strict=True)]
        self.code[series[formed]] = [self._comms.setdefault(name, len(self._comms) - 1) for name in names]
        self.operations[series] = operations
        self._note_states(series, rows, row)
        self.has_replayed[series] = np.fmax(self.has_replayed[series], self.replayed[series])
        rate = np.where(formed, operations, operations - before) / unread
        least, fell = self._least_in_step(series, rate), ~formed & (rate < 0)
        self.fell[series] = (fell | ~formed & (self.fell[series] > 0)) & ~(operations >= least)
        since_attach = (operations < 0) | (self.fell[series] > 0)  # none that is from birth begins below 0
        origin = np.where(since_attach, _COUNTED_SINCE_ATTACH, rows.text("counted_from")[row])
        goes_on = (formed | (self.aligned[series] > 0)) & (operations + self.offset[series] >= least)
        self._note_origin(series, origin, known, formed | fell, away & ~goes_on)

    def note_losses(self, rows: Rows) -> None:
        """Read how many probe hits the agents lost, from rows of `source`."""
        total = rows.number("lost_total")
        for row in np.flatnonzero(total > 0):
            machine = rows.idents[rows.ident[row]][0]
            self.lost_by_machine[machine] = max(float(total[row]), self.lost_by_machine.get(machine, 0.0))

    def live(self, now: int) -> Ints:
        """The series of known communicators that were read shortly before `now` (Unix ns)."""
        count = len(self.number)
        live = np.flatnonzero(now - self.last_seen[:count] <= 3.5 * self.period + SECOND)
        return live[self.code[live] >= 0]

    def are_whole(self, now: int) -> bool:
        """Whether all ranks of each communicator were read shortly before `now` (Unix ns)."""
        live = self.live(now)
        if not len(live):
            return False
        _, comm = np.unique(self.code[live], return_inverse=True)
        size = np.zeros(int(comm.max()) + 1)
        np.maximum.at(size, comm, self.comm_ranks[live])
        return bool((np.bincount(comm) == size).all())

    def note_idle(self, now: int, series: Ints) -> None:
        """Note series in the communicators of which no rank waits at `now` (Unix ns)."""
        self.last_idle[series] = now

    def align(self, series: Ints, comm: Ints) -> None:
        """Learn how many operations each agent missed, at a time at which all ranks should have the same count.

        `comm` is each series' communicator, numbered from 0.
        """
        known = ~np.isnan(self.operations[series])
        series, comm = series[known], comm[known]
        most = np.zeros(int(comm.max(initial=-1)) + 1)
        np.maximum.at(most, comm, self.operations[series])
        self.offset[series] = most[comm] - self.operations[series]
        self.aligned[series] = 1.0

    def evict(self, before: int) -> Compaction | None:
        """Drop series that were last read before `before` (Unix ns), and what only they used; None: nothing dropped."""
        idents = list(self.number)
        series = np.flatnonzero(self.last_seen[: len(idents)] >= before)
        crowded = len(self._comms) > _MAX_NAMES * (1 + len(np.unique(self.code[: len(idents)])))
        if len(series) == len(idents) and not crowded:
            return None
        self.number = {idents[old]: new for new, old in enumerate(series.tolist())}
        self.select(series)
        left = Compaction(series, *self._compact_names())
        self.code = left.renumbered(self.code)
        return left

    def _compact_names(self) -> tuple[Ints, Ints]:
        """Renumber processes, machines and communicators; the old numbers of processes and communicators in use."""
        processes, self.process = np.unique(self.process, return_inverse=True)
        machines, self.machine = np.unique(self.machine[processes], return_inverse=True)
        process_names, machine_names, comm_names = list(self.processes), list(self.machines), list(self._comms)
        self.processes = {process_names[old]: new for new, old in enumerate(processes.tolist())}
        self.machines = {machine_names[old]: new for new, old in enumerate(machines.tolist())}
        self.lost_by_machine = {name: lost for name, lost in self.lost_by_machine.items() if name in self.machines}
        codes = np.unique(self.code)
        codes = codes[codes >= 0]
        self._comms = {"": -1} | {comm_names[old + 1]: new for new, old in enumerate(codes.tolist())}
        return processes, codes

    def _newest(self, series: Ints, rows: Rows) -> tuple[Ints, Ints]:
        """Each series that has a newer row than before, and the place of its newest row."""
        found, back = np.unique(series[::-1], return_index=True)
        row = len(series) - 1 - back
        newer = rows.time[row] > self.last_seen[found]
        return found[newer], row[newer]

    def _is_replaying(self, series: Ints, rows: Rows, row: Ints) -> Bools:
        """Whether CUDA graphs replay operations of a series, which are not counted, and its transfers move."""
        steps = rows.number("steps_done_total")[row]
        moves: Bools = (rows.number("replayed")[row] == 1) & (steps != self.steps[series]) & ~np.isnan(steps)
        return moves

    def _note_pace(self, series: Ints, restarted: Bools, time: Ints, rows: Rows, row: Ints) -> None:
        steps = rows.number("steps_done_total")[row]
        seconds = np.where(restarted, np.nan, (time - self.last_seen[series]) / SECOND)
        self.pace[series] = np.where(steps >= self.steps[series], steps - self.steps[series], np.nan) / seconds

    def _least_in_step(self, series: Ints, rate: Floats) -> Floats:
        """[series]: the least count that is as far as the foremost of its communicator that compare; else infinity.

        `rate` [series]: operations a second since the reading before; one below 0 is in step with none.
        """
        count = self.operations + self.offset
        compares = np.flatnonzero((self.aligned > 0) & (self.code >= 0) & ~np.isnan(count))
        front, newest = np.full(len(self._comms), -np.inf), np.full(len(self._comms), NEVER)
        np.maximum.at(front, self.code[compares], count[compares])
        np.maximum.at(newest, self.code[compares], self.last_seen[compares])
        code = self.code[series]
        later = (newest[code] - self.last_seen[series]) / SECOND
        return np.where(rate >= 0, front[code] - _AHEAD - rate * (later + _IN_STEP_S), np.inf)

    def _note_origin(
        self, series: Ints, origin: NDArray[np.object_], known: Bools, restarted: Bools, away: Bools
    ) -> None:
        """Note where counts begin; one that begins elsewhere than before has to be aligned once more.

        Where the rows do not say it, an agent that was `away` missed operations, unless it is in step.
        """
        unsaid = ~np.isin(origin.astype(str), _ORIGINS)
        attached = known & ((origin == _COUNTED_SINCE_ATTACH) | (unsaid & (away | (self.attached[series] > 0))))
        other = series[restarted | (known & (attached != self.attached[series]))]
        self.attached[series[known]] = attached[known]
        self.offset[other] = self.aligned[other] = 0.0
        self.aligned[series[known & ~attached]] = 1.0

    def _note_states(self, series: Ints, rows: Rows, row: Ints) -> None:
        for columns, unknown in ((_NUMBERS, np.nan), (_STATES, UNKNOWN), (_COUNTS, 0.0)):
            for name, source in columns.items():
                getattr(self, name)[series] = np.nan_to_num(rows.number(source)[row], nan=unknown)

    def _admit(self, idents: tuple[tuple[str, ...], ...]) -> Ints:
        """The series of these identities; new ones get a number."""
        before = len(self.number)
        series = np.array([self.number.setdefault(ident, len(self.number)) for ident in idents], np.int64)
        self.resize(len(self.number))
        for number, ident in enumerate(list(self.number)[before:], before):
            process = self.processes.setdefault(ident[:2], len(self.processes))
            self.process[number] = process
            self.machine = grown(self.machine, (len(self.processes),), -1)
            self.machine[process] = self.machines.setdefault(ident[0], len(self.machines))
        return series

    def _learn_period(self, gap: Ints) -> None:
        usual = gap[gap < 10**17]  # the first row of a series has none
        if len(usual):
            median = float(np.median(usual))
            self.period = self.period + 0.1 * (median - self.period) if self.period_known else median
            self.period_known = True

    def _note_progress(self, series: Ints, time: Ints, away: Bools) -> None:
        # Time in which no rank waited, such as a checkpoint, is no gap, nor is one that was not read.
        since = np.maximum.reduce([times[series] for times in (self.last_progress, self.last_idle, self.back)])
        gap = np.where((self.moves[series] >= _WARMUP_GAPS) & ~away, (time - since) / SECOND, 0.0)
        self.gap[series] = np.maximum(self.gap[series] * 0.5 ** (gap / _GAP_HALF_LIFE_S), gap)
        self.moves[series] += 1
        self.last_progress[series] = time


def resolve_peer(peer: Floats, share: Floats) -> Floats:
    """The rank that each waits for; if it is UNKNOWN, SOME_RANK or NO_RANK by the `share` of samples that waited."""
    guess = np.where(share > _ALWAYS, SOME_RANK, np.where(share < 1 - _ALWAYS, NO_RANK, UNKNOWN))
    return np.where(peer == UNKNOWN, guess, peer)
