"""`peerwatch tasks`: training tasks, found by their communicators, with the scheduler's jobs."""

from __future__ import annotations

import math
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import time_format
from cli.config import locate_store, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.iteration_time import has_communicators, pace_json, pace_words, read_paces, read_tasks
from cli.queries.jobs import read_jobs
from cli.terminal import console, say_json
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from detector.model.job import Job
    from detector.topology.jobs import Jobs
    from detector.topology.parallelism import Group, Task
    from store.schema.contract import Store


_JUST_NOW_NS = 10**9
_JOBS = 4
"""Jobs that are listed of one task: each pod of Kubernetes is one."""


def tasks(
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    at: Annotated[
        str, typer.Option(help="State at an earlier time: a duration ago (12m) or a time (2026-05-01T12:00, UTC).")
    ] = "0s",
) -> None:
    """Show the training tasks: machines, ranks, parallel groups, iteration time, age."""
    clock = time.time_ns()
    now = time_format.point(at, clock)
    place, settings = locate_store(store, config)
    with closing(open_place(place, settings=settings)) as source:
        found, starts, jobs = read_tasks(source, now), _starts(source, now), read_jobs(source, now)
        paces = read_paces(source, found, now)
        anonymous = not found and has_communicators(source, now)
    if not found:
        raise StoreError(_nothing(now, clock, place, anonymous))
    names = jobs.names([list(task.machines) for task in found])
    if json:
        listed = [
            {"name": name or None, "jobs": [job.as_json() for job in _jobs_of(task, jobs)]}
            | {**as_json(task, starts, now), "irregular": [pace_json(one) for one in pace]}
            for task, pace, name in zip(found, paces, names, strict=True)
        ]
        say_json({"time": now, "tasks": listed})
        return
    screen = console()
    for task, pace, name in zip(found, paces, names, strict=True):
        screen.print(_headline(as_json(task, starts, now), name))
        for line in list(dict.fromkeys(job.words for job in _jobs_of(task, jobs)))[:_JOBS]:
            screen.print(f"  {line}")
        for one in pace:
            screen.print("  " + pace_words(one))
        for group in task.groups:
            screen.print("  " + in_words(group))


def _nothing(now: int, clock: int, place: str, anonymous: bool) -> str:
    """Why there is no task at `now` (Unix ns), and what to do; `anonymous`: communicators name no processes."""
    if anonymous:
        return (
            f"{place} does not say which processes its communicators have, so has no tasks: simulated readings are so"
        )
    if clock - now < _JUST_NOW_NS:
        return "no communicator in the last minute: does the agent run on the training machines?"
    return f"{place} holds no communicator in the minute before {time_format.shown(now)} UTC: use another --at"


def _starts(source: Store, now: int) -> dict[tuple[str, int], float]:
    """(machine, pid) -> start time in Unix seconds, where an agent recorded it."""
    if "startup" not in source.tables():
        return {}
    rows = source.read("startup", 0, now, ("pid", "start_time_seconds")).to_pylist()
    numbers = [(row["machine"], row.get("pid"), row.get("start_time_seconds")) for row in rows]
    return {
        (machine, int(pid)): float(at)
        for machine, pid, at in numbers
        if pid is not None and at is not None and math.isfinite(pid) and math.isfinite(at)
    }


def as_json(task: Task, starts: dict[tuple[str, int], float], now: int) -> dict[str, Any]:
    """A task in `tasks --json`; seconds, null where unknown."""
    begun = [starts[process] for process in task.processes if process in starts]
    return {
        "communicator": task.communicator,
        "ranks": task.ranks,
        "ranks_read": len(task.processes),
        "machines": list(task.machines),
        "iteration_seconds": _number(task.iteration_seconds),
        "age_seconds": now / 1e9 - min(begun) if begun else None,
        "groups": [
            {
                "kind": group.kind,
                "size": group.size,
                "count": group.count,
                "machines": group.machines,
                "stride": group.stride or None,
                "operations_per_second": _number(group.operations_per_second),
            }
            for group in task.groups
        ],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _jobs_of(task: Task, jobs: Jobs) -> list[Job]:
    """The jobs of its machines, each once."""
    return list(dict.fromkeys(job for machine in task.machines if (job := jobs.of(machine))))


def _headline(task: dict[str, Any], name: str) -> str:
    machines, seconds, age = task["machines"], task["iteration_seconds"], task["age_seconds"]
    shown = ", ".join(machines) if len(machines) <= 4 else f"{machines[0]} … {machines[-1]}"
    parts = [f"{task['ranks_read']} of {task['ranks']} ranks on {len(machines)} machines ({shown})"]
    parts += [f"{seconds:.3g} s per iteration"] if seconds is not None else []
    parts += [f"for {time_format.ago(age)}"] if age is not None else []
    return f"task {name or task['communicator'][:8]}: " + ", ".join(parts)


def in_words(group: Group) -> str:
    """One line on a kind of parallel group."""
    where = "within a machine" if group.machines == 1 else f"over {group.machines} machines"
    rate = group.operations_per_second
    busy = f", {rate:.3g} operations per second" if math.isfinite(rate) else ""
    step = f", every {group.stride} ranks" if group.stride > 1 else ""
    return f"{group.kind:<9}{group.count:>4} × {group.size} ranks {where}{step}{busy}"
