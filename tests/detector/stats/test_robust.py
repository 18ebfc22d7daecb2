"""Robust statistics against what is known of the normal distribution and of correlated noise."""

from __future__ import annotations

import numpy as np
import pytest

from detector.stats.robust import mad, shift_down, winsorized


def noise(rng: np.random.Generator, size: tuple[int, int], rho: float) -> np.ndarray:
    """AR(1) noise of variance one, [time, series]."""
    out = rng.normal(0, 1, size)
    for at in range(1, size[0]):
        out[at] = rho * out[at - 1] + np.sqrt(1 - rho**2) * out[at]
    return out


def test_the_mad_of_normal_noise_is_its_standard_deviation() -> None:
    """The MAD stays within a quarter of the standard deviation, whatever a tenth of the values are."""
    values = np.random.default_rng(3).normal(7, 2.5, (4001, 2))
    assert mad(values) == pytest.approx([2.5, 2.5], rel=0.05)
    values[::10] = 1e6
    assert mad(values) == pytest.approx([2.5, 2.5], rel=0.25)


def test_winsorized_values_go_no_farther_than_three_spreads() -> None:
    """Values that lie farther move to the bound, on both sides; the rest and unknown values stay."""
    held = winsorized(np.array([1.0, 40.0, -40.0, np.nan]), np.array(2.0), np.array(5.0))
    assert held[:3].tolist() == [1.0, 17.0, -13.0]
    assert np.isnan(held[3])


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.6])
@pytest.mark.parametrize("length", [4, 30])
def test_the_error_of_a_shift_holds_for_noise_that_persists_or_swings_back(rho: float, length: int) -> None:
    """Noise without a shift rarely exceeds three standard errors, and the error is not twice too large."""
    rng = np.random.default_rng(11)
    on = np.arange(170) >= 170 - length
    z = shift_down(noise(rng, (170, 900), rho), on).z
    assert (np.abs(z) > 3).mean() < 0.03
    assert 0.6 < z.std() < 1.5


def test_a_shift_is_measured_in_the_values_own_unit_despite_outliers() -> None:
    """Pauses in a fifth of the time on both sides neither change nor hide the size of a shift."""
    values = 50 + np.random.default_rng(5).normal(0, 1.5, (150, 3))
    on = np.arange(150) >= 90
    values[on] -= 4.0
    values[::5] = 0.0
    found = shift_down(values, on)
    assert found.size == pytest.approx([4.0] * 3, abs=1.2)
    assert (found.z > 3).all()
