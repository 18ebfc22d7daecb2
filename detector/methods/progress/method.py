"""The method `progress`: ranks of one communicator call the same operations in the same order; which one is the cause?

First the hangs: a rank that never entered a collective, one that called another, then a link or GPU that blocks ranks
which have all entered. Where the task makes progress: stragglers, and ranks that make iterations longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from detector.config import Config
from detector.methods.contract import Excursions, Method
from detector.methods.progress.hang import Hang
from detector.methods.progress.hang_text import HangText, device_of_rank
from detector.methods.progress.lateness_trend import MIN_SLOWER, THRESHOLD_NATS
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.rank_progress import RankProgress, rank_progress
from detector.methods.progress.slowdown import ALARM_WINDOWS, SlowdownAttribution, Suspect
from detector.methods.progress.straggler import Straggler, StragglerDetector
from detector.methods.progress.straggler_text import (
    late_by_little_text,
    slowdown_sentences,
    slowdown_verdict_text,
    straggler_text,
)
from detector.methods.progress.wait_signals import LATE
from detector.model.text import subject
from detector.model.verdict import Finding, Level, Verdict
from detector.stats.arrays import Ints
from detector.timeseries.rows import Rows
from detector.topology.rank_table import RankTable
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

_RUNNING_NS, _RUNNING_PERIODS = SECOND // 2, 2.5
"""A task without progress for longer than this does not run; clocks differ by half a second."""
_CRITICAL_EVIDENCE = 1.5


@dataclass(slots=True)
class Progress(Method):
    """The method and its state."""

    config: Config
    ranks: RankTable = field(default_factory=RankTable)
    stragglers: StragglerDetector = field(default_factory=StragglerDetector)
    slowdown: SlowdownAttribution = field(default_factory=SlowdownAttribution)
    task_names: list[str] = field(default_factory=list)
    task_of_machine: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[machine of `ranks`]: a place in `task_names`; -1: none."""
    assignment_version: tuple[int, int] = (-1, -1)
    """Version of the tasks and number of machines for which that holds."""
    slowdown_text: dict[tuple[str, str], str] = field(default_factory=dict)
    """(task, machine) -> what the times of its operations show, in words."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Read the rows that came since the last step; the findings at `now` (Unix ns)."""
        findings = self._judge(now, rows, tasks)
        tasks.learn_roles(now, self.ranks)
        return findings

    def _judge(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        new, sources = rows.get("nccl"), rows.get("source")
        if sources is not None:
            self.ranks.note_losses(sources)
        if new is not None and len(new.time) and "comm" in new.texts and "operations_total" in new.metrics:
            self.ranks.update(new)
        progress = rank_progress(now, self.ranks, self.config)
        if progress is None:
            return []
        self.ranks.note_idle(now, progress.series[progress.idle])
        self.ranks.align(progress.series[progress.at_rest], progress.comm[progress.at_rest])
        self._assign_tasks(tasks)
        slow = self._slow(now, progress)
        return [*self._hung(now, progress, tasks), *slow] if progress.stalled_if_whole.any() else slow

    def evict(self, before: int, tasks: Tasks) -> None:
        """Drop ranks that were last read before `before` (Unix ns), here and from the roles."""
        left = self.ranks.evict(before)
        if left:
            self.stragglers.evict(left)
            self.slowdown.evict(left)
            self.assignment_version = (-1, -1)
            tasks.roles.evict(left, self.ranks.machines)

    def excursions(self) -> Iterator[Excursions]:
        """The evidence on stragglers."""
        evidence, machine = self.stragglers.evidence(self.config.straggler), self.ranks.machine
        count = min(len(evidence), len(machine))
        known = np.flatnonzero(machine[:count] >= 0)
        if len(known):
            number = machine[known]
            yield Excursions("progress", number, evidence[known], number, int(number.max()) + 1)

    def annotate(self, findings: list[Finding]) -> list[Finding]:
        """The findings of all methods, with the times of operations as evidence, and stragglers with a likely cause."""
        return [self._with_times(_with_cause(finding, findings)) for finding in findings]

    def _with_times(self, finding: Finding) -> Finding:
        verdict = finding.verdict
        text = self.slowdown_text.get((verdict.task, verdict.machine))
        if text is None:
            return finding
        return replace(finding, verdict=replace(verdict, evidence=(*verdict.evidence, text)))

    def _hung(self, now: int, progress: RankProgress, tasks: Tasks) -> list[Finding]:
        """Hangs; of a task in which a rank is missing or differs, blocked transfers are the consequence.

        What a rank called long before counts only where transfers do not show the cause.
        """
        hang = Hang(
            now, self.ranks, progress, HangText(self.ranks, list(self.ranks.number)), self.config.missing_rank_seconds
        )
        findings = _hard([*hang.missing_ranks(), *hang.ended_ranks(), *hang.mismatched_collectives()], tasks)
        task = self.task_of_machine[self.ranks.machine[self.ranks.process[progress.series]]]
        for method in (hang.blocked_transfers, hang.departed_ranks):
            known = [self.task_names.index(finding.verdict.task) for finding in findings]
            findings += _hard(method(np.where(np.isin(task, known), -1, task)), tasks)
        return findings

    def _slow(self, now: int, progress: RankProgress) -> list[Finding]:
        """Stragglers, and processes that make iterations longer."""
        live = self._live_ranks(now, progress)
        scale, config = self.config.threshold_multiplier("progress"), self.config.straggler
        config = msgspec.structs.replace(config, threshold_seconds=config.threshold_seconds * scale)
        stragglers = self.stragglers.update(now, self.ranks, live, config)
        suspects = self.slowdown.update(now, self.ranks, live, scale)
        self.slowdown_text = slowdown_sentences(suspects, self._named(live, [one.process for one in suspects]))
        little = [self._late_by_little(now, place, live) for place in self.stragglers.late_by_little(live)]
        known = {straggler.process for straggler in stragglers}
        alone = [suspect for suspect in suspects if suspect.alarmed and suspect.process not in known]
        return [
            *(self._straggler(now, straggler, live) for straggler in stragglers),
            *(self._makes_longer(now, suspect, live) for suspect in alone),
            *(little if not stragglers else ()),
        ]

    def _live_ranks(self, now: int, progress: RankProgress) -> LiveRanks:
        ranks = self.ranks
        number = np.unique(ranks.process[progress.series])
        machine = ranks.machine[number]
        task = self.task_of_machine[machine]
        last = np.full(len(self.task_names) + 1, NEVER)  # the last one is of processes without a task
        np.maximum.at(last, task[progress.process], ranks.last_progress[progress.series])
        running = now - last[task] <= _RUNNING_NS + _RUNNING_PERIODS * ranks.period
        return LiveRanks(progress.series, progress.comm, progress.process, number, machine, task, running)

    def _assign_tasks(self, tasks: Tasks) -> None:
        """Read which machine works for which task, if that may have changed."""
        version = (tasks.version, len(self.ranks.machines))
        if self.assignment_version == version:
            return
        self.assignment_version = version
        names = [tasks.task_of(machine) for machine in self.ranks.machines]
        self.task_names = sorted({name for name in names if name is not None})
        number = {name: place for place, name in enumerate(self.task_names)}
        self.task_of_machine = np.array([-1 if name is None else number[name] for name in names], np.int64)

    def _named(self, live: LiveRanks, places: list[int]) -> dict[int, tuple[str, str, str]]:
        """Place of a live process -> its name, its task and its machine."""
        found = {place: self._owner(live, place) for place in places}
        return {place: (subject(machine, device), task, machine) for place, (machine, device, task) in found.items()}

    def _owner(self, live: LiveRanks, place: int) -> tuple[str, str | None, str]:
        """Machine, device and task of a live process."""
        ident = list(self.ranks.processes)[int(live.number[place])]
        return *device_of_rank(ident), self.task_names[live.task[place]]

    def _straggler(self, now: int, straggler: Straggler, live: LiveRanks) -> Finding:
        machine, device, task = self._owner(live, straggler.cause)
        metric = "nccl.active_ratio" if straggler.signal == LATE else "nccl.send_pending_ratio"
        message = straggler_text(subject(machine, device), straggler, self.ranks, live)
        level: Level = "crit" if straggler.evidence >= _CRITICAL_EVIDENCE else "warn"
        score, onset = straggler.score, straggler.onset
        verdict = Verdict(now, task, machine, device, "progress", metric, score, onset, level, message)
        return Finding(verdict, False, straggler.evidence)

    def _late_by_little(self, now: int, place: int, live: LiveRanks) -> Finding:
        machine, device, task = self._owner(live, place)
        number, trend = int(live.number[place]), self.stragglers.trend
        shift, onset = float(trend.shift[number]), int(trend.cusum.onset[number])
        message = late_by_little_text(subject(machine, device), shift, (now - onset) / SECOND)
        slower = float(trend.slower[number]) / MIN_SLOWER
        level: Level = "warn" if slower >= 1 else "note"
        metric, score = "nccl.receive_pending_ratio", min(shift / float(trend.least[number]), slower)
        verdict = Verdict(now, task, machine, device, "progress", metric, score, onset, level, message)
        return Finding(verdict, False, float(trend.cusum.value[number]) / THRESHOLD_NATS)

    def _makes_longer(self, now: int, suspect: Suspect, live: LiveRanks) -> Finding:
        machine, device, task = self._owner(live, suspect.process)
        message = slowdown_verdict_text(subject(machine, device), self.slowdown_text[task, machine])
        score = suspect.windows / ALARM_WINDOWS / self.config.threshold_multiplier("progress")
        verdict = Verdict(
            now, task, machine, device, "progress", "nccl.active_ratio", score, suspect.onset, "warn", message
        )
        return Finding(verdict, False, score)


def _with_cause(finding: Finding, findings: list[Finding]) -> Finding:
    """A straggler with the strongest finding that another machine cannot cause, such as a low clock of its GPU."""
    verdict = finding.verdict
    if finding.hard or verdict.kind != "progress":
        return finding
    place = verdict.task, verdict.machine
    causes = [one for one in findings if one.own and (one.verdict.task, one.verdict.machine) == place]
    if not causes:
        return finding
    cause = max(causes, key=lambda one: (one.verdict.device == verdict.device, one.evidence)).verdict
    reading = cause.message.removeprefix(f"{subject(cause.machine, cause.device)} ")
    device = "it" if cause.device in (None, verdict.device) else subject("", cause.device).strip()
    return replace(finding, verdict=replace(verdict, message=f"{verdict.message} Likely cause: {device} {reading}."))


def _hard(verdicts: list[Verdict], tasks: Tasks) -> list[Finding]:
    """Findings that need no statistics; machines without a task are left out."""
    named = ((verdict, tasks.task_of(verdict.machine)) for verdict in verdicts)
    return [Finding(replace(verdict, task=task), True, 1.0) for verdict, task in named if task is not None]
