"""The scheduler's jobs of machines and GPUs, from the table `job`, and the names of tasks by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from detector.model.job import Job, job_from
from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows
from store.schema.job import JOB
from store.schema.time import SECOND

FRESH_NS = 150 * SECOND
"""An agent repeats its rows each minute: a GPU that was left out twice has no job any more, while others have."""


@dataclass(slots=True)
class Jobs:
    """By machine and GPU, the job that was read last and when (Unix ns)."""

    of_gpu: dict[str, dict[str, tuple[Job, int]]] = field(default_factory=dict)

    def feed(self, rows: Rows) -> bool:
        """Learn from rows of the table `job`; whether the job of a machine has changed."""
        columns = [rows.text(name) for name in JOB]
        machines, gpus, times = rows.who(0), rows.who(1), rows.time
        before = {machine: self.of(machine) for machine in set(machines)}
        for at, values in enumerate(zip(*columns, strict=True)):
            if job := job_from(dict(zip(JOB, values, strict=True))):
                self.of_gpu.setdefault(machines[at], {})[gpus[at]] = job, int(times[at])
        for machine in before.keys() & self.of_gpu.keys():
            newest = max(time for _, time in self.of_gpu[machine].values())
            fresh = {gpu: one for gpu, one in self.of_gpu[machine].items() if newest - one[1] <= FRESH_NS}
            self.of_gpu[machine] = fresh
        return any(self.of(machine) != job for machine, job in before.items())

    def evict(self, gone: frozenset[str]) -> None:
        """Forget machines that are gone."""
        self.of_gpu = {machine: gpus for machine, gpus in self.of_gpu.items() if machine not in gone}

    def of(self, machine: str, device: str | None = None) -> Job | None:
        """The job of a device, else the one that has most GPUs of the machine; None where none is known."""
        gpus = self.of_gpu.get(machine, {})
        table, _, gpu = (device or "").partition(":")
        if table == "gpu" and gpu in gpus:
            return gpus[gpu][0]
        count = Counter(job for job, _ in gpus.values())
        return min(count, key=lambda job: (-count[job], job.name, job.pod)) if count else None

    def named(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """The verdicts, each with the job of its device or machine."""
        return [replace(verdict, job=self.of(verdict.machine, verdict.device)) for verdict in verdicts]

    def names(self, groups: Iterable[list[str]]) -> list[str]:
        """A name for each group of machines that train together; empty where no scheduler names it.

        A job with several groups, such as two trainings side by side, has the first machine in each name.
        """
        machines = list(groups)
        found = [self._most(group) for group in machines]
        count = Counter(found)
        return [
            f"{name} of {group[0]}" if name and count[name] > 1 and len(group) > 1 else name
            for name, group in zip(found, machines, strict=True)
        ]

    def sure(self, machine: str) -> str:
        """The name of the machine's job if a scheduler or a label names it; else empty."""
        job = self.of(machine)
        return job.name if job and job.sure else ""

    def _most(self, group: list[str]) -> str:
        count = Counter(job.name for machine in group if (job := self.of(machine)))
        return min(count, key=lambda name: (-count[name], name)) if count else ""
