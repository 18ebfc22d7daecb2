"""What the agent costs beside the training processes it watches."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.agent_process import agent_command
from emulator.cluster.fleet import Fleet
from emulator.libraries.build import Libraries
from emulator.libraries.wheel import find
from tests import servers

pytestmark = [pytest.mark.bench, pytest.mark.bpf]

PROCESSES, SETTLE_S, WATCH_S, TURNS = 8, 15.0, 60.0, 3


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of all threads of some processes, to the nanosecond (proc(5), schedstat)."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def megabytes(pid: int, word: str = "Rss") -> float:
    """Resident size of a process; "Pss" counts what it shares by its share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{word}:")).split()[1]) / 1024


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@pytest.fixture
def agent(probes_allowed: None, tmp_path: Path) -> Iterator[int]:
    """The agent of one emulated machine: eight GPUs, eight ports, eight training processes, every source on."""
    place = tmp_path / "readings.db"

    def command(name: str) -> list[str]:
        return agent_command(place, root=(tmp_path / "fleet").resolve() / name)

    with Fleet(tmp_path / "fleet", machines=1, gpus=PROCESSES, agent=command):
        time.sleep(SETTLE_S)
        yield _agent(place)


def _agent(store: Path) -> int:
    """The process number of the first machine's agent that writes to this store."""
    lines = {entry: entry.read_bytes() for entry in Path("/proc").glob("[0-9]*/cmdline")}
    wanted = f"-m\0agent\0m00\0{store}\0".encode()
    (found,) = [int(entry.parent.name) for entry, line in lines.items() if wanted in line]
    return found


@pytest.fixture
def exporter() -> Iterator[tuple[int, str]]:
    """Prometheus' node exporter and its address."""
    address = f"127.0.0.1:{servers.free_port()}"
    command = [servers.find("prometheus-node-exporter", "prometheus-node-exporter"), f"--web.listen-address={address}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        yield process.pid, f"http://{address}/metrics"
        process.terminate()


def scrape(address: str, stop: threading.Event) -> None:
    """Ask for all metrics once a second, as Prometheus would."""
    while not stop.wait(1.0):
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:  # noqa: S310 - our own
            answer.read()


def test_agent_at_rest(agent: int, exporter: tuple[int, str]) -> None:
    """All sources on 8 GPUs, ports and processes take at most twice what a node exporter does, and 80 MB.

    That is read once a second, in the same minute. No compiler is left behind.
    """
    stop, watched = threading.Event(), {"agent": family(agent), "node exporter": [exporter[0]]}
    threading.Thread(target=scrape, args=(exporter[1], stop), daemon=True).start()
    time.sleep(3)
    before, begin = {name: cpu_seconds(pids) for name, pids in watched.items()}, time.monotonic()
    time.sleep(WATCH_S)
    elapsed = time.monotonic() - begin
    stop.set()
    shares, sizes = {}, {}
    for name, pids in watched.items():
        shares[name] = (cpu_seconds(pids) - before[name]) / elapsed
        sizes[name] = sum(map(megabytes, pids))
        own = sum(megabytes(pid, "Pss") for pid in pids)
        print(
            f"\n{name}, {len(pids)} process(es): {1000 * shares[name]:.1f} ms of CPU a second, "
            f"{sizes[name]:.0f} MB resident ({own:.0f} MB with shared pages counted once)",
            end="",
        )
    print(f"\nbeside {PROCESSES} training processes")
    assert not any("libbcc" in Path(f"/proc/{pid}/maps").read_text() for pid in watched["agent"])
    assert shares["agent"] <= 2 * shares["node exporter"]
    assert sizes["agent"] <= 80


def test_agent_beside_the_real_library(probes_allowed: None, tmp_path: Path) -> None:
    """Beside NVIDIA's library an agent takes at most 1.5 times what it takes beside the emulated one, in the same run.

    Two machines of two ranks in turns on each library; of one of the two agents.
    """
    nccl = find()
    if nccl is None:
        pytest.skip("NVIDIA's libnccl is not here: make nccl")
    took: dict[str, list[float]] = {"emulated": [], "NVIDIA's": []}
    for turn in range(TURNS):
        for name in took:
            folder = (tmp_path / f"{name[:2]}{turn}").resolve()
            place = folder / "readings.db"

            def command(machine: str, folder: Path = folder, place: Path = place) -> list[str]:
                return agent_command(place, root=folder / "fleet" / machine)

            folder.mkdir()
            library = nccl if name == "NVIDIA's" else None
            with Fleet(folder / "fleet", machines=2, gpus=2, agent=command, nccl=library):
                time.sleep(2 * SETTLE_S)
                pids = family(_agent(place))
                before, begin = cpu_seconds(pids), time.monotonic()
                time.sleep(WATCH_S / 2)
                took[name].append((cpu_seconds(pids) - before) / (time.monotonic() - begin))
            print(
                f"\n{name} libnccl: {1000 * took[name][-1]:.1f} ms of CPU a second, load {os.getloadavg()[0]:.0f}",
                end="",
            )
    ratio = sum(took["NVIDIA's"]) / sum(took["emulated"])
    print(f"\nbeside NVIDIA's library {ratio:.2f} times as much as beside the emulated one")
    assert ratio < 1.5


@pytest.mark.parametrize("which", ["emulated", "nvidia"])
def test_cost_of_a_hit(which: str, watch: Any, caller: Any, request: pytest.FixtureRequest) -> None:
    """A probed call against the same call without a probe, in turn: the difference in CPU time is the probe's."""
    calls = 200_000
    libraries: list[Path]
    if which == "nvidia":
        libraries = [request.getfixturevalue("real_nccl")]
    else:
        built: Libraries = request.getfixturevalue("emulated")
        libraries = [built.cudart, built.nccl]

    def timed(probed: bool) -> float:
        process = caller(*libraries, calls=calls)
        seen = watch() if probed else None
        if seen:
            seen.wait_attached(libraries[-1])
        spent = Path(f"/proc/{process.pid}/schedstat")  # its first number: ns on a CPU
        begin = int(spent.read_text().split()[0])
        process.call()
        took = (int(spent.read_text().split()[0]) - begin) / 1e9
        process.close()
        if seen:
            seen.close()
        return took

    pairs = [(timed(False), timed(True)) for _ in range(3)]
    costs = sorted((probed - bare) / calls * 1e6 for bare, probed in pairs)
    spread = f"{costs[0]:.2f} to {costs[2]:.2f} in three turns"
    print(f"\na probe hit costs {costs[1]:.2f} µs here on the {which} library ({spread})")
    assert costs[1] < 100
