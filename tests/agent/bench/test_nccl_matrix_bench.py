"""The matrix: each library, used in each way that programs use NCCL, with one set of assertions.

`make bench ARGS="-k matrix"` prints a table of libraries and uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.libraries.build import Libraries
from emulator.libraries.wheel import TRIED
from tests.agent.conftest import Watch
from tests.agent.nccl.ranks import Task, attached, rows_of, start_task

pytestmark = [pytest.mark.bench, pytest.mark.bpf]
ABORT_HANGS = ("2.23.4", "2.24.3")
REVOKES = ("emulated", "2.29.3", "2.32.3")
Use = Callable[["Bench"], None]


class Bench:
    """A task, and an agent beside it."""

    def __init__(self, task: Task, seen: Watch) -> None:
        self.task, self.seen = task, seen

    def rows(self, rank: int, ranks: int = 2) -> list[dict[str, Any]]:
        """Rows of one process."""
        return rows_of(self.task, rank, self.seen.rows, ranks)

    def counted(self, total: int, ranks: int = 2, comms: int = 1) -> list[dict[str, Any]]:
        """Rows once all ranks of communicators of that size have counted so many operations."""

        def found(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
            every = [row for rank in range(2) for row in rows_of(self.task, rank, rows, ranks)]
            right = [row for row in every if row["operations_total"] == total]
            return right if len(right) == 2 * comms else []

        return list(self.seen.until(found, 30))

    def waits(self, rank: int) -> dict[str, Any]:
        """The row of a rank that waits without progress."""

        def found(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
            return [row for row in rows_of(self.task, rank, rows) if (row.get("still_seconds") or 0) > 3.0]

        return dict(self.seen.until(found, 30)[0])


def one_communicator(bench: Bench) -> None:
    """Collectives one by one; a rank that does not come is waited for by name."""
    bench.task.both("reduce", "world", 11, 1000)
    one, other = bench.counted(11)
    assert one["comm"] == other["comm"]
    assert (one["rank"], other["rank"], one["counted_from"]) == (0, 1, "birth")
    bench.task.both("synchronize")
    bench.task.tell(0, "reduce", "world", 1, 400_000)
    row = bench.waits(0)
    assert (row["pending"], row["active_ratio"]) == (1.0, 1.0)
    assert row["waits_to_receive_from"] in (1.0, None)
    (other,) = bench.rows(1)
    assert (other["pending"], other["operations_total"]) == (0.0, 11)


def groups(bench: Bench) -> None:
    """Each call in a group counts."""
    for _ in range(3):
        bench.task.both("group", "world", 5, 1000)
    bench.counted(15)
    bench.task.both("synchronize")


def all_to_all(bench: Bench) -> None:
    """Send and Receive to all others in one group: each is an operation."""
    for _ in range(4):
        bench.task.both("exchange", "world", 1200)
    bench.counted(8)
    bench.task.both("synchronize")


def split(bench: Bench, share: bool = False) -> None:
    """A child has a name of its own and counts for itself."""
    bench.task.both("reduce", "world", 2, 1000)
    for rank in range(2):
        bench.task.tell(rank, "split", "child", 3, 1 - rank, share)
    for rank in range(2):
        bench.task.answer(rank)
    bench.task.both("reduce", "child", 7, 900)
    children = bench.counted(7)
    assert [row["rank"] for row in children] == [1, 0]
    assert len({row["comm"] for row in children} | {row["comm"] for row in bench.counted(2)}) == 2
    bench.task.both("synchronize")


def shared(bench: Bench) -> None:
    """A child that shares its parent's proxy: transfers of both are in one list, which tells of neither."""
    split(bench, share=True)
    for _ in range(20):
        bench.task.both("reduce", "child", 5, 400_000)
        bench.task.both("synchronize")
    rows = bench.seen.read()
    (first,) = [row for row in rows_of(bench.task, 0, rows) if row["operations_total"] == 107]
    assert first["active_ratio"] is not None
    if bench.task.nccl.parent.name != "2.21.5":  # shares proxies only from then on
        assert first["steps_done_total"] is None


