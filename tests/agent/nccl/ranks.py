"""Two ranks on a library of their own, which follow orders (tests/nccl_rank.py), and what an agent reads of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulator.hardware.nvml_state import Gpus
from emulator.libraries.build import Libraries
from emulator.libraries.wheel import find
from emulator.shared import fabric
from tests.agent.conftest import Watch

ROOT = Path(__file__).resolve().parents[3]


class Task:
    """Two ranks, each on a machine of its own as NCCL sees it."""

    def __init__(self, folder: Path, libraries: Path, real: bool, gpus: int = 1) -> None:
        fabric.create(folder / "fabric", 2, gpus)
        Gpus(folder / "gpus", create=gpus)
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
        self.pids = [int(self.answer(rank)["pid"]) for rank in range(2)]

    def tell(self, rank: int, *order: Any) -> None:
        """Give one rank an order."""
        pipe = self.ranks[rank].stdin
        assert pipe is not None
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()

    def answer(self, rank: int) -> dict[str, Any]:
        """What one rank says when it has followed an order."""
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
        return [self.answer(rank)["calls"] for rank in range(2)]

    def kill(self) -> None:
        """End both."""
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


def start_task(version: str, emulated: Libraries, folder: Path, gpus: int = 1) -> Task:
    """A task on NVIDIA's library of that version, or on the emulated one; skips where it is not here."""
    libraries = folder / "lib"
    libraries.mkdir()
    for library in emulated.folder.iterdir():
        (libraries / library.name).symlink_to(library)
    if version != "emulated":
        found = find(version)
        if found is None:
            pytest.skip(f"NVIDIA's libnccl {version} is not here: make nccl NCCL={version}")
        (libraries / "libnccl.so.2").unlink()
        (libraries / "libnccl.so.2").symlink_to(found)
    return Task(folder, libraries, version != "emulated", gpus)


def attached(seen: Watch, library: Path) -> set[int]:
    """The processes that map a library with probes."""
    assert seen.context.attachments is not None
    users = [one.users for one in seen.context.attachments.libraries.values() if one.path == str(library)]
    return {process.pid for some in users for process in some}


def rows_of(task: Task, rank: int, rows: dict[str, list[dict[str, Any]]], ranks: int = 2) -> list[dict[str, Any]]:
    """A rank's rows of communicators of that size."""
    return [row for row in rows.get("nccl", ()) if row["pid"] == task.pids[rank] and row["ranks"] == ranks]
