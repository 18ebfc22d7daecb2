"""Stalls: who a task that stands waits for, by what its GPUs read since then and what they differ by anyway."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detector.engine.pipeline import Detector, judge
from tests.detector.engine.test_harm import MACHINES, ONSET, SECOND, START, STEPS, tables, training, watch
from tests.detector.harm.search.test_cause import each_its_own


def waits(found: dict[str, np.ndarray], machines: slice = slice(None)) -> None:
    """These machines' GPUs are busy with waiting from the onset on."""
    noise = np.random.default_rng(17).normal(0, 2, (STEPS - ONSET, MACHINES))
    found["gpu.tensor_active_ratio"][ONSET:, machines] = 0.0
    found["gpu.duty_cycle_ratio"][ONSET:, machines] = 1.0
    found["gpu.power_watts"][ONSET:, machines] = (151 + noise)[:, machines]


@pytest.mark.parametrize("begins", [0, 130])
def test_a_kernel_that_never_ends_is_named_however_young_its_task_is(memory: Any, begins: int) -> None:
    """Of a task that is read for 80 s baselines begin again as all come to wait: what it draws more is not usual.

    The task paused for 20 s before, so that nothing is said in the first 30 s.
    """

    def kernel(found: dict[str, np.ndarray]) -> None:
        found["gpu.tensor_active_ratio"][170:190] = 0.0
        waits(found)
        found["gpu.power_watts"][ONSET:, 3] += 74

    late = {at: slice(0, begins) for at in range(MACHINES)} if begins else None
    said, _ = watch(memory, tables(training(kernel), late))
    (named,) = [one for one in said if "stands still" in one.message]
    assert (named.machine, named.device, named.metric) == ("m3", "gpu:0", "gpu.power_watts")
    assert 30 <= (named.time - START) / SECOND - ONSET < 60
    assert {one.machine for one in said} == {"m3"}


