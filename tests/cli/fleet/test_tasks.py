"""`peerwatch tasks`: what it prints of a store."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.open import open_store
from store.schema.sample import Batch, Sample
from tests.cli.conftest import run as run_here


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, its output and exit code."""
    order = [sys.executable, "-I", "-m", "cli.main", "tasks", "--store", str(place), *words]
    return subprocess.run(order, capture_output=True, text=True, check=False)


def row(rank: int, comm: str, *, ranks: int, at: int, operation: str) -> Sample:
    """One reading of one communicator of one rank."""
    values: dict[str, Any] = {"gpu": str(rank % 2), "slot": comm[-1], "comm": comm, "ranks": ranks, "pid": 700 + rank}
    values |= {"rank": rank % ranks, "operation": operation, "operations_total": 40 * at, "iteration_seconds": 2.5}
    return Sample("nccl", values)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two machines of two ranks each: pairs within a machine, and the world; they started 300 s ago."""
    place, now = tmp_path_factory.mktemp("store") / "readings.db", time.time_ns()
    with closing(open_store(str(place), create=True)) as store:
        for at in range(8):
            for number, machine in enumerate(("m1", "m2")):
                rows = []
                for rank in (2 * number, 2 * number + 1):
                    rows += [row(rank, "feed0", ranks=4, at=at, operation="AllReduce:f32:9")]
                    rows += [row(rank, f"beef{number + 1}", ranks=2, at=at, operation="AllGather:f16:7")]
                    begun = {"gpu": str(rank % 2), "pid": 700 + rank, "start_time_seconds": now / 1e9 - 300}
                    rows += [Sample("startup", begun)] if at == 0 else []
                store.write([Batch(machine, now - (10 - at) * 10**9, tuple(rows))])
    return place


def test_as_json(place: Path) -> None:
    """The object has the task's machines, ranks, groups, iteration time and age."""
    done = run(place, "--json")
    assert done.returncode == 0, done.stderr
    (task,) = json.loads(done.stdout)["tasks"]
    assert (task["communicator"], task["ranks"], task["ranks_read"], task["machines"]) == ("feed0", 4, 4, ["m1", "m2"])
    assert task["iteration_seconds"] == 2.5
    assert 300 <= task["age_seconds"] < 400
    assert [(group["kind"], group["size"], group["count"], group["machines"]) for group in task["groups"]] == [
        ("tensor", 2, 2, 1),
        ("world", 4, 1, 2),
    ]


def test_in_words(place: Path) -> None:
    """A line says how large the task is and how long it takes; one for each kind of group follows."""
    done = run(place)
    assert done.returncode == 0, done.stderr
    assert "task feed0: 4 of 4 ranks on 2 machines (m1, m2), 2.5 s per iteration, for 5" in done.stdout
    assert "2 × 2 ranks within a machine, 40 operations per second" in done.stdout


def test_jobs_of_a_scheduler(place: Path, tmp_path: Path) -> None:
    """A task is called after its job; user and step are shown, and names from outside cannot move the cursor."""
    copy = tmp_path / "jobs.db"
    job = {"scheduler": "slurm", "job_id": "83", "job_name": "night\x1b[2J", "job_user": "eve"}
    copy.write_bytes(place.read_bytes())
    with closing(open_store(str(copy))) as store:
        rows = tuple(Sample("job", {"gpu": gpu, **job}) for gpu in ("0", "1"))
        store.write([Batch(machine, time.time_ns(), rows) for machine in ("m1", "m2")])
    assert "task night[2J (job 83): 4 of 4 ranks" in run(copy).stdout
    assert "Slurm night[2J (job 83), user eve" in run(copy).stdout
    (task,) = json.loads(run(copy, "--json").stdout)["tasks"]
    assert (task["name"], task["jobs"]) == ("night\x1b[2J (job 83)", [job])
    assert json.loads(run(place, "--json").stdout)["tasks"][0]["name"] is None


def test_nothing_there(place: Path, tmp_path: Path) -> None:
    """One line says that the store has no reading, and names the time that was asked for."""
    open_store(str(tmp_path / "empty.db"), create=True).close()
    now = run(tmp_path / "empty.db")
    assert (now.returncode, now.stderr.count("\n")) == (1, 1)
    assert "no communicator in the last minute: does the agent run on the training machines?" in now.stderr
    done = run(place, "--at", "2026-05-01T12:00")
    assert done.returncode == 1
    assert "holds no communicator in the minute before 2026-05-01 12:00:00 UTC: use another --at" in done.stderr


def test_communicators_without_processes(tmp_path: Path) -> None:
    """Simulated readings name no process: that is said, and not that there is no communicator."""
    with closing(open_store(str(tmp_path / "s.db"), create=True)) as store:
        values = {"gpu": "0", "slot": "0", "comm": "feed0", "ranks": 4, "rank": 0, "operations_total": 7}
        store.write([Batch("m1", time.time_ns() - 10**9, (Sample("nccl", values),))])
    done = run_here("tasks", "--store", tmp_path / "s.db")
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not say which processes its communicators have" in done.stderr
