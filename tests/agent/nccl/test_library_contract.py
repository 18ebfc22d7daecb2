"""What holds of NCCL holds of the emulated libnccl and of NVIDIA's own, in every version that is here.

NVIDIA's run on the emulated GPU (emulator/libraries); `make nccl NCCL="2.21.5 2.27.3"` fetches some.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.hardware.nvml_state import Gpus
from emulator.libraries.build import Libraries
from emulator.libraries.wheel import TRIED, find
from emulator.shared import fabric
from tests.agent.conftest import Watch

pytestmark = pytest.mark.bpf
ROOT = Path(__file__).resolve().parents[3]
ABORT_HANGS = ("2.23.4", "2.24.3")


class Task:
    """Two ranks, each on a machine of its own as NCCL sees it."""

    def __init__(self, folder: Path, libraries: Path, real: bool) -> None:
        fabric.create(folder / "fabric", 2, 1)
        Gpus(folder / "gpus", create=1)
        environment = {**os.environ, "EMULATED_GPUS": str(folder / "gpus")}
        order = [sys.executable, "-m", "tests.nccl_rank"]
        place = ["2", str(folder), str(libraries), *(["real"] if real else [])]
        self.fabric = fabric.Fabric(folder / "fabric")
        self.nccl, self.cudart = ((libraries / name).resolve() for name in ("libnccl.so.2", "libcudart.so.12"))
        self.ranks = [
            subprocess.Popen(
                [*order, str(rank), *place],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        self.pids = [int(self._answer(rank)["pid"]) for rank in range(2)]

    def tell(self, rank: int, *order: Any) -> None:
        """Give one rank an order."""
        pipe = self.ranks[rank].stdin
        assert pipe is not None
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()

    def _answer(self, rank: int) -> dict[str, Any]:
        pipe = self.ranks[rank].stdout
        assert pipe is not None
        line = pipe.readline()
        assert line, f"rank {rank} ended early; its standard error says why"
        found: dict[str, Any] = json.loads(line)
        return found

    def both(self, *order: Any) -> list[dict[str, int]]:
        """Give both the same order; how often each has called what so far."""
        for rank in range(2):
            self.tell(rank, *order)
        return [self._answer(rank)["calls"] for rank in range(2)]

    def kill(self) -> None:
        """End both."""
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


@pytest.fixture(params=["emulated", *TRIED])
def task(request: pytest.FixtureRequest, emulated: Libraries, tmp_path: Path) -> Iterator[Task]:
    """A task on one of the libraries."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for library in emulated.folder.iterdir():
        (folder / library.name).symlink_to(library)
    if request.param != "emulated":
        found = find(request.param)
        if found is None:
            pytest.skip(f"NVIDIA's libnccl {request.param} is not here: make nccl NCCL={request.param}")
        (folder / "libnccl.so.2").unlink()
        (folder / "libnccl.so.2").symlink_to(found)
    made = Task(tmp_path, folder, request.param != "emulated")
    yield made
    made.kill()


@pytest.fixture
def seen(watch: Callable[..., Watch], task: Task) -> Watch:
    """An agent with its probes on the library; then the world is made."""
    found = watch(sources=("probe", "nccl", "cuda"))
    for library in (task.nccl, task.cudart):
        found.wait_attached(library)
        found.until(lambda _, path=library: attached(found, path) >= set(task.pids))
    task.both("init")
    return found


def attached(seen: Watch, library: Path) -> set[int]:
    """The processes that map a library with probes."""
    assert seen.context.attachments is not None
    users = [one.users for one in seen.context.attachments.libraries.values() if one.path == str(library)]
    return {process.pid for some in users for process in some}


def rows_of(task: Task, rank: int, rows: dict[str, list[dict[str, Any]]], ranks: int = 2) -> list[dict[str, Any]]:
    """A rank's rows of communicators of that size."""
    return [row for row in rows.get("nccl", ()) if row["pid"] == task.pids[rank] and row["ranks"] == ranks]


def counted(task: Task, seen: Watch, total: int) -> list[dict[str, Any]]:
    """The worlds' rows once both have counted so many operations."""

    def found(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        both = [row for rank in range(2) for row in rows_of(task, rank, rows)]
        return both if [row["operations_total"] for row in both] == [total, total] else []

    return list(seen.until(found, 20))


def test_collectives_and_pairs_count_call_by_call(task: Task, seen: Watch) -> None:
    """Each call of a collective, of a send or a receive is one operation, in a group too, from the birth on."""
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
    task.both("synchronize")
    task.both("destroy", "world")


def test_children_are_known_on_all_ranks(task: Task, seen: Watch) -> None:
    """The child of a split has one name on both ranks, another one than its parent, and counts for itself."""
    for rank in range(2):
        task.tell(rank, "split", "child", 3, 1 - rank)
    for rank in range(2):
        task._answer(rank)
    task.both("reduce", "child", 4, 900)
    task.both("synchronize")

    def children(rows: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        both = [row for rank in range(2) for row in rows_of(task, rank, rows) if row["operations_total"] == 4]
        return both if len(both) == 2 else []

    one, other = seen.until(children, 20)
    assert (one["rank"], other["rank"]) == (1, 0)
    assert one["comm"] == other["comm"]


def test_only_calls_of_the_program_count_as_synchronizing(task: Task, seen: Watch) -> None:
    """NCCL's own waits, in the CUDA runtime that it carries for itself, are none of the program's."""
    task.both("reduce", "world", 3, 1000)
    calls = task.both("synchronize")
    assert seen.context.kernel is not None
    for rank, pid in enumerate(task.pids):
        entries = seen.context.kernel.maps["processes"].rows()
        (entry,) = entries[entries["tgid"] == pid]
        assert int(entry["synchronize_calls"]) == calls[rank]["cudaStreamSynchronize"] == 1


def test_a_rank_that_does_not_come_is_waited_for(task: Task, seen: Watch) -> None:
    """A rank that entered waits, active without progress, and names the rank it waits for; others do not."""
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


def test_findings_4_3_unfinished_work_is_known_without_a_watchdog(task: Task, seen: Watch) -> None:
    """No framework asks after errors here: who waits for the other rank has unfinished work, and who hangs has none."""
    task.both("reduce", "world", 3, 1000)
    task.both("synchronize")
    task.tell(0, "reduce", "world", 1, 400_000)
    seen.until(lambda rows: [row for row in rows_of(task, 0, rows) if row["pending"]], 30)
    (other,) = rows_of(task, 1, seen.rows)
    assert not other["pending"]


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


def test_an_abort_ends_what_never_would(task: Task, seen: Watch) -> None:
    """A communicator that waits for a rank can be aborted, and is forgotten."""
    if task.nccl.parent.name in ABORT_HANGS:
        pytest.skip("ncclCommAbort of this version itself waits for ever while an operation is at work")
    task.tell(0, "reduce", "world", 1, 1000)
    task._answer(0)
    task.tell(0, "abort", "world")
    task._answer(0)
    seen.until(lambda rows: not rows_of(task, 0, rows), 20)
