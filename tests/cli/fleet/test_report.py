"""`peerwatch report startup`: phases by machine, slowest against median."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.queries.startup_phases import PHASES, read_starts
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, one_line, run

BEGIN = 1_780_000_000
MARKS = {
    "cuda_loaded_seconds": 4.0,
    "nccl_loaded_seconds": 4.5,
    "checkpoint_read_seconds": 2.0,
    "checkpoint_read_bytes": 3_000_017,
    "communicator_begun_seconds": 7.5,
    "communicator_made_seconds": 9.0,
    "first_operation_seconds": 9.25,
}


def row(gpu: int = 0, pid: int = 100, start: float = BEGIN, **marks: Any) -> Sample:
    """One row of the table `startup`."""
    values = {**MARKS, **marks}
    return Sample("startup", {"gpu": str(gpu), "pid": pid, "start_time_seconds": start, **values})


def older(start: float) -> Sample:
    """The row of a process that is older than its agent."""
    return Sample("startup", {"gpu": "0", "pid": 77, "start_time_seconds": start})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Five machines of one run: m2 starts late, m3 reads slowly on its second GPU, m4 is not known."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    slow = {"checkpoint_read_seconds": 20.0, "communicator_begun_seconds": 25.75, "communicator_made_seconds": 26.0}
    rows = {
        "m0": [row()],
        "m1": [row(start=BEGIN + 0.25), row(1, 101, BEGIN + 0.25, nccl_loaded_seconds=4.25)],
        "m2": [row(start=BEGIN + 6.0)],
        "m3": [row(), row(1, 103, BEGIN + 0.5, first_operation_seconds=26.5, **slow)],
        "m4": [older(BEGIN - 0.5)],
    }
    store.write([Batch(name, (BEGIN + 60) * SECOND, tuple(samples)) for name, samples in rows.items()])
    store.close()
    return path


def found(place: Path) -> dict[str, Any]:
    """What --json prints, by machine."""
    done = run("report", "startup", "--json", "--store", place)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_phases(place: Path) -> None:
    """The slowest machine is first, with the GPU that was ready last, and the phase that differs most."""
    report = found(place)
    assert [machine["machine"] for machine in report["machines"]] == ["m3", "m2", "m1", "m0", "m4"]
    slowest = report["machines"][0]
    assert (slowest["gpu"], slowest["slowest_phase"], slowest["above_median_seconds"]) == ("1", "read", 18.0)
    assert slowest["ready_seconds"] == 26.75
    assert slowest["phases"] == {
        "late_seconds": 1.0,
        "load_seconds": 4.5,
        "read_seconds": 20.0,
        "prepare_seconds": 1.25,
        "connect_seconds": 0.25,
        "work_seconds": 0.5,
    }
    assert report["machines"][1]["slowest_phase"] == "late"
    assert report["median"]["read_seconds"] == 2.0
    assert report["start_time_seconds"] == BEGIN - 0.5


def test_what_is_not_known_is_null(place: Path) -> None:
    """A process older than its agent has no phase but its start, and spoils no median."""
    machine = found(place)["machines"][-1]
    assert machine["machine"] == "m4"
    assert machine["ready_seconds"] is None
    assert [name for name, value in machine["phases"].items() if value is not None] == ["late_seconds"]
    assert machine["slowest_phase"] is None


def test_the_drawing(place: Path) -> None:
    """People see a bar for each machine, what it is slow at, and the median; --top limits it."""
    done = run("report", "startup", "--store", place)
    lines = done.stdout.splitlines()
    assert lines[0] == "5 machines started at 2026-05-28 20:26:39 UTC"
    slow = next(line for line in lines if line.startswith("m3"))
    assert "read its checkpoint: 20.0 s, the median 2.0 s" in slow
    assert slow.count("█") > 20
    assert "not seen" in next(line for line in lines if line.startswith("m4"))
    assert any(line.startswith("median") for line in lines)
    few = run("report", "startup", "--store", place, "--top", "2").stdout
    assert "3 faster machines are not shown" in few
    assert "\nm0" not in few


def test_a_restart(place: Path) -> None:
    """The report shows the youngest process of the latest run; --until shows an earlier run."""
    store = Embedded(place)
    again = BEGIN + 4000
    for machine, pid in (("m0", 900), ("m1", 901)):
        rows = (row(0, pid, again + pid / 1000, nccl_loaded_seconds=5.5), row())
        store.write([Batch(machine, (again + 100) * SECOND, rows)])
    store.close()
    report = found(place)
    assert [machine["machine"] for machine in report["machines"]] == ["m1", "m0"]
    assert report["machines_of_earlier_runs"] == 0  # rows of ten minutes are read, where nothing is said of the others
    since = run("report", "startup", "--json", "--store", place, "--since", f"{BEGIN * SECOND}")
    assert json.loads(since.stdout)["machines_of_earlier_runs"] == 3
    before = run("report", "startup", "--json", "--store", place, "--until", f"{(BEGIN + 70) * SECOND}")
    assert len(json.loads(before.stdout)["machines"]) == 5


def test_a_slower_start_than_last_week(tmp_path: Path) -> None:
    """A run is compared with runs of the same name and size within a week, and with no others."""
    path, last = tmp_path / "s.db", BEGIN + 6 * 86_400
    store = Embedded(path)
    runs = [("pretrain", BEGIN + n * 86_400 + 1800, 2, 20.0 + n) for n in range(4)]
    runs += [("finetune", BEGIN + 9000, 2, 80.0), ("pretrain", BEGIN + 43_200, 1, 90.0), ("pretrain", last, 2, 47.0)]
    for nth, (task, start, machines, read) in enumerate(runs):
        marks = {"checkpoint_read_seconds": read - 5.5, "communicator_begun_seconds": read}
        marks |= {"communicator_made_seconds": read + 1.5, "first_operation_seconds": read + 2.0}
        for machine in range(machines):
            for at in range(60, 7300, 60):
                sample = row(0, 300 + nth, start, **marks, image_seconds=61.0 + machine, launch_seconds=17.25)
                named = Sample("task", {"task": task})
                store.write([Batch(f"m{machine}", (start + at) * SECOND, (sample, named))])
    store.close()
    trend = found(path)["trend"]
    assert (trend["task"], trend["gpus"], trend["earlier_runs"]) == ("pretrain", 2, 4)
    assert (trend["ready_seconds"], trend["usual_ready_seconds"]) == (47.0, 21.5)
    assert (trend["slower"], trend["phase"], trend["grown_seconds"]) == (True, "read", 25.5)
    assert found(path)["median_before"] == {"image_seconds": 61.5, "container_seconds": None, "launch_seconds": 17.25}
    shown = run("report", "startup", "--store", path).stdout
    assert "slower than usual: ready after 47.0 s; median of 4 earlier starts of pretrain on 2 GPUs" in shown
    assert "image pull and sandbox 61.5 s, at most 62.0 s in m1; container start not known" in shown


def test_starts_of_the_whole_fleet(tmp_path: Path) -> None:
    """Rows of `start` tell of each job's starts for weeks; two jobs that start together are two, each with a trend."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    for job, machine, usual, last in (("llama", "m1", 31.0, 53.0), ("qwen", "m2", 12.0, 12.5)):
        for day in (0, 9, 15, 20):
            begin, ready = BEGIN + day * 86_400, last if day == 20 else usual
            marks = {"communicator_begun_seconds": ready, "checkpoint_read_seconds": ready - 6.0}
            marks |= {"communicator_made_seconds": ready + 0.5, "first_operation_seconds": ready + 0.75}
            for at, name in enumerate((machine, f"{machine}b")):
                one = row(0, 500 + day, begin + at, **marks, job_name=job)
                store.write([Batch(name, (begin + 90) * SECOND, (Sample("start", one.values),))])
    store.close()
    jobs = {
        one["task"]: one
        for one in json.loads(run("report", "startup", "--days", "28", "--json", "--store", path).stdout)["jobs"]
    }
    assert [(name, one["gpus"], one["earlier_runs"]) for name, one in sorted(jobs.items())] == [
        ("llama", 2, 3),
        ("qwen", 2, 3),
    ]
    assert (jobs["llama"]["slower"], jobs["qwen"]["slower"]) == (True, False)
    assert (jobs["llama"]["ready_seconds"], jobs["llama"]["usual_ready_seconds"]) == (54.0, 32.0)
    assert jobs["llama"]["starts"][0]["slowest_machine"] == "m1b"
    shown = run("report", "startup", "--days", "28", "--store", path).stdout
    assert "slower than usual" in next(line for line in shown.splitlines() if line.startswith("llama"))
    assert "has no --since" in one_line(run("report", "startup", "--days", "3", "--since", "1h", "--store", path), 1)


