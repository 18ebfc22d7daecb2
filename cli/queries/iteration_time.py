"""Changes of the iteration time of tasks, as text and JSON; they name no machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli import time_format

if TYPE_CHECKING:
    from detector.explain.iteration_time import IterationAnomaly
    from detector.topology.parallelism import Task
    from store.schema.contract import Store

COLUMNS = ("comm", "rank", "ranks", "pid", "operation", "operations_total", "iteration_seconds")
LOOK_NS = 60 * 10**9
_AROUND_NS = 1800 * 10**9


def read_tasks(source: Store, now: int) -> tuple[Task, ...]:
    """The tasks that were read in the minute before `now` (Unix ns)."""
    from detector.timeseries.rows import rows_of
    from detector.topology.parallelism import find_tasks  # loads numpy, which the agent's process must not

    return find_tasks(rows_of("nccl", source.read("nccl", now - LOOK_NS, now, COLUMNS)))


def has_communicators(source: Store, now: int) -> bool:
    """Whether any communicator was read in that minute, be its processes known or not."""
    names = source.read("nccl", now - LOOK_NS, now, ("comm",)).to_pydict().get("comm", [])
    return any(names)


def read_paces(source: Store, found: tuple[Task, ...], now: int) -> list[tuple[IterationAnomaly, ...]]:
    """The iteration-time anomalies of each task in the hour before `now` (Unix ns)."""
    from detector.explain.iteration_time import LOOK_NS, read_irregular

    return read_irregular(source, found, now - LOOK_NS, now)


def pace_of(source: Store, machine: str, since: int) -> tuple[IterationAnomaly, ...]:
    """The iteration-time anomalies in the task of a machine within half an hour of `since` (Unix ns)."""
    from detector.explain.iteration_time import read_irregular

    found = [task for task in read_tasks(source, since + LOOK_NS // 2) if machine in task.machines][:1]
    return next(iter(read_irregular(source, found, since - _AROUND_NS, since + _AROUND_NS)), ())


def pace_json(one: IterationAnomaly) -> dict[str, Any]:
    """The JSON object: times in Unix ns, iteration time in seconds; `until` is null while it lasts."""
    seconds = {"before_seconds": round(one.before, 4), "seconds": round(one.after, 4)}
    return {"kind": one.kind, "since": one.since, "until": one.until, **seconds, "times": one.times}


def pace_words(one: IterationAnomaly) -> str:
    """One line, times in UTC."""
    begun, over = time_format.shown(one.since)[-8:], time_format.shown(one.until)[-8:] if one.until else ""
    if one.kind == "spike":
        return f"one iteration of {one.after:.3g} s at {begun}, usually {one.before:.3g} s"
    if one.kind == "fluctuation":
        when = f"from {begun} to {over}" if over else f"since {begun}"
        return f"{one.times} irregular iterations {when}, up to {one.after:.3g} s, usually {one.before:.3g} s"
    when = f"was slower from {begun} to {over}" if over else f"slower since {begun}"
    return f"{when}: {one.before:.3g} s -> {one.after:.3g} s"
