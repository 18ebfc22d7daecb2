"""The scheduler's jobs of machines and GPUs at a time, from the table `job`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detector.topology.jobs import Jobs
    from detector.topology.parallelism import Task
    from store.schema.contract import Store


def read_jobs(store: Store, now: int) -> Jobs:
    """The jobs that the agents named until `now` (Unix ns) and have not stopped naming."""
    from detector.timeseries.rows import rows_of
    from detector.topology.jobs import FRESH_NS, Jobs  # loads numpy, which the agent's process must not

    jobs = Jobs()
    if "job" in store.tables():
        jobs.feed(rows_of("job", store.read("job", now - FRESH_NS, now)))
    return jobs


def read_named_tasks(store: Store, now: int) -> list[tuple[str, Task]]:
    """The tasks in the minute before `now` (Unix ns), each with the name that `tasks` shows."""
    from cli.queries.iteration_time import read_tasks

    found = read_tasks(store, now)
    names = read_jobs(store, now).names([list(task.machines) for task in found])
    return [(name or task.communicator[:8], task) for name, task in zip(names, found, strict=True)]


def is_meant(word: str, name: str, task: Task) -> bool:
    """Whether a user's word means this task: its name, also without the job's number, or its communicator's begin."""
    return word in (name, name.partition(" (")[0]) or (word != "" and task.communicator.startswith(word))
