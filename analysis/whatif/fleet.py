"""GPU-hours that stragglers cost the jobs of a store, over an hour or weeks, by cause and by rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from analysis.traces import recorded
from analysis.traces.operations import Operations as Table
from analysis.whatif.causes import WORKER, causes, lost_by_cause
from analysis.whatif.meta_file import JobMeta
from analysis.whatif.slowdown import Slowdown, analyse
from analysis.whatif.timeline import rank_numbers, timeline
from detector.stats.arrays import Floats
from detector.timeseries.rows import rows_of
from detector.topology.parallelism import PIPELINE, find_tasks
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

LOOK_NS = 120 * SECOND
EVERY_NS = 3600 * SECOND
_DAY_NS = 86_400 * SECOND
_OF_TASKS = ("comm", "rank", "ranks", "pid", "operation", "operations_total", "iteration_seconds")


@dataclass(slots=True)
class JobLoss:
    """What stragglers cost one job over all looks at it."""

    name: str
    """Its task, else its largest communicator."""
    machines: set[str] = field(default_factory=set)
    gpus: int = 0
    """The most at any look."""
    looks: int = 0
    gpu_hours: float = 0.0
    lost: float = 0.0
    """GPU-hours."""
    by_cause: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """GPU-hours by the first named cause; they sum to all that was lost."""
    by_rank: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """GPU-hours of looks in which slow workers are that cause, by machine and rank."""
    by_day: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """GPU-hours lost, by the day (since 1970) in which a look ends."""
    stage_ranks: int = 0
    """Ranks of one pipeline stage, by the distance of ranks in pipeline communicators; 0: not known, or no pipeline."""
    _slowdown: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """By rank, the sum of its slowdown × hours."""
    _hours: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, found: Slowdown, names: dict[int, str], hours: float, until: int) -> None:
        """Add a look until that time (Unix ns) that stands for so many hours; `names` are those of its ranks."""
        for rank, slowdown in found.by_dp_rank.items():
            self._slowdown[rank] += slowdown * hours
            self._hours[rank] += hours
        spent = hours * found.gpus
        lost, named = spent * found.waste, [cause.kind for cause in causes(found) if cause.is_named]
        self.gpus, self.looks = max(self.gpus, found.gpus), self.looks + 1
        self.gpu_hours, self.lost = self.gpu_hours + spent, self.lost + lost
        (kind,) = lost_by_cause([found])
        self.by_cause[kind] += lost
        self.by_day[until // _DAY_NS] += lost
        if named[:1] == [WORKER]:
            for rank in found.slowest:
                self.by_rank[names[rank]] += lost / len(found.slowest)

    def workers(self) -> Floats:
        """[stage, rank within the stage]: the mean slowdown by that rank alone; NaN where none was seen."""
        last = max(self._hours, default=0)
        width = self.stage_ranks or last + 1
        grid = np.full((last // width + 1, width), np.nan)
        for rank, hours in self._hours.items():
            grid[divmod(rank, width)] = self._slowdown[rank] / hours
        return grid


def read_losses(
    store: ReadableStore, first: int, end: int, tell: Callable[[int], None] = lambda time: None
) -> list[JobLoss]:
    """The jobs between two times (Unix ns), the one that lost most first; `tell` hears how far it has read.

    Up to two hours are read whole. Of more, two minutes of each hour stand for that hour. Raises StoreError.
    """
    jobs: dict[str, JobLoss] = {}
    for after, until, hours in looks(first, end):
        tasks, stages = _tasks(store, after, until), _stages(store, after, until)
        for table in recorded.read_jobs(store, after, until):
            if len(table.ranks) < 2:
                continue
            name = _name(table, tasks)
            found = analyse(timeline(table), JobMeta(name))
            labels = zip(rank_numbers(table.ranks), table.machines, table.ranks, strict=True)
            job = jobs.setdefault(name, JobLoss(name))
            job.machines.update(table.machines)
            job.stage_ranks = max((stages.get(machine, 0) for machine in table.machines), default=0) or job.stage_ranks
            job.add(found, {number: f"{machine} {rank}" for number, machine, rank in labels}, hours, until)
        tell(until)
    return sorted(jobs.values(), key=lambda job: -job.lost)


def looks(first: int, end: int) -> Iterator[tuple[int, int, float]]:
    """Begin and end of what is read (Unix ns), and the hours that it stands for."""
    if end - first <= 2 * EVERY_NS:
        yield first, end, (end - first) / EVERY_NS
        return
    for until in range(end, first, -EVERY_NS):
        yield max(first, until - LOOK_NS), until, min(until - first, EVERY_NS) / EVERY_NS


def _name(table: Table, tasks: dict[str, str]) -> str:
    """The task of most of its machines, else its communicator with most operations."""
    said = Counter(tasks[machine] for machine in table.machines if tasks.get(machine))
    largest = table.communicators[int(np.bincount(table.communicator).argmax())]
    return said.most_common(1)[0][0] if said else largest


def _stages(store: ReadableStore, after: int, until: int) -> dict[str, int]:
    """By machine, the ranks of one pipeline stage of the task on it, where it has a pipeline."""
    rows = rows_of("nccl", store.read("nccl", max(after, until - LOOK_NS // 2), until, _OF_TASKS))
    strides = {
        task: max((group.stride for group in task.groups if group.kind == PIPELINE), default=0)
        for task in find_tasks(rows)
    }
    return {machine: stride for task, stride in strides.items() for machine in task.machines}


def _tasks(store: ReadableStore, after: int, until: int) -> dict[str, str]:
    """By machine, the task that it worked for last."""
    if "task" not in store.tables():
        return {}
    rows = store.read("task", after - LOOK_NS, until).sort_by("time").to_pylist()
    return {row["machine"]: str(row.get("task") or "") for row in rows}
