"""One rank on libcudart and libnccl under probes: what is counted is what was called, and memory says the same.

The same on the emulated libraries shows that the test itself holds; NVIDIA's need a GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.process.memory import Identity, Memory
from emulator.libraries.build import build
from tests.agent.conftest import Watch, device_nodes_in
from tests.hardware.one_rank import COUNT, OPERATIONS

ROOT = Path(__file__).resolve().parents[2]


class Rank:
    """The task, as a process that goes on at each request."""

    def __init__(self, cudart: Path, nccl: Path, computes: bool) -> None:
        self.computes = computes
        self.cudart = cudart
        order = [sys.executable, "-m", "tests.hardware.one_rank", str(cudart), str(nccl)]
        self.process = subprocess.Popen(order, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.nccl, self.pid = nccl, int(self._line()["ready"])

    def work(self) -> dict[str, Any]:
        """Have it reduce; what it says of that."""
        self.go()
        return self._line()

    def go(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, "the task ended early; its standard error says why"
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture(params=["emulated", pytest.param("nvidia", marks=pytest.mark.hardware)])
def rank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rank]:
    """A task of one rank that has loaded its libraries."""
    with ExitStack() as ends:
        if request.param == "nvidia":
            one = Rank(*request.getfixturevalue("nvidia_libraries"), computes=True)
        else:
            ends.enter_context(device_nodes_in(tmp_path))
            built = build()
            one = Rank(built.cudart, built.nccl, computes=False)
        ends.callback(one.process.communicate)
        ends.callback(one.process.kill)
        yield one


@pytest.fixture
def seen(probes_allowed: None) -> Iterator[Watch]:
    """An agent, read on request."""
    watch = Watch()
    yield watch
    watch.close()


def of(rank: Rank, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any] | None:
    """The row of the rank's communicator, once it says where counting began."""
    mine = [row for row in rows.get("nccl", ()) if row["pid"] == rank.pid and row["counted_from"]]
    return mine[0] if mine else None


@pytest.mark.bpf
def test_one_rank(rank: Rank, seen: Watch) -> None:
    """Operations, bytes and waits are counted from the communicator's birth, and its memory tells who it is."""
    for library in (rank.cudart, rank.nccl):
        seen.wait_attached(library.resolve())
    done = rank.work()
    assert done["right"] or not rank.computes  # the emulated libraries move no numbers
    row = seen.until(lambda rows: of(rank, rows))
    print(f"\nNCCL {done['version']}: {row}")
    assert row["counted_from"] == "birth"
    assert row["operations_total"] == done["calls"]["ncclAllReduce"] == OPERATIONS
    assert row["bytes_total"] == 4 * COUNT * OPERATIONS
    assert (row["rank"], row["ranks"], row["lost_total"]) == (0, 1, 0)
    assert seen.context.kernel is not None
    entries = seen.context.kernel.maps["processes"].rows()
    (entry,) = entries[entries["tgid"] == rank.pid]
    assert int(entry["synchronize_calls"]) == done["calls"]["cudaStreamSynchronize"]
    identity = _identity_in_memory(rank, seen, done["comm"])
    row = seen.until(lambda rows: of(rank, rows))  # the name may be of the unique id before the layout is known
    assert identity == Identity(int(row["comm"], 16), 0, 1, 0)
    rank.go()
    seen.until(lambda rows: not any(one["pid"] == rank.pid for one in rows.get("nccl", ())))
    assert rank.process.wait(30) == 0


def _identity_in_memory(rank: Rank, seen: Watch, comm: int) -> Identity | None:
    """What ncclComm itself says, by the layout that the library's debug information or build id gives."""
    assert seen.context.attachments is not None
    attachments = seen.context.attachments
    layout = seen.until(lambda _: next((one.layout for one in _of(rank, attachments) if one.layout), None))
    memory = Memory(rank.pid)
    try:
        counts = [memory.operations(comm, layout, counts_calls) for counts_calls in (True, False)]
        print(f"opCount and the sum of seqNumber are {counts} after {OPERATIONS} operations")
        return memory.identity(comm, layout)
    finally:
        memory.close()


def _of(rank: Rank, attachments: Any) -> list[Any]:
    return [one for one in attachments.libraries.values() if one.path == str(rank.nccl)]
