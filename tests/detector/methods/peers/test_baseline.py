"""The comparison with the peers, its baseline and its thresholds on arrays, beside what statistics says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from detector.config import Config
from detector.methods.peers.baseline import (
    Baseline,
    Comparison,
    MetricBatch,
    compare,
    peers_are_predictive,
    reset_contaminated,
    reset_on_level_shift,
    update_baseline,
    update_lag_variance,
    update_thresholds,
)
from detector.model.metrics import Bounds
from detector.stats.grouped import Groups, groups_of

COUNT, CONFIG = 9, Config()
BATCH = MetricBatch(slice(0, 1), 1)
NO_FLOOR = Bounds(np.zeros(1), np.zeros(1), np.zeros(1, bool), np.ones(1, bool), np.ones(1, bool))
READING = arrays.arrays(np.float32, (1, COUNT), elements=st.floats(-100, 100, width=32))


def one_group(count: int = COUNT) -> Groups:
    """All entities are peers."""
    return groups_of(np.zeros(count, np.int64))


def empty(count: int = COUNT, threshold: float = 2.0) -> Baseline:
    """A baseline of one metric without offsets, with this threshold."""
    baseline = Baseline()
    baseline.resize((1, count))
    baseline.active_threshold[:] = threshold
    return baseline


def learned(readings: np.ndarray, bounds: Bounds = NO_FLOOR, config: Config = CONFIG) -> tuple[Baseline, Comparison]:
    """The baseline after readings [step, entity], nothing of which is suspect."""
    count = readings.shape[1]
    baseline, groups, quiet = Baseline(), one_group(count), np.zeros((1, count), bool)
    baseline.resize((1, count))
    for now in readings.astype(np.float32):
        comparison = compare(now[None], groups, baseline)
        update_baseline(baseline, now[None], comparison, BATCH, quiet, config)
        update_lag_variance(baseline, comparison, BATCH)
        update_thresholds(baseline, comparison, groups, BATCH, bounds, np.ones((1, 2), bool), config)
    return baseline, comparison


@given(READING, st.permutations(range(COUNT)))
def test_peers_have_no_order(values: np.ndarray, order: list[int]) -> None:
    """The deviations of permuted entities are the permuted deviations."""
    deviation = compare(values, one_group(), empty()).deviation
    np.testing.assert_array_equal(compare(values[:, order], one_group(), empty()).deviation, deviation[:, order])


@given(READING, st.integers(-1000, 1000), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_deviations_have_no_unit(values: np.ndarray, shift: int, scale: float) -> None:
    """A common shift changes nothing, nor does a scale that the thresholds share."""
    deviation = compare(values, one_group(), empty()).deviation
    np.testing.assert_allclose(compare(values + shift, one_group(), empty()).deviation, deviation, atol=1e-3)
    scaled = compare(values * np.float32(scale), one_group(), empty(threshold=2.0 * scale)).deviation
    np.testing.assert_allclose(scaled, deviation, rtol=1e-5, atol=1e-6)


@given(READING, st.integers(0, COUNT - 1))
def test_a_missing_row_is_unknown_for_itself_only(values: np.ndarray, missing: int) -> None:
    """Without a reading there is no deviation; the others are compared with the median of those that are left."""
    gap = values.copy()
    gap[0, missing] = np.nan
    found = compare(gap, one_group(), empty()).deviation
    rest = compare(np.delete(values, missing, 1), one_group(COUNT - 1), empty(COUNT - 1)).deviation
    assert np.isnan(found[0, missing])
    np.testing.assert_array_equal(np.delete(found, missing, 1), rest)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99))
def test_the_baseline_estimates_mean_and_spread(seed: int) -> None:
    """After 400 steps it has the entities' offsets from their median and the standard deviation of their noise."""
    rng = np.random.default_rng(seed)
    offset = np.linspace(-30, 30, COUNT)
    baseline, _ = learned(500 + offset + rng.normal(0, 3, (400, COUNT)))
    np.testing.assert_allclose(baseline.offset[0] - np.median(baseline.offset[0]), offset, atol=1.5)
    sigma = np.sqrt(baseline.residual_variance[0])
    assert (sigma > 2.0).all()
    assert (sigma < 4.2).all()


