"""An agent without its loop: probes, sources, and processes that call the libraries on command."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.config import AgentConfig
from agent.nccl.stall import StallDetector, StallDetectors
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process
from agent.sampling import loop
from emulator.cluster.machine import command
from emulator.libraries.build import Libraries
from tests.conftest import copied_libraries


class Watch:
    """All sources of an agent, read on command."""

    def __init__(self, **settings: Any) -> None:
        settings = {"machine": "m41", "scan_seconds": 0.1, "root": os.environ.get("EMULATED_ROOT", "/"), **settings}
        self.context = loop.open_context(AgentConfig(**settings))
        self.reader = loop.open_reader(self.context)
        self.open = True
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def read(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of one reading, by table."""
        batch = loop.read_once(self.reader, time.time_ns(), "m41", 20.0)
        self.rows = {}
        for sample in batch.samples:
            self.rows.setdefault(sample.table, []).append(dict(sample.values))
        return self.rows

    def until(self, holds: Callable[[dict[str, list[dict[str, Any]]]], Any], seconds: float = 120.0) -> Any:
        """Read on until this is true of a reading, and give what it gave."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            found = holds(self.read())
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"not seen within {seconds} s; the last reading was {self.rows}")

    def wait_attached(self, path: Path | str) -> None:
        """Wait until probes are on the library of that path."""
        attachments = self.context.attachments
        assert attachments is not None
        self.until(lambda _: any(x.path == str(path) and x.state == "on" for x in attachments.libraries.values()))

    def close(self) -> None:
        """Take the probes off; once is enough."""
        if self.open:
            self.open = False
            loop.close(self.reader, self.context)


class Caller:
    """A process that has loaded libraries and calls them on command."""

    def __init__(
        self, libraries: Sequence[Path | str], calls: int, mix: str, prefix: Sequence[str] = (), gpu: bool = True
    ) -> None:
        # As the driver would, also for NVIDIA's own libraries, which need a driver to open it.
        node = [os.open(f"{os.environ['EMULATED_DEVICES']}/nvidia0", os.O_RDONLY)] if gpu else []
        options = [f"--library={library}" for library in libraries]
        self.process = subprocess.Popen(
            [*prefix, *command("training.call_generator", [*options, f"--calls={calls}", f"--mix={mix}", "--wait"])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=node,
        )
        for descriptor in node:
            os.close(descriptor)
        self.pid: int = self._line()["ready"]

    def call(self) -> dict[str, int]:
        """Make the calls; exact numbers by name."""
        self._go()
        counts: dict[str, int] = self._line()["calls"]
        return counts

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()

    def _go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


class Still(StallDetectors):
    """Reports these processes as stalled for so many seconds."""

    def __init__(self, seconds: float, *processes: Process) -> None:
        begun = time.monotonic() - seconds
        self.all = [(TrainingProcess(process, "3"), StallDetector(7, begun)) for process in processes]

    def update(self, now: int, clock: float) -> None:
        """There is nothing to look at."""

    def stalled(self, clock: float, least_s: float) -> Iterator[tuple[TrainingProcess, StallDetector]]:
        """Those with a stall that was not handled."""
        return (one for one in self.all if not one[1].handled)


@pytest.fixture(scope="session", autouse=True)
def device_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A root for agents: this computer's /sys and kernel log, and a GPU's node, which emulated libraries open."""
    with device_nodes_in(tmp_path_factory.mktemp("root")):
        yield


@contextmanager
def device_nodes_in(root: Path) -> Iterator[None]:
    """Have agents and emulated libraries see the devices below this folder, which is empty."""
    (root / "dev").mkdir()
    (root / "dev/nvidia0").touch()
    (root / "dev/kmsg").symlink_to("/dev/kmsg")
    (root / "sys").symlink_to("/sys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMULATED_ROOT", str(root))
        patch.setenv("EMULATED_DEVICES", str(root / "dev"))
        yield


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """The emulated libraries."""
    return copied_libraries(tmp_path_factory.mktemp("emulated"))


def watches() -> Iterator[Callable[..., Watch]]:
    """Opens agents; closes them in the end."""
    opened: list[Watch] = []

    def make(**settings: Any) -> Watch:
        opened.append(Watch(**settings))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def watch(probes_allowed: None) -> Iterator[Callable[..., Watch]]:
    """Opens agents for one test."""
    yield from watches()


@pytest.fixture(scope="module")
def lasting_watch(probes_allowed: None) -> Iterator[Callable[..., Watch]]:
    """Opens agents for all tests of a file."""
    yield from watches()


@pytest.fixture
def caller() -> Iterator[Callable[..., Caller]]:
    """Starts callers; kills them in the end."""
    started: list[Caller] = []

    def start(
        *libraries: Path | str,
        calls: int = 11,
        mix: str = "ncclAllReduce",
        prefix: Sequence[str] = (),
        gpu: bool = True,
    ) -> Caller:
        started.append(Caller(libraries, calls, mix, prefix, gpu))
        return started[-1]

    yield start
    for one in started:
        one.close()
