"""The search for the device behind irregular iterations, on logs of another generator than the model was fitted on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.operators.analysis import Analysis, analyse
from analysis.operators.candidates import rank_candidates
from analysis.operators.judging import calm, irregular, judge, long
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


@pytest.mark.parametrize(("kind", "seed", "device"), [("gpu", 41, "gpu"), ("nic", 42, "link")])
def test_a_cause_that_comes_back_outweighs_longer_pauses(kind: str, seed: int, device: str) -> None:
    """Ranks that pause once each, for longer than the fault costs an iteration, are not named before it."""
    made = operators_log((2, 2, 2, 4, 2, 2), 24, seed, kind, 1.15)
    table, log = lined_up(made)
    elapsed, length = log.elapsed.copy(), log.iteration_seconds.copy()
    for iteration, rank in ((3, 17), (9, 44), (15, 5), (19, 60)):  # all others wait for it in its last operation
        last = log.cell[log.rank == rank][-1]
        elapsed[iteration, (log.cell == last) & (log.rank != rank)] += 0.3
        length[iteration] += 0.3
    log = replace(log, elapsed=elapsed, iteration_seconds=length)
    first = rank_candidates(table, log, judge(log, load()))[0]
    assert (first.device, first.kind) == (f"rank {made.culprit}", device)
    assert first.iterations > 1


def test_a_fault_close_to_the_limit_does_not_teach_what_is_usual() -> None:
    """Iterations that are long but not yet irregular are no baseline; once one is irregular they are judged with it."""
    seconds = np.array([0.93, 1.0, 1.03, 1.01, 0.97, 0.99, 1.0, 0.98, 1.11, 1.10, 1.11, 1.13])
    assert irregular(seconds).nonzero()[0].tolist() == [11]
    assert calm(seconds).nonzero()[0].tolist() == list(range(8))
    assert long(seconds).tolist() == [8, 9, 10, 11]
    assert not len(long(seconds[:8]))


def test_regular_iterations_name_no_device() -> None:
    """Iterations that differ no more than usual are regular; one that is far out is not."""
    even = np.random.default_rng(3).normal(0.5, 0.01, 40)
    assert not irregular(even).any()
    assert irregular(np.append(even, 0.61)).nonzero()[0].tolist() == [40]
