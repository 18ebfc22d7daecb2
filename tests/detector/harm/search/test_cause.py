"""Cause: what changed on one machine when its task lost pace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.detector.engine.test_harm import MACHINES, ONSET, START, STEPS, crowded, slower, tables, training, watch

SECOND = 10**9


def each_its_own(found: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The same readings, of machines that each work for a task of their own."""
    names = [f"m{at}" for at in range(MACHINES)]
    tasks = {"time": [START] * MACHINES, "machine": names, "task": [f"job-{at + 30}" for at in range(MACHINES)]}
    return found | {"task": pa.table(tasks)}


@pytest.mark.parametrize(
    ("metric", "usual", "changed", "lost", "named"),
    [
        ("gpu.sm_clock_hertz", 1.93e9, 1.71e9, 0.1, {"m2"}),
        ("host.tcp_retransmit_segments_total", 1.2, 47.0, 0.11, {"m2"}),
        ("host.disk_write_bytes_total", 2.9e6, 8e8, 0.12, set()),
        ("gpu.sm_clock_hertz", 1.94e9, 1.72e9, 0.0, set()),
    ],
)
def test_a_task_of_one_machine_is_compared_with_its_own_past(
    memory: Any, metric: str, usual: float, changed: float, lost: float, named: set[str]
) -> None:
    """Beside machines of other tasks: a lower clock or lost segments, when it loses pace, but not other work there."""

    def own_tasks(found: dict[str, np.ndarray]) -> None:
        level = usual * np.linspace(0.7, 1.3, MACHINES)  # each task asks for something else
        found[metric] = level * (1 + 0.01 * np.random.default_rng(9).normal(0, 1, (STEPS, MACHINES)))
        found[metric][ONSET:, 2] *= changed / usual
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][ONSET:, 2] *= 1 - lost

    said, _ = watch(memory, each_its_own(tables(training(own_tasks), step_s=2)))
    assert {(one.machine, one.metric) for one in said} == {(name, metric) for name in named}
    assert all("before: " in one.message and "job-32 lost" in one.message for one in said)


@pytest.mark.parametrize(
    ("onset", "metric", "more", "lost", "named"),
    [
        (ONSET, "host.processes_running", 57.0, 0.37, {"m2"}),
        (ONSET + 5, "host.processes_running", 55.0, 0.38, {"m2"}),
        (ONSET, "host.processes_running", 57.0, 0.07, set()),
        (ONSET, "host.processes_running", -19.0, 0.37, set()),
        (ONSET, "host.context_switches_total", 2.1e5, 0.37, set()),
    ],
)
def test_processors_that_others_want_slow_a_task_of_one_machine(
    memory: Any, onset: int, metric: str, more: float, lost: float, named: set[str]
) -> None:
    """A third of its pace is lost when threads come to wait for processors; what a program does itself is no cause.

    Within a minute, whether rows of 10 or of 20 s are looked at first.
    """

    def own_tasks(found: dict[str, np.ndarray]) -> None:
        level = np.linspace(24, 31, MACHINES) * (9e3 if metric.endswith("_total") else 1)
        found[metric] = level + 0.02 * level * np.random.default_rng(11).normal(0, 1, (STEPS, MACHINES))
        found[metric][onset:, 2] += more
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][onset:, 2] *= 1 - lost

    said, _ = watch(memory, each_its_own(tables(training(own_tasks), step_s=2)))
    assert {(one.machine, one.metric) for one in said} == {(name, metric) for name in named}
    assert all(50 <= (one.time - START) / SECOND - 2 * onset <= 63 for one in said)


