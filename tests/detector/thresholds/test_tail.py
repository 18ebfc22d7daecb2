"""The generalized Pareto tail: its moments, its shape pooled over streams, and the heights that it predicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.thresholds.tail import HEAVIEST, Tail, at_most, common_shape, excesses, l_ratio, tail_of


def pareto(rng: np.random.Generator, shape: float, scale: float, count: int) -> np.ndarray:
    """Values of a generalized Pareto distribution, by its quantiles."""
    rest = rng.random(count)
    return scale * (rest**-shape - 1) / shape if shape else -scale * np.log(rest)


def test_l_moments_of_a_small_sample_by_hand() -> None:
    """Of 1, 2, 6 the mean is 3 and half the mean difference of two is 5/3: their ratio is 5/9."""
    assert l_ratio(np.array([2.0, 6.0, 1.0])) == pytest.approx(5 / 9)
    with pytest.raises(ValueError, match="takes two values"):
        l_ratio(np.array([4.0]))


@given(st.floats(0.01, 90.0), st.integers(0, 10**6))
def test_the_ratio_has_no_unit(unit: float, seed: int) -> None:
    """Peaks in another unit scatter as much."""
    values = np.random.default_rng(seed).exponential(1.0, 17)
    assert l_ratio(unit * values) == pytest.approx(l_ratio(values))


@pytest.mark.parametrize("shape", [0.0, 0.15, 0.3])
def test_many_small_samples_have_one_shape(shape: float) -> None:
    """The shape of the tail is found from eighty streams of some dozen peaks, each with a scale of its own."""
    rng = np.random.default_rng(11)
    samples = [pareto(rng, shape, 10.0 ** rng.uniform(-3, 1), int(rng.integers(40, 61))) for _ in range(80)]
    assert common_shape(samples) == pytest.approx(shape, abs=0.06)


def test_few_peaks_make_an_exponential_tail() -> None:
    """Without streams of ten peaks the tail is exponential; none makes it lighter, or heavier than the bound."""
    rng = np.random.default_rng(5)
    assert common_shape([rng.pareto(1.1, 9) for _ in range(30)]) == 0
    assert common_shape([np.linspace(1, 2, 300)]) == 0
    assert common_shape([rng.pareto(0.6, 900)]) == HEAVIEST


def test_where_the_tail_begins() -> None:
    """A tenth of many peaks is the tail, twenty of some, all but one of few; peaks that are not all known are left."""
    assert (excesses(np.arange(1, 502.0))[0], len(excesses(np.arange(1, 502.0))[1])) == (451.0, 50)
    assert len(excesses(np.arange(1, 98.0))[1]) == 20
    over, excess = excesses(np.array([0.3, 0.9, 0.4]))
    assert (over, sorted(excess)) == (0.3, pytest.approx([0.1, 0.6]))
    assert excesses(np.array([0.3, 0.9, 0.4]), 0.35)[0] == 0.4
    assert excesses(np.zeros(0)) == (0.0, pytest.approx([]))


@given(st.floats(0.0, 0.35), st.floats(0.05, 2.0), st.floats(1e-6, 0.5))
def test_height_and_rate_are_inverse(shape: float, scale: float, rate: float) -> None:
    """The height that is exceeded so often is exceeded so often."""
    tail = Tail(0.4, 0.7, scale, shape)
    assert tail.exceeded(tail.height(rate)) == pytest.approx(rate, rel=1e-6)


def test_a_rate_within_the_data_asks_for_no_more_than_the_tail_begins_at() -> None:
    """What is allowed more often than it was seen needs no extrapolation."""
    assert Tail(0.4, 0.7, 0.2, 0.1).height(0.9) == 0.4


def test_the_height_holds_far_beyond_the_data() -> None:
    """Of forty fleets, each with thirty hours of exponential excursions, nearly all stay below the rate asked for."""
    rng, hours, rate, below = np.random.default_rng(2), 30.0, 0.001, 0
    for _ in range(40):
        over, excess = excesses(rng.exponential(0.07, 600))
        height = tail_of(over, excess, hours, 0.0, (0.1, 5.0)).height(rate)
        below += 600 / hours * np.exp(-height / 0.07) < 1.5 * rate
    assert below >= 34


def test_few_peaks_are_drawn_to_those_of_streams_like_it() -> None:
    """With one peak the scale is that of the prior, with sixty its own; both at their upper bound."""
    one = tail_of(0.0, np.array([0.01]), 4.0, 0.0, (0.2, 5.0)).scale
    many = tail_of(0.0, np.full(60, 0.01), 4.0, 0.0, (0.2, 5.0)).scale
    assert one == pytest.approx((0.01 + 1.0) / 6 * at_most(6))
    assert many == pytest.approx((0.6 + 1.0) / 65 * at_most(65))
    assert at_most(6) > at_most(65) > 1
