"""Ranks without namespaces, for tests that need no root: plain processes that share a fabric."""

import functools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from emulator.cluster.machine import command
from emulator.libraries.build import Libraries
from emulator.shared import faults
from emulator.shared.fabric import Fabric, create
from tests.conftest import copied_libraries

SMALL = ("--load=0.01", "--compute=0.03", "--optimizer=0.005", "--checkpoint-every=0", "--gradient-bytes=50000000")
FAST = (*SMALL, "--training=blocking")


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether it comes to hold within that time."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if holds():
            return True
        time.sleep(0.02)
    return holds()


class Ranks:
    """A training task of plain processes."""

    def __init__(self, folder: Path, libraries: Libraries, shape: tuple[int, int, int], *options: str) -> None:
        tensor, pipeline, data = shape
        self.folder, self.world = folder, tensor * pipeline * data
        create(folder / "fabric", self.world, 1)
        self.fabric = Fabric(folder / "fabric")
        groups = (f"--tensor={tensor}", f"--pipeline={pipeline}", f"--data={data}", f"--world={self.world}")
        self.processes = [
            subprocess.Popen(
                command(
                    "training.main",
                    [
                        *(*groups, f"--rank={rank}", f"--report={self.report_path(rank)}", *FAST, *options),
                        f"--fabric={folder / 'fabric'}",
                        f"--library-folder={libraries.folder}",
                    ],
                )
            )
            for rank in range(self.world)
        ]

    def report_path(self, rank: int) -> Path:
        """Where a rank writes its report."""
        return self.folder / f"rank{rank}.json"

    def iterations(self) -> list[int]:
        """How far each rank is."""
        return [self.fabric.progress(rank).iterations for rank in range(self.world)]

    def wait_iterations(self, count: int) -> None:
        """Wait until every rank has done that many more than now."""
        wanted = max(self.iterations()) + count
        assert wait_until(lambda: min(self.iterations()) >= wanted), f"stuck at {self.iterations()}"

    def order(self, rank: int, kind: str, amount: float | None = None) -> None:
        """Give a rank a fault."""
        faults.order(self.fabric, rank, kind, amount)

    def fresh_report(self, rank: int) -> dict[str, Any]:
        """Ask a rank for its report."""
        self.report_path(rank).unlink(missing_ok=True)
        self.processes[rank].send_signal(signal.SIGUSR1)
        assert wait_until(self.report_path(rank).exists)
        report: dict[str, Any] = json.loads(self.report_path(rank).read_text())
        return report

    def end(self) -> list[int]:
        """Ask all to end; their exit codes."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        return [process.wait(30) for process in self.processes]

    def kill(self) -> None:
        """End all that are left."""
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """The emulated libraries."""
    return copied_libraries(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="session")
def offsets(libraries: Libraries) -> Callable[[str], dict[str, int]]:
    """Byte offsets of the members of a structure of libnccl, from DWARF."""

    @functools.cache
    def read(structure: str) -> dict[str, int]:
        with libraries.nccl.open("rb") as file:
            units = ELFFile(file).get_dwarf_info().iter_CUs()
            for entry in (entry for unit in units for entry in unit.iter_DIEs()):
                name = entry.attributes.get("DW_AT_name")
                if entry.tag == "DW_TAG_structure_type" and name and name.value == structure.encode():
                    members = [member.attributes for member in entry.iter_children()]
                    return {at["DW_AT_name"].value.decode(): at["DW_AT_data_member_location"].value for at in members}
        raise LookupError(structure)

    return read


@pytest.fixture
def start_ranks(tmp_path: Path, libraries: Libraries) -> Iterator[Callable[..., Ranks]]:
    """Starts a task of (tensor, pipeline, data) ranks; kills it in the end."""
    started: list[Ranks] = []

    def start(shape: tuple[int, int, int], *options: str) -> Ranks:
        started.append(Ranks(tmp_path, libraries, shape, *options))
        return started[-1]

    yield start
    for ranks in started:
        ranks.kill()


@pytest.fixture(scope="session")
def rooted() -> None:
    """Skips where namespaces can't be made."""
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
