"""`peerwatch operators`: the command over logs and recordings."""

from __future__ import annotations

import json
from pathlib import Path

from emulator.simulation.pipeline_job import Fault, Job, Shape, write_inspector
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.cli.conftest import one_line, run

SECOND = 10**9


def test_the_culprit_is_shown(tmp_path: Path) -> None:
    """Text names the GPU in a sentence with its evidence; JSON has files, iterations and candidates."""
    job = Job(Shape(2, 4, 2, 4), Fault("gpu", 5, 2.2), 3)
    job.run(18)
    write_inspector(job, tmp_path)
    text = run("operators", tmp_path).stdout
    assert "1. rank 5 comes late to its operations (m00)" in text
    found = json.loads(run("operators", tmp_path, "--json").stdout)
    assert found["candidates"][0]["device"] == "rank 5"
    assert (len(found["files"]), found["iterations"]["count"] > 12) == (16, True)


def test_a_recording_is_read(tmp_path: Path) -> None:
    """The command turns the probes' rows of communicators into operations, one a window."""
    store = Embedded(tmp_path / "s.db")
    for at in range(40):
        for rank, machine in enumerate(("m1", "m2")):
            counts = {"operations_total": 50 * at, "bytes_total": 900 * at, "rank": rank, "ranks": 2}
            times = {"active_ratio": 0.3 + rank / 10, "iteration_seconds": 0.25}
            row = {"gpu": "0", "slot": "0", "comm": "c0", "operation": "AllReduce:f32:7", **counts, **times}
            store.write([Batch(machine, (1000 + at) * SECOND, (Sample("nccl", row),))])
    store.close()
    found = json.loads(run("operators", tmp_path / "s.db", "--json").stdout)
    assert found["ranks"] == ["rank 0", "rank 1"]
    assert found["communication"][0]["median_seconds"] == 0.0875
    assert found["iterations"]["irregular"] == []


def test_what_is_no_log_is_one_line(tmp_path: Path) -> None:
    """A file that is cut off, and a place that does not exist, are one line and exit code 1."""
    cut = tmp_path / "cut.json"
    cut.write_text('{"traceEvents": [{"ph": "X"')
    assert "cut off" in one_line(run("operators", cut), 1)
    store = Embedded(tmp_path / "quiet.db")
    store.write([Batch("m3", 5 * SECOND, (Sample("host", {"cpu_utilization_ratio": 0.4}),))])
    store.close()
    assert "no NCCL operation" in one_line(run("operators", tmp_path / "quiet.db"), 1)
    assert "nowhere" in one_line(run("operators", tmp_path / "nowhere"), 1)
