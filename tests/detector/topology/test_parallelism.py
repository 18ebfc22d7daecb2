"""Tasks and their parallel groups, found from communicators alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.timeseries.rows import rows_of
from detector.topology.parallelism import Task, find_tasks
from store.schema.time import SECOND

START = 1_900_000_000 * SECOND
KINDS = {"tensor": ("AllReduce", 96.0), "pipeline": ("Send", 16.0), "data": ("ReduceScatter", 7.0)}
EXPERT = {"expert": ("AlltoAll", 48.0)}


class Fleet:
    """Rows of `nccl` for tasks laid out as Megatron does: tensor ranks are neighbours, then data, then pipeline."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def row(self, at: int, machine: str, pid: int, comm: str, **given: Any) -> None:
        """One reading, `at` seconds after the start."""
        slot = str(sum(row["pid"] == pid and row["time"] == START + at * SECOND for row in self.rows))
        fixed = {"time": START + at * SECOND, "machine": machine, "gpu": str(pid % 8), "slot": slot, "pid": float(pid)}
        self.rows.append({**fixed, "comm": comm, **given})

    def task(self, name: str, sizes: dict[str, int], machines: list[str], *, first_pid: int, span: range) -> None:
        """One task, of 8 ranks a machine at most, read at these seconds."""
        world = int(np.prod(list(sizes.values())))
        each = -(-world // len(machines))
        kinds = KINDS | EXPERT
        for rank in range(world):
            machine, pid = machines[rank // each], first_pid + rank
            for at in span:
                given = {"operations_total": 3.0 * at, "iteration_seconds": 1.25}
                self.row(
                    at, machine, pid, f"{name}-world", rank=rank, ranks=world, operation="AllReduce:f32:1", **given
                )
                stride = 1
                for group, size in sizes.items():
                    operation, rate = kinds[group]
                    place = rank // stride % size
                    comm = f"{name}-{group}-{rank - place * stride}"
                    given["operations_total"] = rate * at
                    operation = f"{operation}:bf16:4096"
                    if 1 < size < world:  # a group as big as the world is the world
                        self.row(at, machine, pid, comm, rank=place, ranks=size, operation=operation, **given)
                    stride *= size

    def find(self) -> tuple[Task, ...]:
        """What is found in all rows."""
        return find_tasks(rows_of("nccl", pa.Table.from_pylist(self.rows)))


def groups(task: Task) -> dict[str, tuple[int, int, int, int]]:
    """By kind: size, count, machines, stride."""
    return {one.kind: (one.size, one.count, one.machines, one.stride) for one in task.groups}


def test_groups_of_a_task_over_machines() -> None:
    """Tensor, data and pipeline groups are distinguished by where they lie and what they do."""
    fleet = Fleet()
    fleet.task("a", {"tensor": 2, "data": 4, "pipeline": 2}, ["m1", "m2", "m3", "m4"], first_pid=100, span=range(9))
    (task,) = fleet.find()
    assert (task.communicator, task.ranks, len(task.processes)) == ("a-world", 16, 16)
    assert task.machines == ("m1", "m2", "m3", "m4")
    assert groups(task) == {
        "tensor": (2, 8, 1, 1),
        "data": (4, 4, 2, 2),
        "pipeline": (2, 8, 2, 8),
        "world": (16, 1, 4, 1),
    }
    rates = {one.kind: one.operations_per_second for one in task.groups}
    assert rates == {"tensor": 96.0, "data": 7.0, "pipeline": 16.0, "world": 3.0}
    assert task.iteration_seconds == 1.25


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({"tensor": 2, "data": 4}, {"tensor": (2, 4, 1, 1), "data": (4, 2, 1, 2), "world": (8, 1, 1, 1)}),
        ({"tensor": 4, "pipeline": 2}, {"tensor": (4, 2, 1, 1), "pipeline": (2, 4, 1, 4), "world": (8, 1, 1, 1)}),
        ({"data": 4, "pipeline": 2}, {"data": (4, 2, 1, 1), "pipeline": (2, 4, 1, 4), "world": (8, 1, 1, 1)}),
        ({"expert": 4, "data": 2}, {"expert": (4, 2, 1, 1), "data": (2, 4, 1, 4), "world": (8, 1, 1, 1)}),
        ({"data": 8}, {"data": (8, 1, 1, 1)}),
    ],
)
def test_groups_of_a_task_on_one_machine(sizes: dict[str, int], found: dict[str, Any]) -> None:
    """Traffic and operations distinguish the groups of a task on one machine."""
    fleet = Fleet()
    fleet.task("b", sizes, ["m5"], first_pid=200, span=range(7))
    (task,) = fleet.find()
    assert groups(task) == found


def test_two_tasks_on_one_machine_are_apart() -> None:
    """Processes that share a machine and no communicator belong to different tasks."""
    fleet = Fleet()
    fleet.task("c", {"tensor": 2, "data": 2}, ["m6", "m7"], first_pid=300, span=range(5))
    fleet.task("d", {"data": 3}, ["m6"], first_pid=400, span=range(5))
    first, second = fleet.find()
    assert (first.communicator, first.machines) == ("c-world", ("m6", "m7"))
    assert (second.communicator, second.machines) == ("d-world", ("m6",))
    assert {pid for _, pid in second.processes} == {400, 401, 402}


def test_a_restarted_task_is_another_one() -> None:
    """A task without live processes is not shown any more; the next task has new processes."""
    fleet = Fleet()
    fleet.task("e", {"data": 4}, ["m8"], first_pid=500, span=range(20))
    fleet.task("f", {"data": 4}, ["m8"], first_pid=600, span=range(25, 40))
    (task,) = fleet.find()
    assert task.communicator == "f-world"
    assert {pid for _, pid in task.processes} == {600, 601, 602, 603}


def test_a_new_communicator_replaces_the_old_one() -> None:
    """The same processes on a new communicator are one task, with its groups once."""
    fleet = Fleet()
    fleet.task("g", {"tensor": 2, "data": 2}, ["m9", "m10"], first_pid=700, span=range(20))
    fleet.task("h", {"tensor": 2, "data": 2}, ["m9", "m10"], first_pid=700, span=range(20, 40))
    (task,) = fleet.find()
    assert task.communicator == "h-world"
    assert groups(task) == {"tensor": (2, 2, 1, 1), "data": (2, 2, 2, 2), "world": (4, 1, 2, 1)}


def test_a_silent_machine_does_not_hide_its_task() -> None:
    """Machines with agents that fell silent a moment ago still count; long silent ones do not."""
    fleet = Fleet()
    fleet.task("i", {"data": 8}, ["m11", "m12", "m13", "m14"], first_pid=800, span=range(60))
    fleet.rows = [
        row for row in fleet.rows if row["time"] < START + {"m12": 45, "m13": 20}.get(row["machine"], 60) * SECOND
    ]
    (task,) = fleet.find()
    assert task.machines == ("m11", "m12", "m14")


def test_rows_that_say_nothing() -> None:
    """Rows without a communicator's name or a process give no task; unknown numbers stay unknown."""
    fleet = Fleet()
    fleet.row(1, "m15", 900, "")
    assert fleet.find() == ()
    fleet.row(2, "m15", 901, "k-world", operation=None, rank=None, ranks=None, operations_total=None)
    (task,) = fleet.find()
    assert (task.ranks, task.processes) == (1, (("m15", 901),))
    assert np.isnan(task.iteration_seconds)
    assert np.isnan(task.groups[0].operations_per_second)
