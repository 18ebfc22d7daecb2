"""What holds of NCCL holds of the emulated libnccl and of NVIDIA's own, in every version that is here.

NVIDIA's run on the emulated GPU (emulator/libraries); `make nccl NCCL="2.21.5 2.27.3"` fetches some.
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

pytestmark = pytest.mark.bpf
ABORT_HANGS = ("2.23.4", "2.24.3")
"""Versions with an ncclCommAbort that itself waits for ever while an operation is at work."""


@pytest.fixture(params=["emulated", *TRIED])
def task(request: pytest.FixtureRequest, emulated: Libraries, tmp_path: Path) -> Iterator[Task]:
    """A task on one of the libraries."""
    made = start_task(request.param, emulated, tmp_path)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def agent(lasting_watch: Callable[..., Watch]) -> Watch:
    """One agent for all tasks: it reads each library once."""
    return lasting_watch(sources=("probe", "nccl", "cuda"))


@pytest.fixture
def probed(agent: Watch, task: Task) -> Watch:
    """The agent with its probes on the library, before any communicator is made."""
    for library in (task.nccl, task.cudart):
        agent.wait_attached(library)
        agent.until(lambda _, path=library: attached(agent, path) >= set(task.pids))
    return agent


@pytest.fixture
def seen(probed: Watch, task: Task) -> Watch:
    """The same; then the world is made."""
    task.both("init")
    return probed


def counted(task: Task, seen: Watch, total: int) -> list[dict[str, Any]]:
    """The worlds' rows once both have counted so many operations."""

    def found(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        both = [row for rank in range(2) for row in rows_of(task, rank, rows)]
        return both if [row["operations_total"] for row in both] == [total, total] else []

    return list(seen.until(found, 20))


def test_findings_2_and_3_what_the_program_calls_is_counted(task: Task, seen: Watch) -> None:
    """Each call of a collective, of a send or a receive is one operation, in a group too, from the birth on.

    NCCL's own waits, in the CUDA runtime that it carries for itself, are none of the program's.
    """
    task.both("reduce", "world", 7, 1000)
    one, other = counted(task, seen, 7)
    assert (one["rank"], other["rank"], one["comm"] == other["comm"]) == (0, 1, True)
    assert (one["counted_from"], other["counted_from"]) == ("birth", "birth")
    task.both("group", "world", 5, 1100)
    counted(task, seen, 12)
    task.both("exchange", "world", 1200)
    counted(task, seen, 14)
    task.both("every", "world", 1300)
    counted(task, seen, 20)
    calls = task.both("synchronize")
    assert seen.context.kernel is not None
    for rank, pid in enumerate(task.pids):
        entries = seen.context.kernel.maps["processes"].rows()
        (entry,) = entries[entries["tgid"] == pid]
        assert int(entry["synchronize_calls"]) == calls[rank]["cudaStreamSynchronize"] == 1
    task.both("destroy", "world")


def test_findings_4_5_a_communicator_made_without_blocking_counts_from_its_birth(task: Task, probed: Watch) -> None:
    """Where calls return before a communicator is made it has its ranks, and all of its operations are counted."""
    task.both("init_unblocked")
    task.both("reduce_unblocked", "world", 6, 1000)
    one, other = counted(task, probed, 6)
    assert (one["rank"], other["rank"], one["comm"] == other["comm"]) == (0, 1, True)
    assert (one["counted_from"], other["counted_from"]) == ("birth", "birth")
    task.both("synchronize")


@pytest.mark.parametrize("task", ["2.32.3"], indirect=True)
def test_findings_2_a_suspended_communicator_has_nothing_pending(task: Task, seen: Watch) -> None:
    """A communicator that gave its memory back is idle, not hung, and counts on once it has it again."""
    task.both("reduce", "world", 5, 1000)
    task.both("synchronize")
    counted(task, seen, 5)
    task.both("suspend", "world")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        rows = [row for rank in range(2) for row in rows_of(task, rank, seen.read())]
        assert [(row["operations_total"], row["pending"] or 0.0) for row in rows] == [(5, 0.0)] * 2
    task.both("resume", "world")
    task.both("reduce", "world", 3, 1000)
    counted(task, seen, 8)
    task.both("synchronize")


def test_findings_3_children_are_known_on_all_ranks(task: Task, seen: Watch) -> None:
    """The child of a split has one name on both ranks, another one than its parent, and counts for itself."""
    for rank in range(2):
        task.tell(rank, "split", "child", 3, 1 - rank)
    for rank in range(2):
        task.answer(rank)
    task.both("reduce", "child", 4, 900)
    task.both("synchronize")

    def children(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        both = [row for rank in range(2) for row in rows_of(task, rank, rows) if row["operations_total"] == 4]
        return both if len(both) == 2 else []

    one, other = seen.until(children, 20)
    assert (one["rank"], other["rank"]) == (1, 0)
    assert one["comm"] == other["comm"]


def test_findings_4_3_a_rank_that_does_not_come_is_waited_for(task: Task, seen: Watch) -> None:
    """A rank that entered waits, active without progress, and names the rank it waits for; others do not.

    Its work is unfinished, though no framework asks after errors here, until it aborts and is forgotten.
    """
    task.both("reduce", "world", 2, 1000)
    task.both("synchronize")
    task.tell(0, "reduce", "world", 1, 400_000)

    def waits(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return [row for row in rows_of(task, 0, rows) if (row.get("still_seconds") or 0) > 1.5]

    (row,) = seen.until(waits, 30)
    assert row["active_ratio"] == 1.0
    assert row["waits_to_receive_from"] in (1.0, None)  # versions before 2.23 do not tell
    assert row["waits_for_credit_from"] in (-1.0, None)  # nothing is ready that the network does not accept
    assert (row["waits_channel"], row["waits_net_device"]) == (0.0, 0.0)
    (other,) = rows_of(task, 1, seen.rows)
    assert not other.get("active_ratio")  # null where no sample has found it at work before
    assert other["operations_total"] == 2
    seen.until(lambda rows: [row for row in rows_of(task, 0, rows) if row["pending"]], 30)
    (other,) = rows_of(task, 1, seen.rows)
    assert not other["pending"]
    if task.nccl.parent.name not in ABORT_HANGS:
        task.answer(0)
        task.tell(0, "abort", "world")
        task.answer(0)
        seen.until(lambda rows: not rows_of(task, 0, rows), 20)


def test_findings_1_a_gpu_that_comes_late_leaves_data_lying(task: Task, seen: Watch) -> None:
    """Of two ranks that have entered, the one that computes still awaits nothing: data lies there for its GPU."""
    task.both("reduce", "world", 2, 1000)
    task.both("synchronize")
    task.tell(1, "compute", 12.0)
    task.answer(1)
    task.both("reduce", "world", 1, 400_000)

    def stands(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        both = [row for rank in range(2) for row in rows_of(task, rank, rows)]
        return both if all((row.get("still_seconds") or 0) > 3.0 for row in both) else []

    waiting, late = seen.until(stands, 12)
    assert (waiting["active_ratio"], late["active_ratio"]) == (1.0, 1.0)
    assert (waiting["receive_pending_ratio"], waiting["waits_for_gpu"]) == (1.0, 0.0)
    assert (late["receive_pending_ratio"], late["waits_for_gpu"]) == (0.0, 1.0)
    task.both("synchronize")


def test_findings_4_2_a_late_agent_counts_as_the_library_does(task: Task, watch: Callable[..., Watch]) -> None:
    """Groups before the agent came are counted call by call, or the row says that they are not."""
    task.both("init")
    for _ in range(5):
        task.both("group", "world", 4, 1000)
    task.both("synchronize")
    seen, total = watch(sources=("probe", "nccl")), 20
    seen.wait_attached(task.nccl)
    seen.until(lambda _: attached(seen, task.nccl) >= set(task.pids))
    attachments = seen.context.attachments
    assert attachments is not None
    seen.until(lambda _: all(one.layout for one in attachments.libraries.values() if one.path == str(task.nccl)))
    rows: list[dict[str, Any]] = []
    for _ in range(40):
        task.both("reduce", "world", 3, 1000)
        task.both("synchronize")
        total += 3
        rows = [row for rank in range(2) for row in rows_of(task, rank, seen.read())]
        if len(rows) == 2 and all(row["counted_from"] for row in rows):
            break
    known = task.nccl.parent.name not in ("2.21.5", "2.23.4")
    assert [row["counted_from"] for row in rows] == ["memory" if known else "attach"] * 2
    assert [row["operations_total"] for row in rows] == [total if known else total - 20] * 2
