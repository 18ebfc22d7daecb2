"""Clocks at rest, of which nothing is learned; and what a lower power limit explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detector.engine.pipeline import Detector, judge
from tests.detector.engine.test_harm import MACHINES, ONSET, STEPS, tables, training, watch

AT_REST = 345e6


def clocks(rest: slice, chips: np.ndarray) -> np.ndarray:
    """[step, machine]: clocks that differ by chip at work and are all the same while their task rests."""
    noise = np.random.default_rng(61).normal(0, 2e6, (STEPS, MACHINES))
    found: np.ndarray = 1.965e9 * chips + noise
    found[rest] = AT_REST + 1e-3 * noise[rest]
    return found


def test_what_clocks_read_at_rest_is_not_usual_at_work(memory: Any) -> None:
    """A chip that clocks 6 % lower than the others is no fault when its task begins after three minutes."""
    rest = slice(0, 170)
    chips = np.ones(MACHINES)
    chips[4] = 0.94

    def slow_chip(found: dict[str, np.ndarray]) -> None:
        found["gpu.sm_clock_hertz"] = clocks(rest, chips)
        for key in ("gpu.tensor_active_ratio", "gpu.duty_cycle_ratio", "gpu.power_watts"):
            found[key][rest] *= 0.2

    assert watch(memory, tables(training(slow_chip)))[0] == []


def test_a_clock_that_falls_after_its_task_began_late_is_found(memory: Any) -> None:
    """What is learned from the first minute at work is enough for that."""

    def falls(found: dict[str, np.ndarray]) -> None:
        found["gpu.sm_clock_hertz"] = clocks(slice(0, 160), np.ones(MACHINES))
        found["gpu.sm_clock_hertz"][ONSET + 40 :, 4] *= 0.9

    said, _ = watch(memory, tables(training(falls)))
    assert {(one.machine, one.metric) for one in said} == {("m4", "gpu.sm_clock_hertz")}


@pytest.mark.parametrize("begins", [60, 83])
def test_what_was_learned_before_a_pause_holds_after_it(memory: Any, begins: int) -> None:
    """A port that always pauses its senders more than others reads as they do in a checkpoint: none of that is new."""

    def checkpoint(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(67).normal(0, 1, (2, STEPS, MACHINES))
        found["rdma.transmit_bytes_total"] = 2.3e10 * (1 + 0.02 * noise[0])
        found["rdma.pfc_transmit_frames_total"][:, 3] += 1430 * (1 + 0.2 * noise[1][:, 3])
        for key in ("gpu.tensor_active_ratio", "rdma.transmit_bytes_total", "rdma.pfc_transmit_frames_total"):
            found[key][begins : begins + 25] = 0.0

    detector = Detector()
    list(judge(memory(tables(training(checkpoint))), detector))
    panel = detector.state.panels()["rdma"]
    metric, entity = panel.row_of("pfc_transmit_frames_total"), panel.window.entities.index(("m3", "rdma:mlx5_0/1"))
    assert metric is not None
    assert panel.baseline.offset[metric, entity] == pytest.approx(1430, rel=0.1)
    assert panel.cusum.value[0, metric, entity] < 1


@pytest.mark.parametrize(("limit", "said_of"), [(0.9, set()), (0.97, {"m5"}), (1.0, {"m5"})])
def test_what_a_lower_power_limit_explains_is_a_note(memory: Any, limit: float, said_of: set[str]) -> None:
    """A machine that is set to 630 W and not 700 W draws 14 % less, and clocks lower, as soon as the task needs it all.

    With 679 W it is for something else.
    """

    def capped(found: dict[str, np.ndarray]) -> None:
        found["gpu.power_limit_watts"] = np.full((STEPS, MACHINES), 700.0)
        found["gpu.power_limit_watts"][:, 5] *= limit
        found["gpu.power_watts"][ONSET:, 5] *= 0.86
        found["gpu.sm_clock_hertz"] = clocks(slice(0, 0), np.ones(MACHINES))
        found["gpu.sm_clock_hertz"][ONSET:, 5] *= 0.93

    said, notes = watch(memory, tables(training(capped)))
    assert {one.machine for one in said} == said_of
    assert "m5" in {one.machine for one in said + notes}


@pytest.mark.parametrize(("clock", "said_of"), [(0.95, set()), (0.87, {"m2"})])
def test_time_at_the_power_limit_is_judged_by_the_clock_that_it_costs(
    memory: Any, clock: float, said_of: set[str]
) -> None:
    """A chip that is at its limit for 20 s of each minute clocks 5 % lower then, as chips do; 13 % is a fault."""

    def limited(found: dict[str, np.ndarray]) -> None:
        found["gpu.throttle_power_seconds_total"] = np.zeros((STEPS, MACHINES))
        at_limit = (np.arange(STEPS) >= ONSET) & (np.arange(STEPS) % 60 < 20)
        found["gpu.throttle_power_seconds_total"][at_limit, 2] = 0.83
        found["gpu.sm_clock_hertz"] = clocks(slice(0, 0), np.ones(MACHINES))
        found["gpu.sm_clock_hertz"][at_limit, 2] *= clock

    said, _ = watch(memory, tables(training(limited)))
    assert {one.machine for one in said} == said_of
