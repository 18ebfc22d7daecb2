"""Which machines train together where no task table says so."""

from __future__ import annotations

import pytest

from detector.config import Config
from detector.methods.progress.method import Progress
from detector.timeseries.rows import rows_of
from detector.topology.tasks import EVERYBODY, Tasks
from tests.detector.topology.test_rank_table import REDUCE, START, Columns, table

MACHINES = [f"m{number}" for number in range(7)]


def tasks_of(comms: list[str], ranks: float) -> dict[str, str | None]:
    """By machine, its task: each of five machines has two ranks in a communicator of so many; two have none."""
    columns: Columns = {
        "machine": [name for name in MACHINES[:5] for _ in range(2)],
        "gpu": ["0", "1"] * 5,
        "comm": [comm for comm in comms for _ in range(2)],
        "rank": [float(at) for at in range(10)],
        "ranks": ranks,
        "operation": REDUCE,
        "operations_total": 300.0,
        "pending": 0.0,
    }
    progress, tasks = Progress(Config()), Tasks()
    tasks.seen |= set(MACHINES)
    for second in range(3):
        rows = {"nccl": rows_of("nccl", table(START + second * 10**9, (), columns))}
        tasks.feed(rows["nccl"])
        tasks.turn(START + second * 10**9)
        progress.step(START + second * 10**9, rows, tasks)
    return {name: tasks.task_of(name) for name in MACHINES}


@pytest.mark.parametrize(
    ("comms", "ranks", "tasks"),
    [
        ("abcde", 2.0, ["task of m0", "task of m1", "task of m2", "task of m3", "task of m4"]),
        ("abcde", 3.0, [EVERYBODY] * 5),
        ("aaaaa", 10.0, ["task of m0"] * 5),
    ],
)
def test_machines_with_complete_communicators_of_their_own_train_apart(
    comms: str, ranks: float, tasks: list[str]
) -> None:
    """Both ranks of each communicator are on one machine; while a rank of it is not read, all may be one task."""
    found = tasks_of(list(comms), ranks)
    assert [found[name] for name in MACHINES[:5]] == tasks
    alone = None if tasks == ["task of m0"] * 5 else EVERYBODY
    assert [found[name] for name in MACHINES[5:]] == [alone, alone]
