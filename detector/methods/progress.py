"""Progress: ranks of one communicator call the same operations in the same order; who holds up the others?

In this order: the rank that never entered (it is behind and itself waits for nobody); the one that called something
else; where all have entered and nothing moves, the link or the GPU that the states of the chunks tell; where all moves,
the rank that comes last or sends slowest each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.chunks import NOBODY, Chunks, Root, told
from detector.config import SECOND, Config
from detector.culprits import SURE, Culprits, Suspect, sentences
from detector.lateness import LATE, Crowd, Late, Lateness
from detector.ranks import Left, Ranks
from detector.rows import NEVER, Rows
from detector.standing import Standing, standing_of
from detector.tasks import Tasks
from detector.verdict import Finding, Level, Verdict
from detector.words import is_paired, named, subject

Ints = NDArray[np.int64]
_MOVES_NS, _MOVES_PERIODS = SECOND // 2, 2.5
"""A task whose operations have not grown for longer than this stands: clocks differ by half a second."""


@dataclass(slots=True)
class Progress:
    """The method and its memory."""

    config: Config
    series: Ranks = field(default_factory=Ranks)
    lateness: Lateness = field(default_factory=Lateness)
    culprits: Culprits = field(default_factory=Culprits)
    teams: list[str] = field(default_factory=list)
    team: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each machine of `series`, its task, a place in `teams`; -1: none."""
    seated: tuple[int, int] = (-1, -1)
    told: dict[tuple[str, str], str] = field(default_factory=dict)
    """By task and machine, what the durations of its operations say, in words."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in new `nccl` rows and name the ranks that hold up a communicator."""
        new, sources = rows.get("nccl"), rows.get("source")
        if sources is not None:
            self.series.note_losses(sources)
        if new is not None and len(new.time) and "comm" in new.texts and "operations_total" in new.metrics:
            self.series.feed(new)
        standing = standing_of(now, self.series, self.config)
        if standing is None:
            return []
        idents = list(self.series.number)
        late = self._late(now, standing, idents, tasks)
        if not standing.stuck.any():
            return late
        found = [*self._never_entered(now, standing, idents), *self._wrong_collective(now, standing, idents)]
        findings = self._hard(found, tasks)
        held = {finding.verdict.task for finding in findings}
        return findings + self._hard(self._held_up(now, standing, idents, held), tasks) + late

    def let_go(self, before: int) -> Left | None:
        """Forget ranks not read since `before` (Unix ns); what is left of them, None: all."""
        left = self.series.let_go(before)
        if left:
            self.lateness.let_go(left)
            self.culprits.let_go(left)
            self.seated = (-1, -1)
        return left

    def _hard(self, found: list[Verdict], tasks: Tasks) -> list[Finding]:
        teams = [tasks.task_of(verdict.machine) for verdict in found]
        return [
            Finding(replace(verdict, task=task), True, 1.0)
            for verdict, task in zip(found, teams, strict=True)
            if task is not None
        ]

    def _never_entered(self, now: int, standing: Standing, idents: list[tuple[str, ...]]) -> list[Verdict]:
        front = np.full(standing.comm.max() + 1, -np.inf)
        np.maximum.at(front, standing.comm, np.nan_to_num(standing.lead, nan=-np.inf))
        lag = front[standing.comm] - standing.lead
        names = self.series.operation[standing.place].astype(str)
        paired = np.isin(standing.comm, standing.comm[is_paired(names)])
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
        doubt = self._doubt(standing, standing.comm[at], idents)
        message = (
            f"{self._rank(place, machine, device)} never entered {named(wanted)}: "
            f"{lag:.0f} operation{'s' * (lag != 1)} behind, {waiting} rank{'s' * (waiting != 1)} "
            f"waiting for it since {seconds:.0f} s{doubt}"
        )
        since = int(standing.still_since[at])
        # One rank that writes a checkpoint while the others wait at a barrier looks the same, for a while.
        level: Level = "crit" if seconds >= self.config.sure_s and not doubt else "warn"
        return Verdict(now, "", machine, device, "progress", "nccl.operations_total", lag, since, level, message)

    def _wrong_collective(self, now: int, standing: Standing, idents: list[tuple[str, ...]]) -> list[Verdict]:
        names = self.series.operation[standing.place].astype(str)
        ranks = self.series.floats["ranks"][standing.place]
        out = []
        for comm in self._at_odds(standing, names):
            mine = np.flatnonzero((standing.comm == comm) & ~np.isnan(standing.lead))
            if not len(mine):
                continue
            mine = mine[standing.lead[mine] == np.nanmax(standing.lead[mine])]
            if len(set(names[mine])) < 2 or is_paired(names[mine]).any() or "" in names[mine]:
                continue
            # Two ranks alone cannot outvote each other: communicators of the same size vote with them.
            alike = (ranks == ranks[mine[0]]) & ~is_paired(names) & (names != "")
            voters = mine if len(mine) > 2 or np.isnan(ranks[mine[0]]) else np.flatnonzero(alike)
            (usual, most), *others = Counter(names[voters].tolist()).most_common()
            odd = [at for at in mine if names[at] != usual]
            if most > sum(count for _, count in others) and 3 * len(odd) <= len(voters):
                out += [self._differing(now, standing, at, idents, usual) for at in odd]
        return out

    def _at_odds(self, standing: Standing, names: NDArray[Any]) -> Ints:
        """Communicators that stand still and whose foremost ranks did not all enqueue the same."""
        _, code = np.unique(names, return_inverse=True)
        count = int(standing.comm.max()) + 1
        front, low, high = np.full(count, -np.inf), np.full(count, len(code)), np.full(count, -1)
        lead = np.nan_to_num(standing.lead, nan=-np.inf)
        np.maximum.at(front, standing.comm, lead)
        first = (lead == front[standing.comm]) & ~np.isnan(standing.lead) & standing.stuck
        np.minimum.at(low, standing.comm[first], code[first])
        np.maximum.at(high, standing.comm[first], code[first])
        return np.flatnonzero(low < high)

    def _differing(
        self, now: int, standing: Standing, at: np.intp, idents: list[tuple[str, ...]], usual: str
    ) -> Verdict:
        place = standing.place[at]
        machine, device = _who(idents[place])
        peers = int((standing.comm == standing.comm[at]).sum()) - 1
        message = (
            f"{self._rank(place, machine, device)} called the wrong collective: "
            f"{named(self.series.operation[place])} "
            f"where its {peers} peer{'s' * (peers != 1)} called {named(usual)}; "
            "this is software, no hardware is blamed"
        )
        since = int(standing.still_since[at])
        return Verdict(now, "", machine, device, "progress", "nccl.operation", 1.0, since, "crit", message)

    def _held_up(self, now: int, standing: Standing, idents: list[tuple[str, ...]], done: set[str]) -> list[Verdict]:
        """For each task in which all have entered and nothing moves: where the states of the chunks point."""
        ranks = self.series
        team = self.team[ranks.machine[ranks.process[standing.place]]]
        out = []
        for task in np.unique(team[standing.stuck & (team >= 0)]):
            if self.teams[task] in done:
                continue
            mine = np.flatnonzero((team == task) & standing.stuck)
            place, floats = standing.place[mine], self.series.floats
            chunks = Chunks(
                standing.comm[mine],
                standing.process[mine],
                floats["rank"][place],
                standing.pending[mine],
                told(floats["sends_to"][place], floats["sending"][place]),
                told(floats["receives_from"][place], floats["receiving"][place]),
                floats["gpu"][place] > 0,
            )
            root = chunks.root()
            if root is not None:
                other = None if root.peer == NOBODY else mine[root.peer]
                out.append(self._blocked(now, standing, (mine[root.at], other), root, idents))
        return out

    def _blocked(
        self,
        now: int,
        standing: Standing,
        ends: tuple[np.int64, np.int64 | None],
        root: Root,
        idents: list[tuple[str, ...]],
    ) -> Verdict:
        at, other = ends
        place, since = standing.place[at], int(standing.still_since[at])
        machine, device = _who(idents[place])
        ranks = len(np.unique(standing.process[standing.pending]))
        who, wanted = self._rank(place, machine, device), named(self.series.operation[place])
        if root.side == "gpu":
            column, what = "waits_for_gpu", "has all the data it needs, but its GPU offers nothing to send on"
        else:
            column = "waits_to_receive_from" if root.receives else "waits_to_send_to"
            way = "handed a chunk to" if column == "waits_to_send_to" else "did not take a chunk from"
            end = (
                "another rank"
                if other is None
                else self._rank(standing.place[other], *_who(idents[standing.place[other]]))
            )
            what = f"{way} {end} and it is not through: its link, or the other end's"
        message = (
            f"{who} entered {wanted} like all others and {what}; "
            f"{ranks} ranks wait since {(now - since) / SECOND:.0f} s"
        )
        return Verdict(now, "", machine, device, "progress", f"nccl.{column}", 1.0, since, "crit", message)

    def _late(self, now: int, standing: Standing, idents: list[tuple[str, ...]], tasks: Tasks) -> list[Finding]:
        """Ranks that come last, or send slowest, each time; against those that they talk to."""
        ranks = self.series
        seat, first = np.unique(ranks.process[standing.place], return_index=True)
        self._seat(tasks)
        machine = ranks.machine[seat]
        team = self.team[machine]
        moved = np.full(len(self.teams) + 1, NEVER)  # the last one is of those that work for no task
        np.maximum.at(moved, team[standing.process], ranks.times["moved"][standing.place])
        running = now - moved[team] <= _MOVES_NS + _MOVES_PERIODS * ranks.period
        crowd = Crowd(standing.place, standing.comm, standing.process, seat, machine, team, running)
        caution = self.config.caution_of("progress")
        found = self.lateness.judge(now, ranks, crowd, caution)
        suspects = self.culprits.judge(now, ranks, crowd, caution)
        known = {late.process for late in found}
        who = {
            at: (idents[standing.place[first[at]]], self.teams[team[at]])
            for at in known | {suspect.process for suspect in suspects}
        }
        self.told = sentences(suspects, {at: (subject(*_who(i)), task, i[0]) for at, (i, task) in who.items()})
        alone = [one for one in suspects if one.sure and one.process not in known]
        return [
            *(self._standing_out(now, late, *who[late.process]) for late in found),
            *(self._longer_by(now, suspect, *who[suspect.process]) for suspect in alone),
        ]

    def _seat(self, tasks: Tasks) -> None:
        """Learn anew which machine works for which task, where that may have changed."""
        if self.seated == (tasks.version, len(self.series.machines)):
            return
        self.seated = (tasks.version, len(self.series.machines))
        names = [tasks.task_of(machine) for machine in self.series.machines]
        self.teams = sorted({name for name in names if name is not None})
        number = {name: at for at, name in enumerate(self.teams)}
        self.team = np.array([-1 if name is None else number[name] for name in names], np.int64)

    def _standing_out(self, now: int, late: Late, ident: tuple[str, ...], task: str) -> Finding:
        machine, device = _who(ident)
        share = f"worst of its task in {100 * late.share:.0f} % of the looks since then"
        if late.signal == LATE:
            metric, what = "nccl.active_ratio", "comes last to its collectives, the ranks that share them wait for it"
        else:
            metric, what = (
                "nccl.send_pending_ratio",
                "sends its chunks more slowly than the ranks that share its collectives",
            )
        message = f"{subject(machine, device)} {what}: {share}"
        level: Level = "crit" if late.weight >= 1.5 else "warn"
        verdict = Verdict(now, task, machine, device, "progress", metric, late.score, late.since, level, message)
        return Finding(verdict, False, late.weight)

    def _longer_by(self, now: int, suspect: Suspect, ident: tuple[str, ...], task: str) -> Finding:
        machine, device = _who(ident)
        message = f"{subject(machine, device)} makes iterations longer: {self.told[task, machine]}"
        verdict = Verdict(
            *(now, task, machine, device, "progress", "nccl.active_ratio"),
            *(suspect.score, suspect.since, "warn", message),
        )
        return Finding(verdict, False, suspect.score / SURE / self.config.caution_of("progress"))

    def explained(self, finding: Finding) -> Finding:
        """The same, with what the durations of operations say of its machine."""
        said, verdict = self.told.get((finding.verdict.task, finding.verdict.machine)), finding.verdict
        if said is None:
            return finding
        return replace(finding, verdict=replace(verdict, evidence=(*verdict.evidence, said)))

    def _doubt(self, standing: Standing, comm: np.int64, idents: list[tuple[str, ...]]) -> str:
        """What was not seen of a communicator's calls, in words: absence proves less then."""
        places = standing.place[standing.comm == comm]
        machines = {idents[place][0] for place in places}
        lost = float(self.series.floats["lost"][places].max()) + max(self.series.lost.get(m, 0.0) for m in machines)
        return f"; {lost:.0f} calls were lost to the probes, so this is less sure" if lost else ""

    def _rank(self, place: np.int64, machine: str, device: str | None) -> str:
        """Who is meant, with its rank where that is known: `m03 gpu:0 (rank 24)`."""
        rank = self.series.floats["rank"][place]
        return subject(machine, device) + ("" if np.isnan(rank) else f" (rank {rank:.0f})")


def _who(ident: tuple[str, ...]) -> tuple[str, str | None]:
    return ident[0], f"gpu:{ident[1]}" if len(ident) > 1 and ident[1] else None
