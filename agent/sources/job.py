"""The scheduler's job of each GPU: a row of the table `job` on change and once a minute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.context import Context
from agent.probes.training_processes import TrainingProcess, TrainingProcesses
from agent.process.jobs.cgroup import parse_cgroup
from agent.process.jobs.job import VARIABLES, job_of, user_name
from agent.process.jobs.kubelet import Kubelet
from agent.process.procfs import Process, Processes
from agent.system.on_change import OnChange
from store.schema.sample import Sample, Value

_AT_ONCE = 64
"""Processes that are looked up in one reading."""


class Job:
    """One row a GPU with training processes of a scheduler; of several processes the oldest tells."""

    def __init__(self, training: TrainingProcesses, processes: Processes, root: Path) -> None:
        self._training, self._processes, self._root = training, processes, root
        self._kubelet = Kubelet(root)
        self._known: dict[Process, Mapping[str, str]] = {}
        self._states = OnChange[str, tuple[tuple[str, Value], ...]]()

    def read(self, now: int) -> list[Sample]:
        """Rows of the GPUs with a job that is new, or due to be repeated."""
        living = sorted(self._training.living(now).values(), key=lambda trainer: trainer.process.start)
        there = {trainer.process for trainer in living}
        self._known = {process: job for process, job in self._known.items() if process in there}
        for trainer in [trainer for trainer in living if trainer.process not in self._known][:_AT_ONCE]:
            self._known[trainer.process] = self._look_up(trainer)
        states: dict[str, tuple[tuple[str, Value], ...]] = {}
        for trainer in living:
            if job := self._known.get(trainer.process):
                states.setdefault(trainer.gpu, tuple(job.items()))
        return [Sample("job", {"gpu": gpu, **dict(states[gpu])}) for gpu in self._states.due(now, states)]

    def close(self) -> None:
        """Nothing is open."""

    def _look_up(self, trainer: TrainingProcess) -> dict[str, str]:
        pid = trainer.process.pid
        placement = parse_cgroup(self._processes.cgroup(pid))
        user = user_name(self._processes.user(trainer.process), self._root)
        return job_of(placement, self._processes.variables(pid, VARIABLES), user, self._kubelet)


def open_source(context: Context) -> Job:
    """The source. Raises SourceUnavailableError without probes, which find the processes that train."""
    context.probes()
    return Job(context.training, context.processes, Path(context.config.root))
