"""The search for the device behind irregular iterations, on logs of another generator than the model was fitted on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.operators.analysis import Analysis, analyse
from analysis.operators.candidates import rank_candidates
from analysis.operators.judging import irregular, judge
from analysis.traces.reading import read_logs
from detector.attribution.forest import load
from emulator.simulation.operator_log import operators_log
from emulator.simulation.pipeline_job import GPUS, Fault, Job, Shape, write_inspector
from tests.analysis.operators.grid_log import lined_up

SHAPE = Shape(tensor=4, data=4, pipeline=2, micro_batches=4)
ABOVE = {f"m{at:02d}": (f"leaf{at // 2}", "spine") for at in range(SHAPE.ranks // GPUS)}


def analysed(folder: Path, fault: Fault, seed: int, verbose: bool = True) -> Analysis:
    """The analysis of a job that was logged."""
    job = Job(SHAPE, fault, seed)
    job.run(20)
    write_inspector(job, folder, verbose)
    return analyse(read_logs([folder]).operations, load(), ABOVE)


@pytest.mark.parametrize(
    ("fault", "device"),
    [
        (Fault("gpu", 13, 2.1), ("gpu", "rank 13")),
        (Fault("link", 22, 3.4), ("link", "rank 22")),
        (Fault("switch", 1, 3.1), ("switch", "leaf1")),
    ],
    ids=["gpu", "link", "switch"],
)
def test_the_device_is_named_first(tmp_path: Path, fault: Fault, device: tuple[str, str]) -> None:
    """A late GPU, a slow port and a slow leaf switch of a pipeline job are named first, with most of the loss."""
    found = analysed(tmp_path, fault, 31)
    first = found.candidates[0]
    assert (first.kind, first.device) == device
    assert first.share > 0.5
    assert first.operations


def test_a_log_without_times_will_do(tmp_path: Path) -> None:
    """Without the verbose plugin an operation ends when it was written, and the GPU is still named."""
    found = analysed(tmp_path, Fault("gpu", 9, 2.3), 37, verbose=False)
    assert found.candidates[0].device == "rank 9"


@pytest.mark.parametrize(("kind", "device"), [("gpu", "gpu"), ("nic", "link")])
def test_six_kinds_of_parallelism(kind: str, device: str) -> None:
    """In a grid of six kinds of groups a late GPU and a slow port are named first, with their kind."""
    made = operators_log((2, 2, 2, 2, 2, 2), 24, 37, kind, 1.3)
    table, log = lined_up(made)
    first = rank_candidates(table, log, judge(log, load()))[0]
    assert (first.device, first.kind) == (f"rank {made.culprit}", device)


def test_drift_is_followed_by_the_thresholds() -> None:
    """Where all communication has come to take twice as long, the model still finds the culprit."""
    made = operators_log((2, 2, 2, 2, 2, 2), 24, 43, "gpu", 1.4, drift=2.0)
    table, log = lined_up(made)
    assert f"rank {made.culprit}" in {one.device for one in rank_candidates(table, log, judge(log, load()))}


def test_regular_iterations_name_no_device() -> None:
    """Iterations that differ no more than usual are regular; one that is far out is not."""
    even = np.random.default_rng(3).normal(0.5, 0.01, 40)
    assert not irregular(even).any()
    assert irregular(np.append(even, 0.61)).nonzero()[0].tolist() == [40]
