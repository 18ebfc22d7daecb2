"""Progress: ranks of one communicator call the same operations in the same order; who holds up the others?

In this order: the rank that never entered (it is behind and itself waits for nobody); the one that called something
else; where all have entered and nothing moves, the link or the GPU that the states of the chunks tell; where all moves,
the rank that comes last or sends slowest each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from detector.config import Config
from detector.methods.progress.hang import Hang, who
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.rank_progress import Standing, rank_progress
from detector.methods.progress.slowdown import SURE, SlowdownAttribution, Suspect, sentences
from detector.methods.progress.straggler import LATE, Straggler, StragglerDetector
from detector.model.text import subject
from detector.model.verdict import Finding, Level, Verdict
from detector.stats.arrays import Ints
from detector.timeseries.rows import Rows
from detector.topology.rank_table import Left, RankTable
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

_MOVES_NS, _MOVES_PERIODS = SECOND // 2, 2.5
"""A task whose operations have not grown for longer than this stands: clocks differ by half a second."""


@dataclass(slots=True)
class Progress:
    """The method and its memory."""

    config: Config
    series: RankTable = field(default_factory=RankTable)
    lateness: StragglerDetector = field(default_factory=StragglerDetector)
    culprits: SlowdownAttribution = field(default_factory=SlowdownAttribution)
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
        standing = rank_progress(now, self.series, self.config)
        if standing is None:
            return []
        idents = list(self.series.number)
        late = self._late(now, standing, idents, tasks)
        if not standing.stuck.any():
            return late
        hang = Hang(now, self.series, standing, idents, self.config.sure_s)
        findings = _hard([*hang.missing_ranks(), *hang.wrong_collective()], tasks)
        known = [self.teams.index(finding.verdict.task) for finding in findings]
        team = self.team[self.series.machine[self.series.process[standing.place]]]
        return findings + _hard(hang.blocked_transfers(np.where(np.isin(team, known), -1, team)), tasks) + late

    def let_go(self, before: int) -> Left | None:
        """Forget ranks not read since `before` (Unix ns); what is left of them, None: all."""
        left = self.series.let_go(before)
        if left:
            self.lateness.let_go(left)
            self.culprits.let_go(left)
            self.seated = (-1, -1)
        return left

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
        crowd = LiveRanks(standing.place, standing.comm, standing.process, seat, machine, team, running)
        caution = self.config.caution_of("progress")
        found = self.lateness.judge(now, ranks, crowd, caution)
        suspects = self.culprits.judge(now, ranks, crowd, caution)
        known = {late.process for late in found}
        meant = {
            at: (idents[standing.place[first[at]]], self.teams[team[at]])
            for at in known | {suspect.process for suspect in suspects}
        }
        self.told = sentences(suspects, {at: (subject(*who(i)), task, i[0]) for at, (i, task) in meant.items()})
        alone = [one for one in suspects if one.sure and one.process not in known]
        return [
            *(self._standing_out(now, late, *meant[late.process]) for late in found),
            *(self._longer_by(now, suspect, *meant[suspect.process]) for suspect in alone),
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

    def _standing_out(self, now: int, late: Straggler, ident: tuple[str, ...], task: str) -> Finding:
        machine, device = who(ident)
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
        machine, device = who(ident)
        message = f"{subject(machine, device)} makes iterations longer: {self.told[task, machine]}"
        score, since = suspect.score, suspect.since
        verdict = Verdict(now, task, machine, device, "progress", "nccl.active_ratio", score, since, "warn", message)
        return Finding(verdict, False, suspect.score / SURE / self.config.caution_of("progress"))

    def explained(self, finding: Finding) -> Finding:
        """The same, with what the durations of operations say of its machine."""
        said, verdict = self.told.get((finding.verdict.task, finding.verdict.machine)), finding.verdict
        if said is None:
            return finding
        return replace(finding, verdict=replace(verdict, evidence=(*verdict.evidence, said)))


def _hard(found: list[Verdict], tasks: Tasks) -> list[Finding]:
    teams = ((verdict, tasks.task_of(verdict.machine)) for verdict in found)
    return [Finding(replace(verdict, task=task), True, 1.0) for verdict, task in teams if task is not None]