def test_the_threshold_is_four_sigma_or_the_floor() -> None:
    """With noise of 3 it is some 12; with a floor of 40, or of 20 % of 500, it is that; in warm-up there is none."""
    readings = 500 + np.random.default_rng(3).normal(0, 3, (300, COUNT))
    baseline, _ = learned(readings)
    assert CONFIG.deviation_sigmas == 4.0
    assert 10 < np.median(baseline.threshold) < 15
    absolute, relative = replace(NO_FLOOR, floor=np.array([40.0])), replace(NO_FLOOR, relative=np.array([0.2]))
    assert np.median(learned(readings, absolute)[0].threshold) == pytest.approx(40)
    assert np.median(learned(readings, relative)[0].threshold) == pytest.approx(100, rel=0.01)
    young = learned(readings[: CONFIG.warmup_steps - 1])[0]
    assert np.isnan(young.active_threshold).all()
    assert not np.isnan(baseline.active_threshold).any()


def test_too_few_peers_are_not_compared() -> None:
    """Below `min_peers` known readings no threshold is active."""
    readings = 70 + np.random.default_rng(3).normal(0, 3, (120, COUNT))
    readings[:, CONFIG.min_peers - 1 :] = np.nan
    assert np.isnan(learned(readings)[0].active_threshold).all()


def test_a_suspect_moves_its_baseline_a_tenth() -> None:
    """Of two entities with the same residual the suspect one learns a tenth as much."""
    baseline, suspect = empty(2), np.array([[False, True]])
    baseline.samples[:] = 4
    step = Comparison(np.zeros((1, 2), np.float32), np.full((1, 2), 5.0, np.float32), np.zeros((1, 2)))
    update_baseline(baseline, np.full((1, 2), 5.0, np.float32), step, BATCH, suspect, CONFIG)
    assert baseline.offset[0].tolist() == pytest.approx([1.0, 0.1])


def test_independent_wanderers_do_not_predict_each_other() -> None:
    """Random walks of their own are no peers; readings that follow one common walk are."""
    rng = np.random.default_rng(4)
    own = np.cumsum(rng.normal(0, 1, (400, COUNT)), 0)
    common = np.cumsum(rng.normal(0, 3, (400, 1)), 0) + rng.normal(0, 1, (400, COUNT))
    found = [peers_are_predictive(learned(each)[0], (1, COUNT), one_group(), CONFIG)[0, 0] for each in (own, common)]
    assert found == [False, True]


def test_a_new_level_resets_a_young_baseline() -> None:
    """While a task starts, a jump of all peers resets the metric; later it does not."""
    readings = 20 + np.random.default_rng(5).normal(0, 1, (CONFIG.startup_steps - 20, COUNT))
    for steps, left in ((len(readings), 0), (3 * len(readings), CONFIG.startup_steps)):
        baseline, _ = learned(np.resize(readings, (steps, COUNT)))
        jumped = np.full((1, COUNT), 900.0, np.float32)
        reset_on_level_shift(baseline, jumped, one_group(), BATCH, NO_FLOOR, CONFIG)
        assert (baseline.samples >= left).all()
        assert (baseline.samples.max() == 0) == (left == 0)


def test_a_contaminated_baseline_is_reset() -> None:
    """An entity with an offset learned from a burst that now reads what its peers read is reset, and no other."""
    baseline = empty()
    baseline.samples[:], baseline.threshold[:] = 30, 2.0
    baseline.offset[0, 3] = 50.0
    values = np.random.default_rng(6).normal(100, 0.1, (1, COUNT)).astype(np.float32)
    reset_contaminated(baseline, values, compare(values, one_group(), baseline), one_group(), BATCH)
    assert np.flatnonzero(baseline.samples[0] == 0).tolist() == [3]
