"""`peerwatch profile`: real Python processes, one of which is slowed in one function."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import one_line, run

PROGRAM = """
import sys, time

def compute(seconds):
    time.sleep(seconds)

def prepare_batch(seconds):
    time.sleep(seconds)

print("ready", flush=True)
while True:
    prepare_batch(float(sys.argv[1]))
    compute(0.05)
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[int]]:
    """Four processes that train, so to speak; the third is slow in `prepare_batch`."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    running = [
        subprocess.Popen([sys.executable, program, str(pause)], stdout=subprocess.PIPE)
        for pause in (0.004, 0.005, 0.5, 0.004)
    ]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == b"ready\n"
    yield [one.pid for one in running]
    for one in running:
        one.kill()
        one.communicate()


def test_the_slowed_function_is_named(ranks: list[int], tmp_path: Path) -> None:
    """The function that takes longer in one of four processes is named with it; saved samples say the same again."""
    asked = [word for pid in ranks for word in ("--pid", str(pid))]
    done = run("profile", *asked, "--seconds", "4", "--save", tmp_path / "samples", "--json")
    found = json.loads(done.stdout)
    first = found["abnormal"][0]
    assert (first["function"], first["rank"]) == ("prepare_batch (train.py)", f"pid {ranks[2]}")
    assert first["beta"] > 0.5 > first["usual_beta"]
    assert 0 < found["cost"]["cpu_seconds"] < 3
    assert len(found["samples"]) == 4
    text = run("profile", *sorted((tmp_path / "samples").iterdir())).stdout
    assert "prepare_batch (train.py)" in text


def test_nothing_to_sample_is_one_line(place: Path) -> None:
    """A store without a training process here, and a process that does not exist, are one line each."""
    assert "no training process on this machine" in one_line(run("profile", "--store", place), 1)
    assert "no task or machine m9: it has m01, m02, m03" in one_line(run("profile", "m9", "--store", place), 1)
    gone = one_line(run("profile", "--pid", "4194303", "--seconds", "1"), 1)
    assert "pid 4194303: py-spy: there is no such process" in gone
    assert "none.json" in one_line(run("profile", "none.json"), 1)
