"""`peerwatch copy`, and every other command, with readings in a real InfluxDB."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.commands.fleet.doctor import _store
from cli.config import Settings, open_place
from cli.main import app
from store.recording import Recording
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, SECOND, host, verdict
from tests.store.conftest import database, influx, influx_server, rows

__all__ = ["database", "influx_server"]
HOUR = 3600 * SECOND
EVENTS = tuple(Sample("event", {"source": "kernel_log", "code": "xid:79", "device": f"gpu:{n}"}) for n in (2, 5))


def filled(path: Path) -> Path:
    """A store with a reading at each of 30 hours of 1970, and two events of one moment."""
    store = Embedded(path)
    store.write([*(host("m1", n * HOUR, n / 100) for n in range(1, 31)), Batch("m2", 7 * HOUR, EVENTS)])
    store.close()
    return path


def run(*words: str | Path, code: int = 0, **variables: str) -> str:
    """What `peerwatch WORDS` says on its way to this exit code."""
    done = CliRunner().invoke(app, list(map(str, words)), env=variables)
    assert done.exit_code == code, done.output
    return done.output


def test_there_and_back(tmp_path: Path, database: Callable[[], str]) -> None:
    """A history goes from a file to InfluxDB and back; a second copy, or the rest of one, doubles nothing."""
    source, place, back = filled(tmp_path / "s.db"), database(), tmp_path / "back.db"
    said = run("copy", source, place, "--until", "1970-01-01T10:00")
    assert said.split(";")[0] == "22 rows copied, 0 existed already"
    assert run("copy", source, place).split(";")[0] == "40 rows copied, 22 existed already"
    for _ in range(2):
        run("copy", place, back)
    one, other = Embedded(source), Embedded(back)
    for table in ("host", "gpu", "event"):
        assert rows(other, table) == rows(one, table)
    one.close()
    other.close()
    recording = tmp_path / "recording"
    run("export", recording, "--store", place, "--last", "3h")
    assert Recording(recording).read("host").column("time").to_pylist() == [n * HOUR for n in (28, 29, 30)]
    assert "0 rows copied" in run("copy", recording, place)


def test_copies_that_cannot_be(tmp_path: Path) -> None:
    """A copy without rows, without a target or without a server at the address ends with one line."""
    source, recording = filled(tmp_path / "s.db"), tmp_path / "r"
    run("export", recording, "--store", source, "--since", "1970-01-01T09:00")
    for said, words in {
        "onto itself": (source, source),
        "holds no reading in that time": (source, tmp_path / "t.db", "--since", "1999-01-01"),
        "is read-only": (source, recording),
        "does not answer": (source, "http://127.0.0.1:9/metrics"),
        "names no database": (source, "http://127.0.0.1:9"),
    }.items():
        printed = run("copy", *words, code=1)
        assert said in printed
        assert "(host=" not in printed
        assert printed.count("\n") == 1


def test_a_server_that_is_new(tmp_path: Path, database: Callable[[], str]) -> None:
    """The database is created for a copy and for a detector; the command that a copy names works as it is."""
    source, place = filled(tmp_path / "s.db"), f"{database()}_new"
    assert "keeps rows for a shorter time than these are old" in run("copy", source, place, code=1)
    (tmp_path / "c.toml").write_text("[influxdb]\nkeep_days = 36500\n")
    place += "er"
    said = run("copy", source, place, "--config", tmp_path / "c.toml")
    assert said.startswith("62 rows copied")
    words = said.rpartition("peerwatch ")[2].split()
    assert run(*words).splitlines()[1].split()[:2] == ["m1", "ok"]
    open_place(f"{place}_too", True).close()
    assert run("status", "--store", f"{place}_too", code=3).startswith("unknown: ")


def test_status_of_a_server(database: Callable[[], str]) -> None:
    """Machines, readings and open verdicts come out of InfluxDB as out of a file."""
    place, now = database(), time.time_ns()
    store = influx(place)
    for n, name in enumerate(("m01", "m02", "m03")):
        store.write([host(name, now - back * SECOND, 0.1 + n / 5, 1000 - back) for back in (9, 5, 1)])
    store.write([verdict("m02", now - 3 * SECOND, "crit")])
    store.close()
    found = json.loads(run("status", "--json", code=2, PEERWATCH_STORE=place))
    assert [machine["machine"] for machine in found["machines"]] == ["m01", "m02", "m03"]
    assert [round(machine["readings"]["cpu_ratio"], 3) for machine in found["machines"]] == [0.1, 0.3, 0.5]
    assert [shown["machine"] for shown in found["verdicts"]] == ["m02"]
    run("replay", place, "--json")
    assert _store(place, Settings()).state == "on"


CONFIG = """
store = "{place}"
[influxdb]
spool_folder = "{folder}"
token_file = "{folder}/token"
post_seconds = 0.1
[agent]
machine = "m42"
sources = ["host"]
period_seconds = 0.1
limit_seconds = 0.1
"""


@pytest.fixture
def config(tmp_path: Path, database: Callable[[], str]) -> tuple[Path, str]:
    """A configuration with one line that names InfluxDB, and that line."""
    place, file = database(), tmp_path / "peerwatch.toml"
    (tmp_path / "token").write_text("reader:s3cr3t\n")
    file.write_text(CONFIG.format(place=place, folder=tmp_path))
    return file, place


def count(place: str) -> int:
    """How many readings the server has."""
    store = influx(place)
    found: int = store.read("host").num_rows
    store.close()
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until this holds, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_one_line_moves_a_machine(config: tuple[Path, str], tmp_path: Path) -> None:
    """Agent and detector with an address as store write to InfluxDB, what was in the spool too, and print no token."""
    file, place = config
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "cli.main", command, "--config", str(file)],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for command in ("agent", "detector")
    ]
    wait_for(lambda: count(place) >= 5)
    arguments = [Path(f"/proc/{process.pid}/cmdline").read_bytes() for process in processes]
    for process in processes:
        process.send_signal(signal.SIGTERM)
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "s3cr3t" not in f"{said}{arguments}"
    assert "Traceback" not in f"{said}"
    store = influx(place)
    spool = [row for row in rows(store, "source") if row["source"] == "spool"]
    assert store.read("host").column("machine").unique().to_pylist() == ["m42"]
    assert {row["success"] for row in spool} == {1.0}
    store.close()
    assert (tmp_path / "spool.db").exists()


def test_up_with_a_server(config: tuple[Path, str], tmp_path: Path) -> None:
    """`up` fills InfluxDB too, and ends on Ctrl-C."""
    file, place = config
    command = [sys.executable, "-m", "cli.main", "up", "--config", str(file)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env, start_new_session=True)
    wait_for(lambda: count(place) >= 3 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    assert count(place) >= 3
    assert "s3cr3t" not in (tmp_path / "agent.log").read_text()