@pytest.mark.parametrize(("falls", "named"), [(0.92, {"m4"}), (0.86, set())])
def test_a_gpu_that_works_while_others_wait_draws_more_than_they_do(memory: Any, falls: float, named: set[str]) -> None:
    """Memory becomes slow: a quarter of the pace is lost, and all draw 14 % less but one, whatever its chip draws."""

    def slow_memory(found: dict[str, np.ndarray]) -> None:
        chips = np.random.default_rng(53).permutation(np.linspace(0.9, 1.1, MACHINES))
        noise = np.random.default_rng(59).normal(0, 1, (2, STEPS, MACHINES))
        found["gpu.power_watts"] = 520 * chips * (1 + 0.006 * noise[0])
        found["gpu.nvlink_transmit_bytes_total"] = 4.1e10 * (1 + 0.01 * noise[1])
        for key, share in (("gpu.tensor_active_ratio", 0.75), ("gpu.nvlink_transmit_bytes_total", 0.75)):
            found[key][ONSET:] *= share
        found["gpu.power_watts"][ONSET:] *= 0.86
        found["gpu.power_watts"][ONSET:, 4] *= falls / 0.86

    said, _ = watch(memory, tables(training(slow_memory)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("lost", "lower", "earliest", "latest"), [(0.11, 0.07, 38, 52), (0.06, 0.05, 65, 85)])
def test_a_great_loss_of_pace_is_looked_into_sooner(
    memory: Any, lost: float, lower: float, earliest: int, latest: int
) -> None:
    """After half a minute where a tenth of the pace is lost, else after a minute; and once more before it is said."""

    def slow_copies(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(61).normal(0, 1, (STEPS, MACHINES))
        found["gpu.copy_bandwidth"] = 1.9e10 * (1 + 0.014 * noise)
        found["gpu.copy_bandwidth"][ONSET:, 5] *= 1 - lower
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][ONSET:] *= 1 - lost

    (said, *_), _ = watch(memory, tables(training(slow_copies)))
    assert (said.machine, said.device) == ("m5", "gpu:0")
    assert f"when task all lost {100 * lost:.0f} %" in said.message
    assert earliest <= (said.time - START) / SECOND - ONSET <= latest


@pytest.mark.parametrize(("lower", "named"), [(0.022, set()), (0.035, {"m5"})])
def test_beside_few_machines_a_change_has_to_be_clearer(memory: Any, lower: float, named: set[str]) -> None:
    """Where a task loses 4 % one of seven machines copies more slowly: by seven spreads is chance, by twelve is not."""

    def slow_copies(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(73).normal(0, 1, (STEPS, MACHINES))
        found["gpu.copy_bandwidth"] = 2.7e10 * (1 + 0.0004 * noise)
        found["gpu.copy_bandwidth"][ONSET:, 5] *= 1 - lower
        slower(found, 0.96)

    said, _ = watch(memory, tables(training(slow_copies)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("changed", "named"), [(0.13, set()), (0.61, {"m2"})])
def test_processors_that_idle_most_of_the_time_slow_no_task(memory: Any, changed: float, named: set[str]) -> None:
    """A task of one machine loses a third of its pace as its processors are busier: at 13 % they wait for work."""

    def busier(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(83).normal(0, 1, (STEPS, MACHINES))
        found["host.cpu_utilization_ratio"] = 0.07 * (1 + 0.02 * noise)
        found["host.cpu_utilization_ratio"][ONSET:, 2] += changed - 0.07
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][ONSET:, 2] *= 0.65

    said, _ = watch(memory, each_its_own(tables(training(busier), step_s=2)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("seconds", "named"), [(43, set()), (90, {"m3"})])
def test_a_neighbour_on_the_processors_for_a_moment_is_no_fault(memory: Any, seconds: int, named: set[str]) -> None:
    """While all lose 14 % of their pace the GPUs of one machine idle, and threads there wait for processors."""
    waits = crowded("host.cpu_pressure_ratio", 0.008, 0.33, 0.03, 0.86, seconds)
    said, _ = watch(memory, tables(training(waits)))
    assert {one.machine for one in said} == named
    assert all(50 <= (one.time - START) / SECOND - ONSET <= 75 for one in said)


@pytest.mark.parametrize(("passes", "earliest", "latest"), [(False, 65, 95), (True, 155, 215)])
def test_who_is_found_after_another_was_has_to_last_longer(
    memory: Any, passes: bool, earliest: int, latest: int
) -> None:
    """A bandwidth is lower since the task lost 6 % of its pace; on another machine one was, for a minute."""

    def one_after_the_other(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(67).normal(0, 1, (2, STEPS, MACHINES))
        found["gpu.link_bandwidth"] = 3.1e10 * (1 + 0.014 * noise[0])
        found["gpu.copy_bandwidth"] = 2.3e10 * (1 + 0.001 * noise[1])
        found["gpu.link_bandwidth"][ONSET:, 5] *= 0.95
        if passes:
            found["gpu.copy_bandwidth"][ONSET : ONSET + 57, 2] *= 0.92
        slower(found, 0.94)

    (said, *others), _ = watch(memory, tables(training(one_after_the_other)))
    assert (said.machine, {one.machine for one in others} - {"m5"}) == ("m5", set())
    assert earliest <= (said.time - START) / SECOND - ONSET <= latest


@pytest.mark.parametrize(
    ("metric", "usual", "changed", "named"),
    [
        ("host.cpu_system_ratio", 0.018, 0.037, set()),
        ("host.cpu_system_ratio", 0.018, 0.081, {"m1"}),
        ("host.cpu_system_ratio", 0.118, 0.151, {"m1"}),
    ],
)
def test_processors_that_are_a_little_busier_hold_up_no_task(
    memory: Any, metric: str, usual: float, changed: float, named: set[str]
) -> None:
    """2 % of a machine's processors more than before may be twice as much, and cost no task a tenth of its pace."""

    def busier(found: dict[str, np.ndarray]) -> None:
        found[metric] = usual * (1 + 0.004 * np.random.default_rng(71).normal(0, 1, (STEPS, MACHINES)))
        found[metric][ONSET:, 1] *= changed / usual
        slower(found, 0.9)

    said, _ = watch(memory, tables(training(busier)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("lost", "named"), [(0.03, set()), (0.12, {"m6"})])
def test_memory_of_a_small_program_costs_no_task_its_pace(memory: Any, lost: float, named: set[str]) -> None:
    """Somebody's notebook takes 4 GB of a GPU as its task loses 3 %; where a tenth is lost it may well compute."""

    def notebook(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(73).normal(0, 1, (STEPS, MACHINES))
        found["gpu.memory_used_bytes"] = 7.1e10 * (1 + 0.0004 * noise)
        found["gpu.memory_used_bytes"][ONSET:, 6] += 6e9
        slower(found, 1 - lost)

    said, _ = watch(memory, tables(training(notebook)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("missed", "named"), [(False, {"m4"}), (True, set())])
def test_what_an_agent_missed_since_the_loss_is_no_cause(memory: Any, missed: bool, named: set[str]) -> None:
    """A bandwidth that is lower by the rows that came: those of 45 s are missing, of this machine alone."""

    def slow_copies(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(79).normal(0, 1, (STEPS, MACHINES))
        found["gpu.copy_bandwidth"] = 2.1e10 * (1 + 0.014 * noise)
        found["gpu.copy_bandwidth"][ONSET:, 4] *= 0.95
        slower(found, 0.95)

    away = {4: slice(ONSET + 12, ONSET + 57)} if missed else {}
    said, _ = watch(memory, tables(training(slow_copies), away))
    soon = [one for one in said if (one.time - START) / SECOND - ONSET < 110]
    assert {one.machine for one in soon} == named


@pytest.mark.parametrize(
    ("metric", "usual", "changed", "clustered", "named"),
    [
        ("nccl.host_blocked_seconds_total", 0.41, 0.36, True, set()),
        ("nccl.host_blocked_seconds_total", 0.41, 0.36, False, {"m3"}),
        ("rdma.discards_total", 0.4, 3.4, True, {"m3"}),
    ],
)
def test_peers_that_were_found_by_their_readings_may_come_to_work_less_alike(
    memory: Any, metric: str, usual: float, changed: float, clustered: bool, named: set[str]
) -> None:
    """One of another role waits less as the task loses pace, which is a note; packets thrown away are a cause."""

    def apart(found: dict[str, np.ndarray]) -> None:
        found[metric] = usual * (1 + 0.006 * np.random.default_rng(83).normal(0, 1, (STEPS, MACHINES)))
        found[metric][ONSET:, 3] *= changed / usual
        slower(found, 0.93)

    said, notes = watch(memory, tables(training(apart)), clustered)
    assert {(one.machine, one.metric) for one in said} == {(name, metric) for name in named}
    assert named or {(note.machine, note.metric) for note in notes} == {("m3", metric)}


@pytest.mark.parametrize(
    ("metric", "usual", "changed"),
    [("gpu.pcie_transmit_bytes_total", 2.3e10, 2.1e10), ("gpu.dram_active_ratio", 0.33, 0.24)],
)
def test_who_does_other_work_in_each_iteration_is_no_cause(
    memory: Any, metric: str, usual: float, changed: float
) -> None:
    """All members end as many iterations, also as they lose pace: one that copies less does other work."""

    def otherwise(found: dict[str, np.ndarray]) -> None:
        found[metric] = usual * (1 + 0.006 * np.random.default_rng(89).normal(0, 1, (STEPS, MACHINES)))
        slower(found, 0.92)
        found[metric][ONSET:] *= 0.92
        found[metric][ONSET:, 4] *= changed / usual

    said, _ = watch(memory, tables(training(otherwise)))
    assert not [one for one in said if "on no other machine" in one.message]
