"""The CUSUM of deviations on arrays: what it adds, when it raises an alarm and when it ends one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.config import Config
from detector.methods.peers.cusum import (
    HIGH,
    LOW,
    MAX_DOUBLINGS,
    ActiveCells,
    CusumParams,
    CusumState,
    accumulate,
    active_cells,
    cusum_params,
    thresholds,
    write,
)
from store.schema.time import SECOND

PARAMS = CusumParams(0.5, np.array([4.0]), np.array([20.0]), 2 * SECOND, 6.0, 5.0, 1.0)
GROUP, KNOWN = np.zeros(3, np.int64), np.zeros(1, bool)
BOTH = np.ones(1, bool)


def empty() -> CusumState:
    """The state of one metric and three entities."""
    cusum = CusumState()
    cusum.resize((1, 3))
    return cusum


def builtin(cells: ActiveCells) -> np.ndarray:
    """The multiples of the threshold where nothing is learned."""
    return np.ones(len(cells.entity))


def step(cusum: CusumState, deviation: list[float], now: int = 0, params: CusumParams = PARAMS) -> ActiveCells:
    """One step with these signed deviations of the metric."""
    cells = active_cells(cusum, np.array([deviation]), BOTH, BOTH)
    write(
        cusum,
        accumulate(cusum, cells, GROUP, params, thresholds(cusum, cells, GROUP, params, KNOWN, builtin(cells)), now),
    )
    return cells


def test_a_gain_is_a_log_likelihood_ratio() -> None:
    """A step adds nats x independence x (deviation - 1), no more than the most, and nothing below zero."""
    cusum = empty()
    step(cusum, [1.5, -2.0, 0.9], now=70 * SECOND)
    assert cusum.value[HIGH, 0].tolist() == pytest.approx([6.0 * 0.5 * 0.5, 0, 0])
    assert cusum.value[LOW, 0].tolist() == pytest.approx([0, 6.0 * 0.5 * 1.0, 0])
    assert cusum.onset[HIGH, 0, 0] == 68 * SECOND
    step(cusum, [50.0, 0.0, 0.0])
    assert cusum.value[HIGH, 0, 0] == pytest.approx(1.5 + 4.0)
    assert cusum.value[LOW, 0, 1] == 0


def test_an_alarm_has_hysteresis() -> None:
    """It is raised at the threshold, released half a threshold below it, and is a retraction then."""
    cusum, alarms = empty(), []
    for deviation in [9.0] * 8 + [0.0] * 8:
        step(cusum, [deviation, 0.0, 0.0])
        alarms.append(bool(cusum.alarmed[HIGH, 0, 0]))
    assert alarms.index(True) == 4  # 5 x 4 nats = 20
    assert alarms[4:].index(False) == 4 + 7 - 1  # from the limit of 30 nats, 3 nats a step, to 10
    assert cusum.retractions[HIGH, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize(("learned", "steps"), [(0.4, 5), (1.0, 5), (2.0, 10)])
def test_a_lower_threshold_takes_as_many_steps(learned: float, steps: int) -> None:
    """What a fleet has taught to be enough takes no less time than bursts last; more than usual takes more."""
    cusum, cells = empty(), active_cells(empty(), np.array([[9.0, 0.0, 0.0]]), BOTH, BOTH)
    threshold, alarms = np.array([20.0 * learned]), []
    while not any(alarms):
        update = accumulate(cusum, cells, GROUP, PARAMS, threshold, 0)
        write(cusum, update)
        alarms.append(bool(update.alarmed[0]))
    assert len(alarms) == steps


@pytest.mark.parametrize("retractions", [0, 1, 2, 5])
def test_retractions_double_the_threshold(retractions: int) -> None:
    """Each doubles it, up to eight times; so does the multiplier of the settings."""
    cusum = empty()
    cusum.retractions[HIGH, 0, 1] = retractions
    cells = active_cells(cusum, np.array([[3.0, 3.0, 0.0]]), BOTH, BOTH)
    found = thresholds(cusum, cells, GROUP, replace(PARAMS, threshold_scale=1.5), KNOWN, builtin(cells))
    assert found.tolist() == [30.0, 30.0 * 2 ** min(retractions, MAX_DOUBLINGS)]
    if retractions == 5:  # a metric outside the catalogue: all of its entities share the mistrust
        assert thresholds(cusum, cells, GROUP, PARAMS, BOTH, builtin(cells)).tolist() == [70.0, 160.0]


def test_an_unknown_reading_is_no_evidence() -> None:
    """Without a reading the sum falls slowly, by a tenth of a sample's nats."""
    cusum = empty()
    step(cusum, [2.0, 0.0, 0.0])
    step(cusum, [float("nan"), 0.0, 0.0])
    assert cusum.value[HIGH, 0, 0] == pytest.approx(3.0 - 0.3)


@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), max_size=12), st.permutations(range(3)))
def test_entities_have_no_order(deviations: list[list[float]], order: list[int]) -> None:
    """Permuted entities have permuted sums, never below zero nor above one and a half thresholds."""
    one, other = empty(), empty()
    for deviation in deviations:
        step(one, deviation)
        step(other, [deviation[at] for at in order])
    np.testing.assert_array_equal(other.value, one.value[:, :, order])
    assert (one.value >= 0).all()
    assert one.value.max() <= 1.5 * 20.0 * 2**MAX_DOUBLINGS


def test_the_threshold_follows_the_false_alarm_budget() -> None:
    """It is the log of the independent samples in the budget, so twice the streams cost 0.69 nats."""
    config = Config()
    params = cusum_params("gpu", SECOND, np.array([60, 120]), config)
    samples = 60 * config.false_alarm_days * 86400 / config.correlation_seconds
    assert params.threshold.tolist() == pytest.approx([np.log(samples), np.log(2 * samples)])
    assert params.independence == pytest.approx(1 / config.correlation_seconds)


@pytest.mark.parametrize(("table", "seconds"), [("host", 60.0), ("rdma", 30.0), ("nccl", 18.0)])
def test_the_earliest_alarm_is_later_where_other_work_disturbs(table: str, seconds: float) -> None:
    """Bursts of other work last a minute on hosts; devices and the task's own operations are named sooner."""
    params = cusum_params(table, SECOND, np.array([60, 120]), Config())
    assert (params.threshold / params.max_gain).tolist() == pytest.approx([seconds] * 2)
