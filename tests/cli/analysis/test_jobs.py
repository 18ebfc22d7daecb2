"""`peerwatch jobs`: what jobs say of themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import SECOND, host, one_line, run

END = 1_790_000_000 * SECOND


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A job with falling loss and a NaN at the end, and one that cannot be read."""
    path = tmp_path / "s.db"
    store = Embedded(path)
    for n in range(61):
        row = {"job": "pretrain", "step": 100.0 + n, "step_seconds": 1.25, "loss": 5.0 - n / 20, "nan_total": n // 60}
        row |= {"mfu_ratio": 0.41, "checkpoint_age_seconds": 600.0 + n}
        if n == 60:
            del row["loss"]
        store.write([Batch("m1", END - (60 - n) * 50 * SECOND, (Sample("job_log", row),))])
    store.write([Batch("m2", END, (Sample("job_log", {"job": "sft", "error": "/data/a.log: no file fits"}),))])
    store.write([host("m1", END, 0.5)])
    store.close()
    return path


def test_values_and_curves(place: Path) -> None:
    """JSON has the last known values and the means over the time; unknown values are null."""
    first, second = json.loads(run("jobs", "--json", "--store", place).stdout)["jobs"]
    assert (first["job"], first["machine"], first["step"], first["loss"]) == ("pretrain", "m1", 160.0, 2.05)
    assert (first["nan_total"], first["mfu_ratio"], first["checkpoint_age_seconds"]) == (1.0, 0.41, 660.0)
    curve = [value for value in first["curves"]["loss"] if value is not None]
    assert curve == sorted(curve, reverse=True)
    assert len(curve) > 15
    assert (second["loss"], second["error"]) == (None, "/data/a.log: no file fits")


def test_the_table(place: Path) -> None:
    """The table has a line with sparklines for each job, and the reason where a log cannot be read."""
    done = run("jobs", "--store", place)
    line = next(line for line in done.stdout.splitlines() if line.startswith("pretrain"))
    assert "█" in line
    assert "41.0%" in line
    assert "11 m" in line
    assert "sft on m2: /data/a.log: no file fits" in done.stdout


def test_without_jobs(tmp_path: Path) -> None:
    """A store without jobs says how to have some."""
    store = Embedded(tmp_path / "s.db")
    store.write([host("m1", END, 0.5)])
    store.close()
    assert "[[agent.job_log]]" in one_line(run("jobs", "--store", tmp_path / "s.db"), 1)
