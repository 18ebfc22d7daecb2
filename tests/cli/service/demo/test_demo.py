"""The whole of Peerwatch on an emulated fleet: faults are found, and health is left alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from emulator.libraries.wheel import place
from tests.cli.service.demo.injections import SHAPE, named_device
from tests.cli.service.demo.series import Series

TOGETHER = 4
"""Demos at a time: mostly they wait."""
FAULTS = {
    "none": (),
    "slow_gpu": ("gpu:0",),
    "slow_link": ("gpu:0",),
    "rank_hang": ("gpu:0",),
    "rank_exit": ("gpu:0",),
}
"""What may be named, one fault of each class: health, a slow rank, the network, a hang, a crash. `make bench ARGS="-k
test_every_fault"` shows all."""
WHOLE = {"none": "30", "rank_hang": "12"}
"""Whole demos, and seconds before the fault; the other faults strike one fleet after another (series.py)."""
INJECTED = ("late_enter", "nic_down", "wrong_collective")
"""Of the injections a slow one, one of the network and a hang; `make bench ARGS="-k injections"` shows all."""
SERIES = {
    "faults": Series(tuple(fault for fault in FAULTS if fault not in WHOLE), (6, 1, 1, 1), 30.0, 21),
    "injected": Series(INJECTED, SHAPE, 20.0, 22),
}
COMMAND = [sys.executable, "-I", "-m", "cli.main", "demo"]
LIBRARY = ("--nccl", "emulated", "--training", "blocking")
"""Proxy threads of NVIDIA's library spin: two cores bear one demo on it, and hosts that run ahead, at a time."""
VERSION = "2.27.3"
"""Of NVIDIA's library, for that one."""


def demo(*options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and what `--json` prints. The demo has priority: the work of other tests would look like a fault."""
    order = ["nice", "--adjustment=-10", *COMMAND, "--json", *LIBRARY, *options]
    done = subprocess.run(order, stdout=subprocess.PIPE, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the demos leave their data, each in a folder named after its fault."""
    return tmp_path_factory.mktemp("demos")


def tried(folder: Path, seed: int, fault: str, *more: str) -> tuple[int, dict[str, Any]]:
    """A demo; a second one where no machine was named: a busy computer may hide a fault, but not twice."""
    options = ("--fault", fault, "--folder", str(folder), *more)
    code, said = demo(*options, "--seed", str(seed))
    if any(verdict["level"] != "note" for verdict in said["verdicts"]) or fault == "none":
        return code, said
    shutil.rmtree(folder)
    return demo(*options, "--seed", str(seed + 100))


def in_time(said: dict[str, Any]) -> bool:
    """Whether a verdict came within 30 s of the onset."""
    return bool(said["verdicts"]) and 0 < said["verdicts"][0]["time"] - said["fault"]["start"] <= 30 * 10**9


def outcomes(folder: Path, series: Series, *more: str) -> dict[str, Any]:
    """What is said of each fault of a series; where one is not named in time, of a demo of it, as with `tried`."""
    found = series.outcomes(folder)
    for kind in series.kinds:
        if not in_time(found[kind]):
            words = ("--fault", kind, *series.words(), *more)
            found[kind] = demo(*words, "--folder", str(folder.with_name(f"{kind} again")))[1]
    return found


@pytest.fixture(scope="module")
def demos(probes_allowed: None, folder: Path) -> Iterator[dict[str, Future[Any]]]:
    """All series and whole demos, under way; the longest first."""
    with ThreadPoolExecutor(TOGETHER) as executor:
        yield {name: executor.submit(outcomes, folder / name, series) for name, series in SERIES.items()} | {
            fault: executor.submit(tried, folder / fault, seed, fault, "--healthy", seconds)
            for seed, (fault, seconds) in enumerate(WHOLE.items(), 11)
        }


@pytest.mark.bpf
@pytest.mark.parametrize("fault", FAULTS)
def test_the_right_machine_is_named_and_no_other(fault: str, demos: dict[str, Future[Any]]) -> None:
    """The verdict names machine and device at fault within 30 s of the onset; a healthy run has no verdict."""
    code, said = demos[fault].result() if fault in WHOLE else (0, demos["faults"].result()[fault])
    assert said["fault"]["kind"] == fault
    assert (code, said["correct"]) == (0, True), said
    if fault == "none":
        assert said["verdicts"] == []
        return
    first = said["verdicts"][0]
    assert first["machine"] == said["fault"]["machine"]
    assert in_time(said)
    assert first["device"] in FAULTS[fault]
    assert first["machine"] in first["message"]


@pytest.mark.bpf
@pytest.mark.parametrize("name", SERIES)
def test_nothing_is_said_before_the_first_fault(name: str, demos: dict[str, Future[Any]]) -> None:
    """While all train in health there is no verdict."""
    assert demos[name].result()["none"]["verdicts"] == []


@pytest.mark.bpf
@pytest.mark.parametrize("kind", INJECTED)
def test_what_is_injected_in_a_task_of_many_groups_is_located(kind: str, demos: dict[str, Future[Any]]) -> None:
    """A verdict names the rank at fault or its port among 16 (tensor 2, pipeline 2, data 4) within 30 s."""
    said = demos["injected"].result()[kind]
    assert (said["correct"], said["fault"]["kind"]) == (True, kind), said
    assert named_device(said), said
    assert in_time(said)


@pytest.mark.bpf
def test_a_hang_shows_where_each_rank_was(demos: dict[str, Future[Any]], folder: Path) -> None:
    """The verdict has the stacks of all ranks: those that wait are one group, the one that hangs is odd."""
    _, said = demos["rank_hang"].result()
    place = str(folder / "rank_hang" / "readings.db")
    shown = subprocess.run([*COMMAND[:-1], "show", "1", "--json", "--store", place], stdout=subprocess.PIPE, check=True)
    found = json.loads(shown.stdout)
    [odd] = [group for group in found["stacks"] if group["odd"]]
    assert [rank["machine"] for rank in odd["ranks"]] == [said["fault"]["machine"]]
    assert (odd["form"], odd["stack"][0].split()[0]) == ("python", "Rank.suffer_before_collective")
    assert sum(len(group["ranks"]) for group in found["stacks"]) == 6
    assert max(len(members["ranks"]) for members in found["communicators"]) == 5


@pytest.fixture
def library() -> Path:
    """NVIDIA's library."""
    found = place(VERSION)
    if not found.exists():
        pytest.skip(f"libnccl {VERSION} is not here: make nccl")
    return found


@pytest.mark.bpf
def test_findings_4_1_faults_are_named_on_the_real_library(
    library: Path, demos: dict[str, Future[Any]], folder: Path
) -> None:
    """Where hosts enqueue ahead, health has no verdict, and a slow GPU and a hang are named within 30 s."""
    wait(demos.values())  # no other demo beside this one
    series = Series(("slow_gpu", "rank_hang"), (6, 1, 1, 1), 30.0, 31, str(library), "ahead")
    found = outcomes(folder / "real", series, "--nccl", VERSION, "--training", series.training)
    assert found["none"]["verdicts"] == []
    for kind in series.kinds:
        assert (found[kind]["correct"], in_time(found[kind])) == (True, True), found[kind]
