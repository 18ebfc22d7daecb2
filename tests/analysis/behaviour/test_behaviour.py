"""Behaviour as distributions: what traces measure, and what is found worse than peers or a healthy run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.behaviour.baseline import BaselineError, load, save
from analysis.behaviour.comparison import against_history, against_peers, quantiles, wasserstein
from analysis.behaviour.from_traces import read_traces
from analysis.behaviour.measures import Behaviour

STEPS, STEP_US, KERNEL_US = 6, 40_000, 3_000
REAL = next(
    (place for up in Path(__file__).parents[4:6] if (place := up / "shared" / "data" / "kineto").is_dir()), Path("none")
)


def written(folder: Path, rank: int, seed: int, collections: bool = False, kernel_us: float = KERNEL_US) -> Path:
    """A trace of one rank: eight kernels a step, asked for ahead of time, or after a garbage collection each."""
    chance, events = np.random.default_rng([seed, rank]), []

    def event(category: str, name: str, start: float, seconds: float, **about: Any) -> None:
        events.append({"ph": "X", "cat": category, "name": name, "ts": start, "dur": seconds, "args": about})

    for step in range(STEPS):
        begin = 1e6 + step * STEP_US
        event("user_annotation", f"ProfilerStep#{step}", begin, STEP_US)
        for at in range(8):
            start, number = begin + 2_000 + at * 4_500 + chance.uniform(0, 90), 100 * step + at
            ahead = chance.uniform(5, 20) if collections else chance.uniform(3_000, 9_000)
            if collections:
                event("python_function", "gc.collect", start - 1_400, 1_200)
            event("cuda_runtime", "cudaLaunchKernel", start - ahead, 4, correlation=number)
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING(x)" if at == 7 else "gemm"
            group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "dtype": "BFloat16"}
            about = {"Collective name": "allreduce", "In msg nelems": 2_000_000, **group} if at == 7 else {}
            event("kernel", name, start, kernel_us * chance.uniform(0.98, 1.02), correlation=number, stream=7, **about)
    place = folder / f"rank{rank}.json"
    place.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 6}, "traceEvents": events}))
    return place


def run_of(folder: Path, seed: int, odd: dict[int, dict[str, Any]]) -> Behaviour:
    """The behaviour of six ranks."""
    folder.mkdir()
    return read_traces([written(folder, rank, seed, **odd.get(rank, {})) for rank in range(6)])


def test_measures_of_a_trace_are_what_was_put_in(tmp_path: Path) -> None:
    """Step, compute, voids, bandwidth and issue latency of a made-up trace come out as they were made."""
    found = run_of(tmp_path / "a", 3, {}).values
    assert found["iteration_seconds"]["rank 2"] == pytest.approx(0.04)
    assert found["compute_seconds"]["rank 2"] == pytest.approx(7 * 0.003, rel=0.02)
    assert found["void_between"]["rank 2"] == pytest.approx(0.1365, abs=0.005)
    assert found["void_within"]["rank 2"] == pytest.approx(1 - 0.6 - 0.1365, abs=0.02)
    assert 0.003 < float(np.median(found["issue_latency"]["rank 2"])) < 0.009
    rates = found["bandwidth of group 0 of ranks 0…1 (2)"]["rank 2"]
    assert rates == pytest.approx(4e6 / 0.003, rel=0.03)


def test_collections_are_named_as_the_cause(tmp_path: Path) -> None:
    """Where all ranks collect garbage between launches, issue latency has moved for all, and the cause is said."""
    healthy, stalled = (
        run_of(tmp_path / "a", 5, {}),
        run_of(tmp_path / "b", 6, {at: {"collections": True} for at in range(6)}),
    )
    save(healthy, tmp_path / "healthy.json")
    found = {one.measure: one for one in against_history(stalled, load(tmp_path / "healthy.json", stalled))}
    assert found["issue_latency"].everywhere
    assert found["issue_latency"].now < 1e-4 < found["issue_latency"].before
    assert "garbage collection" in found["issue_latency"].cause
    assert "gc" in found
    assert not against_peers(stalled)


def test_another_healthy_run_is_no_regression(tmp_path: Path) -> None:
    """A second run of the same program with other noise is not worse than the first."""
    healthy, again = run_of(tmp_path / "a", 7, {}), run_of(tmp_path / "b", 8, {})
    save(healthy, tmp_path / "healthy.json")
    assert against_history(again, load(tmp_path / "healthy.json", again)) == []


def test_a_slow_rank_differs_from_its_peers(tmp_path: Path) -> None:
    """One rank of six with longer kernels is found by them, and no other rank is."""
    found = against_peers(run_of(tmp_path / "a", 9, {4: {"kernel_us": 3_900}}))
    assert {one.ranks for one in found} == {("rank 4",)}
    assert "compute_seconds" in {one.measure for one in found}


def test_wasserstein_is_the_shift() -> None:
    """A distribution that is moved as a whole is as far away as it was moved."""
    values = np.random.default_rng(4).exponential(2.0, 900)
    assert wasserstein(quantiles(values), quantiles(values + 0.7)) == pytest.approx(0.7)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 9, "program": "", "size": 1, "measures": {}}', "\x00"])
def test_a_wrong_baseline_is_one_line(tmp_path: Path, text: str) -> None:
    """A file that is no saved behaviour, or of another version, is refused by its name."""
    place = tmp_path / "healthy.json"
    place.write_text(text)
    with pytest.raises(BaselineError, match=r"healthy\.json") as refused:
        load(place, Behaviour(1, ""))
    assert "\n" not in str(refused.value)


def test_a_baseline_of_another_job_is_refused(tmp_path: Path) -> None:
    """What was saved of another size cannot be compared with."""
    save(run_of(tmp_path / "a", 2, {}), tmp_path / "healthy.json")
    with pytest.raises(BaselineError, match="of another job: 6 ranks"):
        load(tmp_path / "healthy.json", Behaviour(8, ""))


@pytest.mark.skipif(not REAL.is_dir(), reason="the published traces are not here")
@pytest.mark.parametrize("rank", [0, 1])
def test_published_traces_are_measured_as_their_events_say(rank: int) -> None:
    """Issue latency of each kernel, and the time between steps, are those of the events of traces of a job of 128."""
    place = REAL / f"sampled_rank{rank}_of_128.json.gz"
    events = json.loads(gzip.decompress(place.read_bytes()))["traceEvents"]
    called = {one["args"]["correlation"]: one["ts"] for one in events if one.get("cat") == "cuda_runtime"}
    kernels = [one for one in events if one.get("cat") == "kernel" and "nccl" not in one["name"].lower()]
    latency = [max(one["ts"] - called[one["args"]["correlation"]], 0) / 1e6 for one in kernels]
    steps = [one for one in events if one.get("cat") == "user_annotation" and one["name"].startswith("ProfilerStep")]
    first, last = sorted(steps, key=lambda one: one["ts"])
    found = read_traces([place]).values
    assert sorted(found["issue_latency"][f"rank {rank}"]) == pytest.approx(sorted(latency), abs=2e-6)
    assert found["iteration_seconds"][f"rank {rank}"].tolist() == pytest.approx(
        [(last["ts"] - first["ts"]) / 1e6, last["dur"] / 1e6], abs=2e-6
    )
    assert 0 < found["void_within"][f"rank {rank}"].min() < 1
