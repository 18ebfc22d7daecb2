"""Up: agent, detector and store on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detector.alerts.registry import AlertsConfig
from detector.service.single_instance import alone
from store.open import open_store
from tests.cli.conftest import one_line, process
from tests.conftest import running

COMMAND = [sys.executable, "-I", "-m", "cli.main", "up"]


def test_up_fills_the_store_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    """Readings of this machine come into the store; Ctrl-C ends agent and detector with 130."""
    config, place = tmp_path / "peerwatch.toml", tmp_path / "readings.db"
    config.write_text('[agent]\nmachine = "m77"\nsources = ["host"]\nperiod_seconds = 0.2\n')
    process = subprocess.Popen(
        [*COMMAND, "--config", str(config), "--store", str(place)], stdout=subprocess.PIPE, start_new_session=True
    )
    limit = time.monotonic() + 30
    rows = 0
    while rows < 3 and time.monotonic() < limit:
        time.sleep(0.2)
        if place.exists():
            store = open_store(str(place))
            rows = store.read("host").num_rows
            store.close()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert rows >= 3
    assert process.returncode == 130
    assert running(str(place)) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """One line names cause and mend if the agent's log cannot be written, and no agent is left."""
    (tmp_path / "s.agent.log").mkdir()
    done = process("up", "--store", tmp_path / "s.db")
    assert "s.agent.log cannot be written: Is a directory; run as root, or use another --store" in one_line(done, 1)
    assert running(str(tmp_path)) == []


@pytest.mark.parametrize("text", ["[agent]\nsauces = []\n", "store = 5\n", "[agent]\nperiod_seconds = -1\n"])
def test_wrong_configuration(text: str, tmp_path: Path) -> None:
    """A wrong configuration is one line and exit code 1, and nothing is started."""
    config = tmp_path / "peerwatch.toml"
    config.write_text(text)
    done = subprocess.run([*COMMAND, "--config", str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(config) in done.stderr


def test_a_second_detector_on_a_store_is_refused(tmp_path: Path) -> None:
    """One line refuses a second detector on a store while the first one runs; afterwards it may run."""
    place = tmp_path / "readings.db"
    with alone(AlertsConfig(), str(place)):
        for command in ("detector", "up"):
            assert f"another detector runs on {place}" in one_line(process(command, "--store", place), 1)
    with alone(AlertsConfig(), str(place)):
        assert running(str(place)) == []
