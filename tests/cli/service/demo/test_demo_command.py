"""`peerwatch demo` as a person types it: what it refuses, proposes, and does without root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from cli.commands.service.demo import _tell, next_steps
from cli.demo.emulated import DemoRun, Outcome, Plan
from cli.queries.fleet_status import FleetStatus
from emulator.cluster.fleet import Fleet
from store.open import open_store
from tests.conftest import running

COMMAND = [sys.executable, "-I", "-m", "cli.main", "demo"]


@pytest.mark.bpf
def test_ctrl_c_leaves_nothing_behind(probes_allowed: None, tmp_path: Path) -> None:
    """An interrupted demo ends with 130, and no process of it is left."""
    process = subprocess.Popen(
        [*COMMAND, "--folder", str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert f"stopped; readings in {tmp_path}/d/readings.db" in said
    assert running(str(tmp_path)) == []


def test_what_is_proposed_works_as_it_is_printed(tmp_path: Path) -> None:
    """A simulated demo's next steps show the verdict, another fault, and run in a shell as they stand."""
    place = tmp_path / "a folder"
    words = ["simulate", str(place / "recording"), "--fault=slow_link", "--machines=6", "--gpus=1", "--minutes=5"]
    subprocess.run([*COMMAND[:-1], *words, "--stages=1", "--seed=5"], check=True, stdout=subprocess.PIPE)
    outcome = Outcome({"kind": "slow_link"}, [{"level": "crit"}])
    replay, show, report, again, up = next_steps(outcome, place, simulated=True)
    assert again.endswith(" demo --fault slow_gpu")
    assert up.endswith(" up  # on a machine that trains")
    for step in (replay, show, report):
        done = subprocess.run(["/bin/sh", "-c", step], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (step, done.stderr)
    assert (place / "verdict.html").exists()


def test_another_fault_is_proposed_than_the_one_just_seen(tmp_path: Path) -> None:
    """After any other fault than a slow link, that is the next; where nothing was said there is nothing to show."""
    assert next_steps(Outcome({"kind": "rank_exit"}), tmp_path, simulated=False)[1].endswith(" demo --fault slow_link")


def test_unknown_fault_is_refused() -> None:
    """A fault that does not exist is refused with the list of those that do."""
    done = subprocess.run([*COMMAND, "--fault", "gremlins"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "slow_gpu" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("graphs --nccl emulated", "plays no CUDA graphs"),
        ("lazy", "use one of ahead, "),
        ("1f1b", "training 1f1b needs 2 or more pipeline stages"),
        ("experts --pipeline 6", "training experts needs 2 or more data ranks"),
    ],
)
def test_a_training_that_cannot_be_is_refused(words: str, said: str, probes_allowed: None) -> None:
    """A way to train that does not exist, or not on that library, is refused in one line with the mend."""
    done = subprocess.run([*COMMAND, "--training", *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_faults_are_completed() -> None:
    """The shell completes the names of faults."""
    asked = {"_PEERWATCH_COMPLETE": "complete_bash", "COMP_WORDS": "peerwatch demo --fault p", "COMP_CWORD": "3"}
    done = subprocess.run(COMMAND[:-1], env=os.environ | asked, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["power_cap", "pcie_downgrade"]


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    """A folder that holds readings already is refused."""
    (tmp_path / "readings.db").write_text("precious")
    done = subprocess.run([*COMMAND, "--folder", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "use another --folder" in done.stderr
    assert (tmp_path / "readings.db").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the user")
def test_without_root_it_says_what_it_does_without() -> None:
    """The demo says that it lacks root, shows a simulated fleet, and judges that."""
    try:
        subprocess.run([COMMAND[0], "--version"], user="nobody", check=True)
    except PermissionError:
        pytest.skip("other users may not run the interpreter that lies here")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [*COMMAND, "--json", "--seed", "5", "--folder", f"{folder}/d"],
            capture_output=True,
            text=True,
            check=False,
            user="nobody",
            env={"HOME": folder, "PATH": os.environ["PATH"]},
        )
    assert done.returncode == 0, done.stderr
    assert "Without root" in done.stderr
    assert json.loads(done.stdout)["correct"] is True
    assert done.returncode == 0


class Silent:
    """A display that keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, headline: str, found: FleetStatus, suspicions: Mapping[str, float]) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Keep it."""
        self.lines.append(line)


@pytest.mark.parametrize(("load", "phases"), [(1.0, 1), (30.0, 2)])
def test_a_verdict_that_does_not_come(
    load: float, phases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a busy machine it is waited for longer, and said why; in the end the nearest machine is named."""
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    screen, waited = Silent(), list[float]()
    plan = Plan("slow_link", "m02", 0, 30.0, 1, tmp_path)
    with closing(open_store(str(tmp_path / "s.db"), create=True)) as store:
        demo = DemoRun(plan, cast(Fleet, None), store, screen)
        monkeypatch.setattr(demo, "_run_phase", lambda phase, seconds, done: waited.append(seconds))
        monkeypatch.setattr(demo.runner.detector, "suspicions", lambda: {"m01": 0.2, "m02": 0.83})
        assert not demo._is_found("slow_link on m02")
    assert len(waited) == phases
    words = "no verdict yet; this machine is busy (load 30, 2 processors), so readings come late: 30 s more"
    assert screen.lines == [words] * (phases - 1)
    _tell(demo.outcome, tmp_path, simulated=False)
    assert "none: no machine differs from its peers; nearest: m02 at 0.8 of an alarm" in capsys.readouterr().out
