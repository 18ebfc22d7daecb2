"""PeerClustering: without communicators, stages of a pipeline are found by what their machines read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import Detector, judge
from detector.methods.peers.groups.clustering import STEP_NS, STEPS
from detector.service.snapshot import dump, restore

SECOND = 10**9
Make = Callable[..., pa.Table]
TEN_MINUTES = STEPS * STEP_NS // SECOND


def groups(detector: Detector, machines: int) -> list[int]:
    """For each machine the first that it is alike."""
    alike = [detector.state.tasks.roles.of(f"m{n}", None) for n in range(machines)]
    return [alike.index(role) for role in alike]


def judged(memory: Any, table: pa.Table) -> tuple[Detector, set[str]]:
    """A detector after these readings, and the machines that it named."""
    detector = Detector()
    said = list(judge(memory({"gpu": table}), detector))
    return detector, {verdict.machine for verdict in said if verdict.level != "ok"}


@pytest.mark.parametrize("how", ["level", "shape"])
def test_a_clear_gap_parts_machines(memory: Any, fleet: Make, how: str) -> None:
    """Three groups that differ in their level, or only in how they go up and down, are separated after ten minutes."""

    def bend(values: np.ndarray) -> None:
        values[:] = 300 + 2 * (values - 100)
        stage = np.repeat([0, 1, 2], [4, 6, 4])
        if how == "level":
            values += 45 * stage
        else:
            values += 60 * np.sin(np.arange(len(values))[:, None] / np.array([31, 53, 97])[stage])

    detector, blamed = judged(memory, fleet("power_watts", machines=14, steps=TEN_MINUTES + 60, bend=bend))
    assert groups(detector, 14) == [0] * 4 + [4] * 6 + [10] * 4
    assert blamed == set()


@pytest.mark.parametrize("parts", [True, False])
def test_small_differences_are_learned_again_beside_other_peers(memory: Any, fleet: Make, parts: bool) -> None:
    """What is usual for a machine, a per cent apart from its peers, holds until some of them are no peers any more."""

    def bend(values: np.ndarray) -> None:
        values[:] = 310 + 2 * (values - 100)
        values[:, :5] += 47 * parts

    detector, _ = judged(memory, fleet("power_watts", machines=15, steps=TEN_MINUTES + 75, bend=bend))
    known_s = detector.state.panels()["gpu"].lasting.known_s
    assert (known_s.max() < 90, known_s.max() > 500) == (parts, not parts)


@pytest.mark.parametrize("spread", [0.0, 6.0])
def test_without_a_gap_all_are_alike(memory: Any, fleet: Make, spread: float) -> None:
    """Machines with offsets of their own, and three odd ones, are one group."""

    def bend(values: np.ndarray) -> None:
        values += spread * np.random.default_rng(11).standard_t(4, values.shape[1])
        values[:, :3] += 150

    detector, _ = judged(memory, fleet("power_watts", machines=16, steps=TEN_MINUTES + 60, bend=bend))
    assert groups(detector, 16) == [0] * 16


def test_a_stage_that_does_less_is_not_blamed(memory: Any, fleet: Make) -> None:
    """After ten minutes a group may change its level; one of it that does not is named, and how peers were found."""

    def bend(values: np.ndarray) -> None:
        values[:] = 200 + 2 * (values - 100) + np.repeat([0, 45, 90, 135, 180, 225], 4)
        values[TEN_MINUTES + 60 :, 8:12] -= 90
        values[TEN_MINUTES + 60 :, 9] += lag

    steps = TEN_MINUTES + 220
    lag = 0.0
    assert judged(memory, fleet("power_watts", machines=24, steps=steps, bend=bend))[1] == set()
    lag = 90.0
    table = fleet("power_watts", machines=24, steps=steps, bend=bend)
    detector = Detector()
    said = [verdict for verdict in judge(memory({"gpu": table}), detector) if verdict.level != "ok"]
    assert [verdict.machine for verdict in said] == ["m9"]
    assert said[0].message.endswith("(its peers were found by their readings)")
    saved, _ = restore(dump(detector.state, 0), detector.config)
    assert groups(Detector(state=saved), 24) == groups(detector, 24)


def test_rare_readings_are_of_several_days(memory: Any, fleet: Make) -> None:
    """Jobs of hours part machines for hours, at a sample each five minutes: they are no groups."""
    day, hours = 288, 48

    def bend(values: np.ndarray) -> None:
        rng = np.random.default_rng(37)
        jobs = np.stack([rng.permutation(values.shape[1]) % 2 for _ in range(0, len(values), hours)])
        values[:] = 300 + 2 * (values - 100) + 200 * np.repeat(jobs, hours, axis=0)[: len(values)]

    detector, _ = judged(memory, fleet("power_watts", machines=14, steps=3 * day, step_s=300, bend=bend))
    assert groups(detector, 14) == [0] * 14
