"""`peerwatch agent` and `peerwatch detector`, as their units start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, one_line, process

CONFIG = """
store = "{store}"
[agent]
machine = "m42"
sources = ["host"]
period_seconds = 0.1
limit_seconds = 0.1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration that needs no probes."""
    file = tmp_path / "peerwatch.toml"
    file.write_text(CONFIG.format(store=tmp_path / "s.db"))
    return file


def start(command: str, config: Path) -> subprocess.Popen[str]:
    """A command that runs until a signal stops it."""
    words = [sys.executable, "-m", "cli.main", command, "--config", str(config)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env)


def wait_for_rows(place: Path) -> int:
    """The number of readings, once there are some."""
    for _ in range(600):
        if place.exists():
            store = Embedded(place)
            rows = store.read("host").num_rows
            store.close()
            if rows >= 3:
                return rows
        time.sleep(0.05)
    return 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_agent_reads_until_a_signal(config: Path, tmp_path: Path, number: signal.Signals) -> None:
    """The agent stores readings under its configured name; a signal ends agent and detector with exit code 0."""
    agent, detector = start("agent", config), start("detector", config)
    first = [process.stderr.readline() for process in (agent, detector) if process.stderr]
    assert ["m42: sources host" in first[0], "judging what comes into" in first[1]] == [True, True], first
    rows = wait_for_rows(tmp_path / "s.db")
    for program in (agent, detector):
        program.send_signal(number)
    said = [program.communicate(timeout=60)[1] for program in (agent, detector)]
    assert [process.returncode for process in (agent, detector)] == [0, 0], said
    assert rows >= 3
    assert not any("Traceback" in text for text in said)
    store = Embedded(tmp_path / "s.db")
    assert store.read("host").column("machine").unique().to_pylist() == ["m42"]
    store.close()


def test_agent_says_what_is_wrong(tmp_path: Path) -> None:
    """An absent configuration and a store in an absent folder give one line and exit code 1."""
    assert "No such file" in one_line(process("agent", "--config", tmp_path / "absent.toml"), 1)
    assert "there is no folder" in one_line(process("agent", "--store", tmp_path / "no" / "s.db"), 1)
    assert "there is no folder" in one_line(process("detector", "--store", tmp_path / "no" / "s.db"), 1)
