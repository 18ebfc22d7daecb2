"""The command as a person runs it: in a process of its own, or through typer's runner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded

ROOT = Path(__file__).parents[2]
SECOND = 10**9


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `peerwatch WORDS` prints and its exit code, in this process: to start one takes half a second."""
    given = list(map(str, words))
    done = CliRunner().invoke(app, given, env={"COLUMNS": "200", **variables}, prog_name="peerwatch")
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(given, done.exit_code, done.stdout, done.stderr)


def process(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`peerwatch WORDS` in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **variables}
    command = [sys.executable, "-m", "cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line on standard error with which a command must end that could not do its work."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("peerwatch: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def host(machine: str, at: int, busy: float, switches: int = 0) -> Batch:
    """One reading of the operating system and of one GPU."""
    gpu = {"gpu": "0", "power_watts": 300.0 + busy, "duty_cycle_ratio": busy / 2}
    values = {"cpu_utilization_ratio": busy, "context_switches_total": switches}
    return Batch(machine, at, (Sample("host", values), Sample("gpu", gpu)))


def verdict(machine: str, at: int, level: str) -> Batch:
    """A row that the detector wrote."""
    values: dict[str, Any] = {"task": "t1", "kind": "peer", "metric": "gpu.power_watts", "score": 4.5, "since": at - 7}
    return Batch(machine, at, (Sample("verdict", {**values, "level": level, "message": f"{machine} differs"}),))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with three machines, read a moment ago."""
    path = tmp_path / "s.db"
    now = time.time_ns()
    store = Embedded(path)
    for n, name in enumerate(("m01", "m02", "m03")):
        store.write([host(name, now - back * SECOND, 0.1 + n / 5, 1000 - back) for back in (9, 5, 1)])
    store.close()
    return path
