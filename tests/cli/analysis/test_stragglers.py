"""`peerwatch report stragglers`: the sentence, JSON, the page, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from tests.analysis.whatif.jobs import Job, plain
from tests.cli.conftest import one_line, run

SECOND = 10**9


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


def test_profiler_traces_of_one_job(tmp_path: Path) -> None:
    """Kineto traces, one a rank, are one job: the rank with kernels half as long again is named."""
    for rank in range(4):
        events = []
        for step in range(5):
            begin = 1e6 + 50_000 * step + 777 * rank
            own = 20_000 + 10_000 * (rank == 2)
            group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]", "Collective name": "allreduce"}
            for name, start, length in (("gemm", 0, own), ("ncclDevKernel_AllReduce_RING", own, 35_000 - own)):
                args = {"stream": 7, **(group if "nccl" in name else {})}
                events.append(
                    {"ph": "X", "cat": "kernel", "name": name, "ts": begin + start, "dur": length, "args": args}
                )
            step_name = {"cat": "user_annotation", "name": f"ProfilerStep#{step}"}
            events.append({"ph": "X", **step_name, "ts": begin - 5, "dur": 40_000})
        about = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(about))
    (job,) = json.loads(run("report", "stragglers", tmp_path, "--json").stdout)["jobs"]
    same = json.loads(run("report", "stragglers", *sorted(tmp_path.iterdir()), "--json").stdout)["jobs"]
    assert [job["slowdown"]] == [one["slowdown"] for one in same]
    assert job["slowest_ranks"] == [2]
    assert job["causes"][0]["named"]
    # A step is 50 ms of which 15 ms are the host's between steps; without the slow rank 7.5 ms less, the mean.
    assert job["slowdown"] == pytest.approx(50 / 42.5, rel=1e-3)
    assert "at least two ranks" in one_line(run("report", "stragglers", tmp_path / "rank1.json"), 1)


def test_the_jobs_of_a_store(tmp_path: Path) -> None:
    """Of a store each job has its GPU-hours lost, by cause and rank; two jobs at once are separate."""
    store = Embedded(tmp_path / "s.db")
    for at in range(60):
        for number in range(6):
            job, rank = divmod(number, 3)
            waits = 0.35 - 0.3 * (number == 1) if job == 0 else 0.2
            row = {"gpu": "0", "slot": "0", "comm": f"c{job}", "operation": "AllReduce:f32:7", "rank": rank, "ranks": 3}
            counts = {"operations_total": 50 * at, "bytes_total": 900 * at}
            times = {"active_ratio": waits, "iteration_seconds": 0.4 + job}
            samples = [Sample("nccl", row | counts | times), Sample("task", {"task": ("red", "blue")[job]})]
            store.write([Batch(f"m{number}", (1000 + at) * SECOND, tuple(samples))])
    store.close()
    found = json.loads(run("report", "stragglers", tmp_path / "s.db", "--json").stdout)
    red, blue = found["jobs"]
    assert (red["name"], blue["name"], red["gpus"], red["machines"]) == ("red", "blue", 3, ["m0", "m1", "m2"])
    # Of 0.4 s the slow rank has 0.38 for itself, the others 0.26: the mean is 0.08 s less than the longest.
    assert red["waste"] == pytest.approx(0.08 / 0.4, rel=0.02)
    assert red["gpu_hours"] == pytest.approx(3 * 59 / 3600, rel=0.03)
    assert list(red["gpu_hours_lost_by_rank"]) == ["m1 rank 1"]
    assert blue["waste"] == pytest.approx(0.0, abs=1e-6)
    text = run("report", "stragglers", tmp_path / "s.db").stdout
    assert "slow worker: m1 rank 1" in text
    assert "goes alone" in one_line(run("report", "stragglers", tmp_path / "s.db", tmp_path), 1)


def test_a_store_as_a_page(tmp_path: Path) -> None:
    """The page has GPU-hours by cause and day, and a heat map of stages by ranks; the slow worker's cell is darkest."""
    store = Embedded(tmp_path / "s.db")
    for at in range(40):
        for rank in range(8):
            counts = {"operations_total": 90 * at, "bytes_total": 700 * at, "iteration_seconds": 0.5, "pid": 40 + rank}
            world = {"comm": "w", "operation": "AllReduce:f32:7", "rank": rank, "ranks": 8, "active_ratio": 0.45}
            world["active_ratio"] = 0.1 if rank == 6 else 0.45
            pipe = {"comm": f"p{rank % 4}", "operation": "Send:f32:9", "rank": rank // 4, "ranks": 2}
            rows = [world | counts, pipe | counts | {"active_ratio": 0.05}]
            samples = [Sample("nccl", {"gpu": "0", "slot": str(slot), **row}) for slot, row in enumerate(rows)]
            store.write([Batch(f"m<{rank}", (86_380 + at) * SECOND, tuple(samples))])
    store.close()
    done = run("report", "stragglers", tmp_path / "s.db", "--html", tmp_path / "page.html", "--json")
    found = json.loads(done.stdout)
    workers = found["jobs"][0]["slowdown_by_worker"]
    assert (len(workers), len(workers[0]), found["jobs"][0]["ranks_per_stage"]) == (2, 4, 4)
    assert max((value, stage, rank) for stage, row in enumerate(workers) for rank, value in enumerate(row))[1:] == (
        1,
        2,
    )
    assert list(found["gpu_hours_lost_by_day"]) == ["1970-01-02"]
    page = (tmp_path / "page.html").read_text()
    assert "<title>stage 1, rank 2: 1." in page
    assert "m&lt;6 rank 6" in page
    assert "m<6" not in page
    assert "GPU-hours lost by cause" in page
    missing = run("report", "stragglers", tmp_path / "s.db", "--html", tmp_path / "none" / "page.html")
    assert "use another file" in one_line(missing, 1)
