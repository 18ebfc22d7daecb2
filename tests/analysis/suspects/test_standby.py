"""Warm standbys: spares for the failures of one repair time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from analysis.suspects.standby import size_standby
from tests.analysis.infinitehbd import SERVERS, there, troubles


def test_independent_failures_need_the_binomial() -> None:
    """Failures drawn independently give the 99th percentile of the binomial, and bursts add little."""
    times = np.sort(np.random.default_rng(3).uniform(0, 24_000, 2000))
    found = size_standby(times, 0.0, 24_000.0, 500, 12.0)
    chance = 1 - np.exp(-2000 / (24_000 * 500) * 12)
    assert found.chance == pytest.approx(chance)
    assert found.binomial == binom.ppf(0.99, 500, chance)
    assert found.bursts - found.binomial <= 1


def test_bursts_need_more() -> None:
    """The same number of failures in bursts of ten needs more spares, which cover the past."""
    begins = np.random.default_rng(4).uniform(0, 24_000, 200)
    times = (begins[:, None] + np.linspace(0, 1, 10)).reshape(-1)
    found = size_standby(times, 0.0, 24_000.0, 500, 12.0)
    assert found.bursts > 1.5 * found.binomial
    assert found.covered >= 0.985


def test_a_job_needs_its_share() -> None:
    """A job on a tenth of the fleet needs fewer spares, at least one."""
    times = np.sort(np.random.default_rng(5).uniform(0, 24_000, 2000))
    whole, part = (size_standby(times, 0.0, 24_000.0, 500, 12.0, job=job) for job in (None, 50))
    assert 1 <= part.bursts < whole.bursts


def test_too_short_a_past_is_refused() -> None:
    """A repair time beyond a quarter of the past gives no estimate."""
    with pytest.raises(ValueError, match=r"needs .* h of history"):
        size_standby(np.array([5.0]), 0.0, 90.0, 7, 24.0)


@pytest.mark.bench
@there
@pytest.mark.parametrize("repair_days", [0.25, 1.0, 3.0])
def test_standby_on_published_faults(repair_days: float) -> None:
    """Spares sized on 84 days, against the failures of the next 28, on a fault log of 400 servers."""
    begins, found = troubles()[:, 1] * 24, []
    for day in range(84, 322, 28):
        low, high = (day - 84) * 24.0, day * 24.0
        sized = size_standby(begins, low, high, SERVERS, repair_days * 24)
        windows = np.arange(high, min(high + 28 * 24, 349 * 24.0) - repair_days * 24, 1.0)
        needed = np.searchsorted(begins, windows + repair_days * 24) - np.searchsorted(begins, windows)
        found.append((sized.binomial, (needed <= sized.binomial).mean(), sized.bursts, (needed <= sized.bursts).mean()))
    plain, covered, bursts, bursts_covered = np.mean(found, axis=0)
    print(
        f"\nrepair {repair_days:g} d: binomial {plain:.1f} spares cover {covered:.1%} of the next 28 days, with bursts "
        f"{bursts:.1f} cover {bursts_covered:.1%} (aim 99 %; {len(found)} dates)"
    )
    assert bursts_covered >= covered