def graphs(bench: Bench) -> None:
    """Replays call nothing: the row says that they are, and that they go on; a lost GPU leaves them unfinished."""
    bench.task.both("capture", "world", 3, 100_000)
    end = time.monotonic() + 60
    replayed: list[Any] = []
    while time.monotonic() < end and replayed != [1.0, 1.0]:
        bench.task.both("replay", 5)
        bench.task.both("synchronize")
        rows = bench.seen.read()
        replayed = [row["replayed"] for rank in range(2) for row in rows_of(bench.task, rank, rows)]
    assert replayed == [1.0, 1.0]
    (row,) = bench.rows(0)
    assert (row["operations_total"], row["pending"]) == (3, 0.0)
    bench.task.tell(1, "lose_gpu")
    bench.task.answer(1)
    for rank in range(2):
        bench.task.tell(rank, "replay", 1)
        bench.task.answer(rank)
    assert bench.waits(0)["pending"] == 1.0


def several_gpus(bench: Bench) -> None:
    """A process with a rank on each of two GPUs: each communicator is on its own GPU."""
    bench.task.both("init_devices", 2)
    bench.task.both("reduce_devices", 6, 1000)
    rows = bench.counted(6, ranks=4, comms=2)
    assert sorted((row["rank"], row["gpu"]) for row in rows) == [(0, "0"), (1, "1"), (2, "0"), (3, "1")]


def abort(bench: Bench) -> None:
    """A communicator that waits can be aborted, and is forgotten."""
    bench.task.tell(0, "reduce", "world", 1, 1000)
    bench.task.answer(0)
    bench.task.tell(0, "abort", "world")
    bench.task.answer(0)
    bench.seen.until(lambda rows: not rows_of(bench.task, 0, rows), 20)


def revoke(bench: Bench) -> None:
    """A revoked communicator has nothing under way, and is no hang."""
    bench.task.both("reduce", "world", 3, 1000)
    bench.counted(3)
    bench.task.both("synchronize")
    bench.task.both("revoke", "world")
    bench.seen.until(lambda rows: not rows_of(bench.task, 0, rows) and not rows_of(bench.task, 1, rows), 20)


USES: dict[str, Use] = {
    "one communicator": one_communicator,
    "split": split,
    "shared split": shared,
    "groups": groups,
    "all-to-all": all_to_all,
    "graphs": graphs,
    "several GPUs": several_gpus,
    "abort": abort,
    "revoke": revoke,
}


def not_there(library: str, use: str) -> str:
    """Why a library cannot be used so; empty: it can."""
    if use == "abort" and library in ABORT_HANGS:
        return "ncclCommAbort itself waits for ever while an operation is at work"
    if use == "revoke" and library not in REVOKES:
        return "has no ncclCommRevoke"
    if use in ("graphs", "several GPUs") and library == "emulated":
        return "the emulated libnccl does not play this"
    return ""


@pytest.fixture
def bench(
    watch: Callable[..., Watch], emulated: Libraries, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Bench]:
    """A task on the library asked for, with an agent with its probes on."""
    library, use = request.param
    if reason := not_there(library, use):
        pytest.skip(f"{library}: {reason}")
    task = start_task(library, emulated, tmp_path, 2 if use == "several GPUs" else 1)
    seen = watch(sources=("probe", "nccl"))
    seen.wait_attached(task.nccl)
    seen.until(lambda _: attached(seen, task.nccl) >= set(task.pids))
    yield Bench(task, seen)
    task.kill()


@pytest.mark.parametrize(
    ("bench", "use"),
    [pytest.param((library, use), use, id=f"{library}, {use}") for use in USES for library in ("emulated", *TRIED)],
    indirect=["bench"],
)
def test_matrix(bench: Bench, use: str) -> None:
    """Counts, names, states and GPUs of communicators are right for each library and each use."""
    if use != "several GPUs":
        bench.task.both("init")
    USES[use](bench)
    print(f"\n{bench.task.nccl.parent.name:10} {use:17} right", end="")
