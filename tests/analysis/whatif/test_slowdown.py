"""The what-if analysis against hand-computed jobs, a simulation of its own, and the study's published results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.whatif.causes import BALANCE, LAST_STAGE, WORKER, causes, headline
from analysis.whatif.meta_file import beside, read_meta
from analysis.whatif.model import build_model
from analysis.whatif.slowdown import analyse
from analysis.whatif.trace_file import read_trace
from tests.analysis.whatif.conftest import measured
from tests.analysis.whatif.jobs import Job, plain

STUDY = next(
    (found for up in Path(__file__).resolve().parents[4:] if (found := up / "shared/data/straggler").is_dir()), None
)
"""The publisher's trace and results, beside the checkout or further up."""
SHAPES = [
    {},
    {"dp": 3},
    {"pp": 2, "micro_batches": 2},
    {"pp": 4, "micro_batches": 2},
    {"dp": 2, "pp": 4, "micro_batches": 8, "steps": 3},
    {"pp": 2, "chunks": 2},
    {"pp": 2, "chunks": 2, "notes_nothing": True},
    {"dp": 2, "pp": 4, "chunks": 3, "micro_batches": 8, "notes_nothing": True},
]


def noisy() -> Any:
    """Passes of random length, the same each time they are asked for."""
    random, known = np.random.default_rng(3), dict[tuple[Any, ...], float]()
    return lambda *key: known.setdefault(key, plain(*key) * random.uniform(0.5, 1.5))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_replay_of_what_was_recorded_gives_its_times(shape: dict[str, Any], tmp_path: Path) -> None:
    """With the recorded lengths a replay takes as long as an independent simulation of the same passes."""
    job = Job(**shape, seconds=noisy())
    found = measured(job.write(tmp_path / "trace.parquet"))
    assert found.replayed == pytest.approx(job.step_s)
    assert found.recorded == pytest.approx(job.step_s)
    assert found.notes == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_passes_lose_nothing(shape: dict[str, Any], tmp_path: Path) -> None:
    """A job in which all passes of a kind are equally long has slowdown 1, no waste, and nothing to explain."""
    found = measured(Job(**shape).write(tmp_path / "trace.parquet"))
    assert found.slowdown == pytest.approx(1)
    assert found.waste == pytest.approx(0, abs=1e-9)
    assert (found.worker_share, found.stage_share) == (None, None)
    assert all(part == pytest.approx(1) for part in {**found.by_dp_rank, **found.by_stage, **found.by_type}.values())


def test_two_stages_and_two_micro_batches_by_hand(tmp_path: Path) -> None:
    """Two stages, two micro-batches, the last stage 1 s and 3 s longer than the first: every figure by hand.

    Stage 0 forward 1 s, backward 2 s; stage 1 forward 2 s, backward 5 s; transfers 0.01 s, then clip 0.37 s after the
    last pass and 0.2 s of optimizer. The clip of the last stage to end takes 0.37 s.
    """
    job = Job(
        pp=2,
        micro_batches=2,
        seconds=lambda kind, _, stage, *__: plain(kind, 0, 0, 0, 0) + (1, 3)[kind != "forward"] * stage,
    )
    found = measured(job.write(tmp_path / "trace.parquet"))
    # F0 to 1, transfer, stage 1: F 3.01, B 8.01, F 10.01, B 15.01, transfer, stage 0: B 17.02, clip 17.39, 17.59.
    assert found.replayed == pytest.approx([17.59])
    # Ideal passes take 1.5 s and 3.5 s: F 1.5, transfer, F 3.01, B 6.51, F 8.01, B 11.51, transfer, B 15.02.
    assert found.ideal == pytest.approx([15.59])
    assert found.slowdown == pytest.approx(17.59 / 15.59)
    # Only stage 1 as it was: F 1.5, F 3.51, B 8.51, F 10.51, B 15.51, B 19.02; without it: F 1, F 2.51, B 6.01, ...
    assert found.by_stage[1] == pytest.approx(19.59 / 15.59)
    assert found.stage_share == pytest.approx((17.59 - 13.59) / 2)


def test_slowdown_does_not_depend_on_the_unit(tmp_path: Path) -> None:
    """If everything takes three times as long, times are three times as long, and slowdown and shares stay."""
    job = Job(dp=2, pp=2, steps=2, seconds=noisy())
    before = measured(job.write(tmp_path / "before.parquet"))
    for row in job.rows:
        row["start_ts"], row["duration"] = 3 * row["start_ts"], 3 * row["duration"]
    after = measured(job.write(tmp_path / "after.parquet"))
    assert after.replayed == pytest.approx(3 * before.replayed)
    assert after.slowdown == pytest.approx(before.slowdown)
    assert after.worker_share == pytest.approx(before.worker_share)
    assert after.by_type == pytest.approx(before.by_type)