def test_nothing_to_report(tmp_path: Path) -> None:
    """A store without readings, without a start or with older processes only gives one line that says what to do."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    assert "holds no reading yet" in one_line(run("report", "startup", "--store", path), 1)
    store.write([Batch("m1", BEGIN * SECOND, (Sample("host", {"cpu_utilization_ratio": 0.5}),))])
    assert "no start of a job in that time" in one_line(run("report", "startup", "--store", path), 1)
    store.write([Batch("m1", BEGIN * SECOND, (older(BEGIN - 9.0),))])
    assert "the jobs on 1 machine started before the agent" in one_line(run("report", "startup", "--store", path), 1)
    store.close()
    assert "is not a time" in one_line(run("report", "startup", "--store", path, "--since", "soon"), 1)


def test_many_machines(tmp_path: Path) -> None:
    """Each of a thousand machines with eight GPUs has its own slowest GPU."""
    store = Embedded(tmp_path / "s.db")
    for n in range(1000):
        rows = tuple(row(gpu, 200 + gpu, communicator_begun_seconds=10.0 + (n + gpu) % 8 / 8) for gpu in range(8))
        store.write([Batch(f"m{n:04}", BEGIN * SECOND, rows)])
    starts = read_starts(store, 0, (BEGIN + 1) * SECOND)
    store.close()
    assert starts.phases.shape == (1000, len(PHASES))
    assert np.all(starts.ready == 10.875)
    assert {(int(m[1:]) + int(gpu)) % 8 for m, gpu in zip(starts.machines, starts.gpus, strict=True)} == {7}


def test_a_store_without_the_columns(tmp_path: Path) -> None:
    """A table that lacks columns is a StoreError."""
    store = Embedded(tmp_path / "s.db")
    store.write([Batch("m1", BEGIN * SECOND, (Sample("startup", {"gpu": "0", "phase_of_moon": 5.5}),))])
    with pytest.raises(StoreError):
        read_starts(store, 0, (BEGIN + 1) * SECOND)
    store.close()


def test_help() -> None:
    """The report says what it shows, and what each option does."""
    done = CliRunner().invoke(app, ["report", "startup", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0
    assert "slowest first" in done.output
    assert all(option in done.output for option in ("--store", "--json", "--since", "--until", "--top"))
