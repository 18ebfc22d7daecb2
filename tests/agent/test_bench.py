"""What the agent costs beside the training processes it watches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.build import Libraries
from emulator.fleet import Fleet

pytestmark = [pytest.mark.bench, pytest.mark.bpf]

PROCESSES, SETTLE_S, WATCH_S = 8, 15.0, 60.0


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond (proc(5), schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_mb(pid: int) -> float:
    """Resident size of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@pytest.fixture
def agent(probes_allowed: None, tmp_path: Path) -> Iterator[int]:
    """The agent as its unit starts it, beside one machine of eight training processes."""
    with Fleet(tmp_path / "fleet", machines=1, gpus=PROCESSES):
        command = [sys.executable, "-I", "-m", "cli.main", "agent", "--store", str(tmp_path / "readings.db")]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            time.sleep(SETTLE_S)
            yield process.pid
            process.terminate()


def test_agent_at_rest(agent: int) -> None:
    """With eight training processes the agent takes at most 1 % of a core and 60 MB, and no compiler is left in it."""
    before, begin = cpu_seconds(agent), time.monotonic()
    time.sleep(WATCH_S)
    share = (cpu_seconds(agent) - before) / (time.monotonic() - begin)
    resident = resident_mb(agent)
    print(f"\nagent beside {PROCESSES} training processes: {100 * share:.2f} % of a core, {resident:.0f} MB resident")
    assert "libbcc" not in Path(f"/proc/{agent}/maps").read_text()
    assert share <= 0.01
    assert resident <= 60


@pytest.mark.parametrize("which", ["emulated", "nvidia"])
def test_cost_of_a_hit(which: str, watch: Any, caller: Any, request: pytest.FixtureRequest) -> None:
    """A probed call against the same call without a probe, in turn: the difference is the probe's."""
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
        begin = os.times().elapsed
        process.call()
        took = os.times().elapsed - begin
        process.close()
        if seen:
            seen.close()
        return took

    pairs = [(timed(False), timed(True)) for _ in range(3)]
    costs = sorted((probed - bare) / calls * 1e6 for bare, probed in pairs)
    spread = f"{costs[0]:.2f} to {costs[2]:.2f} in three turns"
    print(f"\na probe hit costs {costs[1]:.2f} µs here on the {which} library ({spread})")
    assert costs[1] < 100
