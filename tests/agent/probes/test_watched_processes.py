"""Which processes the kernel watches."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.probes.training_processes import TrainingProcess
from agent.probes.watched_processes import WatchedProcesses, children, parse_children, pid_filter_of
from agent.process.procfs import Process

NOW = 10**18


class Entries:
    """A kernel map as far as it is written to."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: dict[int, int] = {}

    def update(self, key: bytes, value: bytes) -> None:
        """Set one entry."""
        self.held[int.from_bytes(key, "little")] = int.from_bytes(value, "little")

    def delete(self, key: bytes) -> bool:
        """Remove one entry."""
        return self.held.pop(int.from_bytes(key, "little"), None) is not None


def trainers(**gpus: str) -> dict[int, TrainingProcess]:
    """Training processes `p<number>` by GPU."""
    return {int(name[1:]): TrainingProcess(Process(int(name[1:]), 1), gpu) for name, gpu in gpus.items()}


def listed(proc: Path, pid: int, text: str) -> None:
    """A process with children."""
    folder = proc / f"{pid}/task/{pid}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "children").write_text(text)


def test_only_those_that_train_and_their_children(tmp_path: Path) -> None:
    """Processes come with their children, a child that trains itself is on its own GPU, and all are let go."""
    watched, pid_filter = Entries(16), Entries(64)
    processes: Any = WatchedProcesses(watched, pid_filter, 8, tmp_path)  # type: ignore[arg-type]
    listed(tmp_path, 4170, "301 302 ")
    processes.update(NOW, trainers(p4170="5", p302="6"))
    assert watched.held == gpu_numbers(processes) == {4170: 5, 301: 5, 302: 6}
    assert pid_filter.held == {4170 % 4096 // 64: 1 << 4170 % 64, 301 // 64: 1 << 301 % 64 | 1 << 302 % 64}
    listed(tmp_path, 4170, "")
    processes.update(NOW + 10**10, trainers(p4170="7"))
    assert watched.held == {4170: 7}
    assert [word for word, bits in pid_filter.held.items() if bits] == [4170 % 4096 // 64]
    processes.update(NOW + 2 * 10**10, {})
    assert not watched.held
    assert not any(pid_filter.held.values())


def gpu_numbers(processes: Any) -> dict[int, int]:
    """The GPUs of the processes that are watched, as numbers."""
    return {pid: int(gpu) for pid, gpu in processes.gpu_of.items()}


def test_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    """GPUs beyond the last place and processes beyond the table's size are left out."""
    watched = Entries(3)
    processes: Any = WatchedProcesses(watched, Entries(64), 8, tmp_path)  # type: ignore[arg-type]
    processes.update(NOW, trainers(p21="8", p22="7", p23="1", p24="2", p25="3"))
    assert len(watched.held) == 3
    assert 21 not in watched.held


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="no list of children")
def test_a_real_child() -> None:
    """The kernel lists what this process started."""
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in children(Path("/proc"), os.getpid())
        child.kill()


@given(st.binary(max_size=200))
def test_hostile_lists(text: bytes) -> None:
    """Whatever stands in the file, the numbers are numbers of processes."""
    assert all(0 <= pid < 10**9 for pid in parse_children(text))
    assert parse_children(b"301 302 " + text)[:1] == [301]


@given(st.lists(st.integers(1, 2**22), max_size=300))
def test_the_filter_passes_every_watched_process(pids: list[int]) -> None:
    """The bit that the kernel looks at is set for each of them, and for no more remainders than there are."""
    pid_filter = pid_filter_of(pids, 64)
    assert all(int(pid_filter[pid % 4096 // 64]) >> pid % 64 & 1 for pid in pids)
    assert int(np.unpackbits(pid_filter.view(np.uint8)).sum()) == len({pid % 4096 for pid in pids})
