"""`peerwatch report stragglers`: the sentence, JSON, the page, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.analysis.whatif.jobs import Job, plain
from tests.cli.conftest import one_line, run


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of 3 data ranks and 2 stages, the last one half as long again."""
    long = lambda kind, dp, stage, *key: plain(kind, dp, stage, *key) * (1 + stage / 2)  # noqa: E731
    job = Job(dp=3, pp=2, micro_batches=5, steps=2, seconds=long)
    return job.write(tmp_path_factory.mktemp("traces") / "trace-a<b.parquet")


def test_the_first_line_says_what_was_lost(trace: Path) -> None:
    """The headline has the share, GPU-hours and the cause; causes and parts follow."""
    done = run("report", "stragglers", trace)
    assert done.returncode == 0
    first = done.stdout.splitlines()[0]
    assert first.startswith("this job lost 1")
    assert "GPU-hours) to stragglers: the last stage explains" in first
    assert "stage 1" in done.stdout
    assert "GPUs are the ranks in the trace (6)" in done.stdout


def test_json_has_every_measure(trace: Path) -> None:
    """--json has the measures of each trace with null where there is none, and sums."""
    found = json.loads(run("report", "stragglers", "--json", trace, trace).stdout)
    job, other = found["jobs"]
    assert job == other
    assert found["gpu_hours_lost"] == pytest.approx(2 * job["gpu_hours_lost"])
    assert found["gpu_hours_lost_by_cause"] == {"last stage": pytest.approx(found["gpu_hours_lost"])}
    assert job["slowdown"] > 1.1
    assert len(job["by_worker"]) == 2
    assert [step["step"] for step in job["steps"]] == [100, 101]
    assert job["causes"][0] == {**job["causes"][0], "kind": "last stage", "named": True}


def test_several_traces_have_a_sum(trace: Path) -> None:
    """The last line adds the GPU-hours of all traces."""
    last = run("report", "stragglers", trace, trace).stdout.splitlines()[-1]
    assert last.startswith("2 traces lost 1")
    assert "GPU-hours) to stragglers: last stage 0." in last


def test_the_page_is_self_contained(trace: Path, tmp_path: Path) -> None:
    """--html writes one well-formed page with a cell for each worker, names escaped, nothing from elsewhere."""
    page = tmp_path / "page.html"
    assert run("report", "stragglers", trace, "--html", page).returncode == 0
    text = page.read_text()
    root = ElementTree.fromstring(text.replace("<!DOCTYPE html>", ""))  # noqa: S314
    cells = [node for node in root.iter("rect") if node.get("class") == "cell"]
    assert len(cells) == 6
    assert "a&lt;b" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text


def test_errors_are_one_line(trace: Path, tmp_path: Path) -> None:
    """A missing file, no trace, no description and a page that cannot be written are one line and exit code 1."""
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    noise = tmp_path / "noise.csv"
    noise.write_bytes(b"\xc3\x28\x00,\xff\n\xa0,\xb1,\xe2\n")
    cases = {
        "noise.csv: neither Parquet nor CSV: no text": (noise,),
        "none.parquet": (tmp_path / "none.parquet",),
        "wrong.csv: no column optype": (wrong,),
        "none.yaml": (trace, "--meta", tmp_path / "none.yaml"),
        "page.html cannot be written": (trace, "--html", tmp_path / "none" / "page.html"),
    }
    for words, arguments in cases.items():
        assert words in one_line(run("report", "stragglers", *arguments), 1)
