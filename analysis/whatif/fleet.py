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
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

LOOK_NS = 120 * SECOND
EVERY_NS = 3600 * SECOND


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

    def add(self, found: Slowdown, names: dict[int, str], hours: float) -> None:
        """Add a look that stands for so many hours; `names` are those of its ranks."""
        spent = hours * found.gpus
        lost, named = spent * found.waste, [cause.kind for cause in causes(found) if cause.is_named]
        self.gpus, self.looks = max(self.gpus, found.gpus), self.looks + 1
        self.gpu_hours, self.lost = self.gpu_hours + spent, self.lost + lost
        (kind,) = lost_by_cause([found])
        self.by_cause[kind] += lost
        if named[:1] == [WORKER]:
            for rank in found.slowest:
                self.by_rank[names[rank]] += lost / len(found.slowest)


def read_losses(
    store: ReadableStore, first: int, end: int, tell: Callable[[int], None] = lambda time: None
) -> list[JobLoss]:
    """The jobs between two times (Unix ns), the one that lost most first; `tell` hears how far it has read.

    Up to two hours are read whole. Of more, two minutes of each hour stand for that hour. Raises StoreError.
    """
    jobs: dict[str, JobLoss] = {}
    for after, until, hours in looks(first, end):
        tasks = _tasks(store, after, until)
        for table in recorded.read_jobs(store, after, until):
            if len(table.ranks) < 2:
                continue
            name = _name(table, tasks)
            found = analyse(timeline(table), JobMeta(name))
            labels = zip(rank_numbers(table.ranks), table.machines, table.ranks, strict=True)
            job = jobs.setdefault(name, JobLoss(name))
            job.machines.update(table.machines)
            job.add(found, {number: f"{machine} {rank}" for number, machine, rank in labels}, hours)
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


def _tasks(store: ReadableStore, after: int, until: int) -> dict[str, str]:
    """By machine, the task that it worked for last."""
    if "task" not in store.tables():
        return {}
    rows = store.read("task", after - LOOK_NS, until).sort_by("time").to_pylist()
    return {row["machine"]: str(row.get("task") or "") for row in rows}