def test_a_slow_worker_is_named(tmp_path: Path) -> None:
    """One worker with passes 1.8 times as long: it is the hottest cell, and without it the loss is gone."""
    slow = lambda kind, dp, stage, *key: plain(kind, dp, stage, *key) * (1.8 if (dp, stage) == (2, 1) else 1)  # noqa: E731
    found = measured(Job(dp=4, pp=3, micro_batches=6, steps=2, seconds=slow).write(tmp_path / "trace.parquet"))
    assert np.unravel_index(np.nanargmax(found.by_worker), found.by_worker.shape) == (1, 2)
    assert found.slowest == (6,)
    assert found.worker_share is not None
    assert found.worker_share > 0.9
    first = causes(found)[0]
    assert (first.kind, first.is_named) == (WORKER, True)
    assert "rank 6 explains" in headline(found)


def test_a_long_last_stage_is_named(tmp_path: Path) -> None:
    """The last stage of every replica takes half as long again: the last stage explains the loss, no worker does."""
    long = lambda kind, dp, stage, *key: plain(kind, dp, stage, *key) * (1.5 if stage == 3 else 1)  # noqa: E731
    found = measured(Job(dp=3, pp=4, micro_batches=6, seconds=long).write(tmp_path / "trace.parquet"))
    named = [cause.kind for cause in causes(found) if cause.is_named]
    assert named == [LAST_STAGE]
    assert "the last stage explains" in headline(found)


def test_unequal_micro_batches_are_named(tmp_path: Path) -> None:
    """Micro-batches of random size on every data rank: forward and backward passes correlate, and evening helps."""
    random = np.random.default_rng(5).uniform(0.5, 2.0, (4, 3, 6))
    unequal = lambda kind, dp, stage, step, batch: plain(kind, 0, 0, 0, 0) * random[dp, step, batch]  # noqa: E731
    found = measured(Job(dp=4, pp=2, micro_batches=6, steps=3, seconds=unequal).write(tmp_path / "trace.parquet"))
    assert found.correlation == pytest.approx(1)
    first = causes(found)[0]
    assert (first.kind, first.is_named) == (BALANCE, True)
    assert "unequal micro-batches explain" in headline(found)


def test_a_worker_slow_as_a_whole_is_no_imbalance(tmp_path: Path) -> None:
    """Forward and backward passes of a slow worker are both long in all micro-batches, which is no correlation."""
    slow = lambda kind, dp, *key: plain(kind, dp, *key) * (2 if dp == 1 else 1)  # noqa: E731
    assert measured(Job(dp=3, steps=2, seconds=slow).write(tmp_path / "trace.parquet")).correlation == 0


def test_gpu_hours_are_those_of_the_description(tmp_path: Path) -> None:
    """GPU-hours are recorded seconds times world_size, lost ones times 1 - 1/S."""
    long = lambda kind, dp, stage, *key: plain(kind, dp, stage, *key) + stage  # noqa: E731
    file = Job(dp=2, pp=2, steps=3, seconds=long).write(tmp_path / "trace-x.parquet")
    (tmp_path / "meta-x.yaml").write_text("trial_name: x\nworld_size: 48 # of which 4 are in the trace\ntp_size: 12\n")
    described = beside(file)
    assert described is not None
    found = analyse(build_model(read_trace(file).found), read_meta(described))
    assert found.gpus == 48
    assert found.gpu_hours == pytest.approx(found.recorded.sum() * 48 / 3600)
    assert found.gpu_hours_lost == pytest.approx(found.gpu_hours * (1 - found.ideal.mean() / found.replayed.mean()))


@pytest.mark.skipif(STUDY is None, reason="the study's trace is not here")
def test_the_published_results_are_met() -> None:
    """Step times, slowdown, shares by data rank, stage and type, M_W and M_S are the publisher's, within 1 in 1,000."""
    assert STUDY is not None
    file = STUDY / "trace-ST.parquet"
    described = beside(file)
    assert described is not None
    found = analyse(build_model(read_trace(file).found), read_meta(described))
    published = json.loads((STUDY / "result-ST.json").read_text())
    times = {"step_t_base": found.recorded, "step_t_nodelay": found.replayed, "step_t_noblk": found.ideal}
    for name, ours in times.items():
        assert dict(zip(map(str, found.steps), ours, strict=True)) == pytest.approx(published[name], rel=1e-3)
    assert found.slowdown == pytest.approx(published["blocking_slowdown"], rel=1e-3)
    shares = {"dp_rank": found.by_dp_rank, "stage": found.by_stage, "optype": found.by_type}
    for name, ours in shares.items():
        assert {str(at): part for at, part in ours.items()} == pytest.approx(
            published[f"blocking_decompose_by_{name}"], rel=1e-3
        )
    assert found.worker_share == pytest.approx(json.loads((STUDY / "mw-ST.json").read_text())["Mw"], rel=1e-3)
    assert found.stage_share == pytest.approx(json.loads((STUDY / "ms-ST.json").read_text())["Ms"], rel=1e-3)
    assert (found.gpus, found.notes) == (8, [])