@pytest.mark.parametrize(("held", "soonest", "latest"), [(0.03, 10, 60), (0.98, 150, 240)])
def test_a_restart_does_not_tell_how_long_ranks_wait(memory: Any, held: float, soonest: int, latest: int) -> None:
    """After a pause of 120 s a kernel hangs: named soon if the processes had ended in the pause, else after 180 s."""

    def kernel(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(29).normal(0, 1, (STEPS, MACHINES))
        found["gpu.memory_used_bytes"] = 6.3e10 * (1 + 0.0003 * noise)
        found["gpu.memory_used_bytes"][140:200] *= held
        found["gpu.tensor_active_ratio"][140:200] = 0.0
        found["gpu.duty_cycle_ratio"][140:200] = 0.4
        found["gpu.power_watts"][140:200] = 90 + noise[140:200]
        waits(found)
        found["gpu.power_watts"][ONSET:, 3] += 74

    said = list(judge(memory(tables(training(kernel), step_s=2)), Detector()))
    (named,) = [one for one in said if "stands still" in one.message]
    assert (named.machine, named.metric) == ("m3", "gpu.power_watts")
    assert soonest <= (named.time - START) / SECOND - 2 * ONSET < latest


def test_of_a_task_of_one_machine_that_stands_it_is_known_where(memory: Any) -> None:
    """After two minutes the machine is named, if not which of its GPUs; the tasks beside it go on."""

    def stands(found: dict[str, np.ndarray]) -> None:
        waits(found, slice(5, 6))

    said, notes = watch(memory, each_its_own(tables(training(stands))))
    (one,) = [verdict for verdict in said if verdict.level == "crit"]
    assert (one.machine, one.device, one.task, one.names_machine) == ("m5", None, "job-35", True)
    assert 110 <= (one.time - START) / SECOND - ONSET <= 140
    assert "task job-35 stands still since" in one.message
    assert {note.machine for note in notes} <= {"m5"}


@pytest.mark.parametrize(("away_s", "waits_s", "named"), [(140, 20, []), (30, 150, ["m5"])])
def test_a_task_is_not_said_to_stand_for_the_time_in_which_it_was_not_read(
    memory: Any, away_s: int, waits_s: int, named: list[str]
) -> None:
    """Its one agent comes back while all GPUs wait: 20 s of that say nothing, whatever was before; 120 s do."""

    def stands(found: dict[str, np.ndarray]) -> None:
        usual = {key: array.copy() for key, array in found.items()}
        waits(found, slice(5, 6))
        for key, array in usual.items():
            found[key][ONSET + away_s + waits_s :] = array[ONSET + away_s + waits_s :]

    rows = tables(training(stands), {5: slice(ONSET, ONSET + away_s)})
    said, _ = watch(memory, each_its_own(rows))
    assert [one.machine for one in said if "stands still" in one.message] == named


def test_of_gpus_that_are_all_idle_none_is_named(memory: Any) -> None:
    """In a pause of two minutes, in which most run a kernel for 4 % of the time, one that does for 9 % is like them."""

    def pauses(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(37).normal(0, 0.004, (STEPS - ONSET, MACHINES))
        found["gpu.tensor_active_ratio"][ONSET:] = 0.0
        found["gpu.power_watts"][ONSET:] = 93 + 100 * noise
        found["gpu.duty_cycle_ratio"][ONSET:] = 0.043 + noise
        found["gpu.duty_cycle_ratio"][ONSET:, 2] += 0.049

    said, _ = watch(memory, tables(training(pauses)))
    assert [one.machine for one in said if "stands still" in one.message] == []


def test_those_most_unlike_the_others_are_listed_by_what_they_read_on_average(memory: Any) -> None:
    """One draws 7 W more, which is too little to be named for and more than any other differs by over two minutes."""

    def slightly(found: dict[str, np.ndarray]) -> None:
        waits(found)
        found["gpu.power_watts"][ONSET:, 6] += 7

    (nameless,), _ = watch(memory, tables(training(slightly)))
    assert nameless.metric == "task.stalled"
    assert "most unlike the others: m6 GPU 0, " in nameless.message


def test_a_gpu_that_does_less_than_those_that_wait_is_named_as_soon_as_it_writes_no_checkpoint(memory: Any) -> None:
    """By rows of 10 s: two looks at which it was found, and 45 s in which a rank may write, run side by side."""

    def hangs(found: dict[str, np.ndarray]) -> None:
        waits(found)
        found["gpu.power_watts"][ONSET:, 6] -= 79
        found["gpu.duty_cycle_ratio"][ONSET:, 6] = 0.0

    said, _ = watch(memory, tables(training(hangs), step_s=10))
    (named,) = [one for one in said if "stands still" in one.message]
    assert {one.machine for one in said} == {"m6"}
    assert 45 <= (named.time - START) / SECOND - 10 * ONSET < 55


@pytest.mark.parametrize(
    ("watts", "soonest", "latest", "named"), [(-43, 45, 60, "m6"), (-14, 60, 75, "m6"), (-9, 120, 130, None)]
)
def test_who_differs_a_little_from_those_that_wait_is_named_after_a_minute(
    memory: Any, watts: float, soonest: int, latest: int, named: str | None
) -> None:
    """A kernel that hangs may draw nearly what NCCL's does: 9 % less is one of 151 W, 6 % is not."""

    def slightly(found: dict[str, np.ndarray]) -> None:
        waits(found)
        found["gpu.power_watts"][ONSET:, 6] += watts

    (one,), _ = watch(memory, tables(training(slightly)))
    assert (one.machine if one.names_machine else None) == named
    assert soonest <= (one.time - START) / SECOND - ONSET < latest
    assert one.score >= 1


def test_a_task_of_which_only_nccl_is_read_is_said_to_stand(memory: Any) -> None:
    """After two minutes in which all ranks have operations in flight and none ends, and not where they have none."""
    for active in (0.98, 0.03):
        rng = np.random.default_rng(83)
        found = {
            "nccl.operations_total": 210 + rng.normal(0, 3, (STEPS, MACHINES)),
            "nccl.active_ratio": np.clip(rng.normal(0.47, 0.02, (STEPS, MACHINES)), 0, 1),
        }
        found["nccl.operations_total"][ONSET:] = 0.0
        found["nccl.active_ratio"][ONSET:] = active * rng.uniform(0.99, 1.01, (STEPS - ONSET, MACHINES))
        found["nccl.active_ratio"][ONSET:, 4] *= 0.95
        said = [one for one in judge(memory(tables(found)), Detector()) if one.level != "ok"]
        assert [one.metric for one in said] == (["task.stalled"] if active > 0.9 else [])
        for one in said:
            assert 115 <= (one.time - START) / SECOND - ONSET <= 130
            assert "most unlike the others: m4" in one.message
