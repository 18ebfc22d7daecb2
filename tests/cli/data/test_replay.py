"""`peerwatch replay`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from store.sqlite.embedded import Embedded
from store.transfer.export import write_recording
from tests.cli.conftest import SECOND, one_line, run

KEYS = ["time", "task", "machine", "device", "kind", "metric", "score", "since", "level", "message"]


def fleet(folder: Path, slow: str | None) -> Path:
    """Ten minutes of eight machines with alike GPUs; one clock falls by a third after five minutes."""
    generator = np.random.default_rng(17)
    steps = np.arange(1, 601)
    names = [f"m{n}" for n in range(8)]
    clock = 1.7e9 + generator.normal(0, 4e6, (8, 600))
    if slow:
        clock[names.index(slow), 300:] *= 0.66
    columns = {
        "time": np.tile(steps * SECOND, 8),
        "machine": np.repeat(names, 600),
        "gpu": ["0"] * 4800,
        "sm_clock_hertz": clock.ravel(),
    }
    write_recording(folder, {"gpu": columns})
    return folder


def test_the_slow_machine_is_named(tmp_path: Path) -> None:
    """--json prints one object a line with the contract's keys; text is a table with the same message."""
    folder = fleet(tmp_path / "r", "m5")
    done = run("replay", folder, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert {verdict["machine"] for verdict in verdicts} == {"m5"}
    assert list(verdicts[0]) == KEYS
    assert verdicts[0]["time"] > 300 * SECOND
    assert (verdicts[0]["device"], verdicts[0]["metric"]) == ("gpu:0", "gpu.sm_clock_hertz")
    shown = run("replay", folder, COLUMNS="40")
    assert verdicts[0]["message"] in shown.stdout


def test_a_healthy_fleet(tmp_path: Path) -> None:
    """A healthy fleet gives no line and exit code 0."""
    done = run("replay", fleet(tmp_path / "r", None), "--json")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_task_that_is_not_there(tmp_path: Path) -> None:
    """A task without machines is an error that names the tasks of the recording, and not a healthy fleet."""
    rows = {"time": [SECOND] * 8, "machine": [f"m{n}" for n in range(8)], "task": ["pretrain"] * 4 + ["tune"] * 4}
    write_recording(tmp_path / "r", {"task": rows, "host": {**rows, "cpu_utilization_ratio": [0.3] * 8}})
    assert "has no task nope; it has pretrain, tune" in one_line(run("replay", tmp_path / "r", "--task", "nope"), 1)
    assert run("replay", tmp_path / "r", "--task", "tune").returncode == 0


def test_nothing_to_replay(tmp_path: Path) -> None:
    """A store without readings is an error and not a healthy fleet."""
    Embedded(tmp_path / "s.db").close()
    assert "holds no reading" in one_line(run("replay", tmp_path / "s.db"), 1)


def test_machines_are_those_named(tmp_path: Path) -> None:
    """A replay without the faulty machine names no machine; an unknown machine is an error."""
    folder = fleet(tmp_path / "r", "m5")
    assert run("replay", folder, "--json", "--machines", "m0,m1,m2,m3,m4").stdout == ""
    assert "has no machine m77; it has m0, m1" in one_line(run("replay", folder, "--machines", "m0,m77"), 1)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gpu.parquet", "not parquet", "cannot be read as Parquet"),
        ("notes.txt", "hello", r"holds no .parquet file"),
    ],
)
def test_what_is_no_recording(tmp_path: Path, name: str, text: str, said: str) -> None:
    """A folder without a recording in it is one line and 1."""
    (tmp_path / name).write_text(text)
    assert said in one_line(run("replay", tmp_path), 1)
    assert "is no store" in one_line(run("replay", tmp_path / "absent"), 1)


def test_a_recording_without_machine(tmp_path: Path) -> None:
    """A file that lacks a key column is named with the column."""
    fleet(tmp_path / "r", None)
    import pyarrow.parquet as pq

    file = tmp_path / "r" / "gpu.parquet"
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["machine"]), file)
    assert f"{file}: column machine is missing" in one_line(run("replay", tmp_path / "r"), 1)
