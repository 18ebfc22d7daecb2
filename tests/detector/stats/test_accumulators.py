"""EWMA, CUSUM and columns beside their textbooks, and the laws that hold for any samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.stats.arrays import Floats, Ints
from detector.stats.columns import Columns, column
from detector.stats.cusum import Cusum
from detector.stats.ewma import Ewma, ewma_rows

SAMPLES = st.lists(st.floats(-50, 50), min_size=2, max_size=30)


def ewma(samples: list[float], memory: float = np.inf) -> Ewma:
    """One series after these samples, each with the weight of the warm-up."""
    found, one = Ewma(), np.array([0])
    found.resize(1)
    for sample in samples:
        found.update(one, np.array([sample]), found.warmup_weight(one, memory))
    return found


@given(SAMPLES)
def test_in_warm_up_mean_and_variance_are_those_of_all_samples(samples: list[float]) -> None:
    """The recursion with weights 1/n gives the arithmetic mean and the population's variance."""
    found = ewma(samples)
    assert found.count[0] == len(samples)
    assert found.mean[0] == pytest.approx(np.mean(samples), abs=1e-9)
    assert found.variance[0] == pytest.approx(np.var(samples), abs=1e-8)


def test_a_constant_weight_gives_the_textbook_series() -> None:
    """The mean with weight 1/4 from the fourth sample on is that of the NIST handbook's recursion."""
    found = ewma([8.0, 4.0, 6.0, 2.0, 12.0], memory=4)
    assert found.mean[0] == pytest.approx(0.75 * (0.75 * 6.0 + 0.25 * 2.0) + 0.25 * 12.0)


def test_a_reset_forgets_one_cell_and_leaves_the_others() -> None:
    """The next sample after a reset is the mean, in that row and series alone."""
    found = ewma_rows(2)
    found.resize(3)
    found.update(np.s_[:, np.array([0, 2])], np.array([[3.0, 5.0], [7.0, 9.0]]), np.full((2, 2), 1.0))
    found.reset((1, np.array([2])))
    assert found.mean[:, [0, 2]].tolist() == [[3.0, 5.0], [7.0, 0.0]]
    assert found.count[:, [0, 2]].tolist() == [[1.0, 1.0], [1.0, 0.0]]


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=40))
def test_cusum_is_the_distance_from_the_lowest_cumulative_sum(gains: list[float]) -> None:
    """The clipped recursion equals S(n) - min S(k) (Page's identity), and the onset follows that minimum."""
    found, one = Cusum(), np.array([0])
    found.resize(1)
    for step, gain in enumerate(gains):
        found.update(one, np.array([gain]), 1000 + step, threshold=7.0, limit=1e9)
    sums = np.cumsum([0.0, *gains])
    assert found.value[0] == pytest.approx(sums[-1] - sums.min(), abs=1e-9)
    if found.value[0] > 1e-6:
        assert sums[found.onset[0] - 1000] == pytest.approx(sums.min(), abs=1e-9)


def test_an_alarm_is_raised_at_the_threshold_and_released_at_zero() -> None:
    """An alarm stays between threshold and zero; the limit bounds how long the release takes."""
    found, series, alarms = Cusum(), np.array([0, 1]), []
    found.resize(2)
    for gain in (2.0, 2.5, -3.0, -2.0, 4.0):
        found.update(series, np.array([gain, 0.0]), 17, threshold=4.0, limit=4.25)
        alarms.append((float(found.value[0]), bool(found.alarmed[0])))
    assert alarms == [(2.0, False), (4.25, True), (1.25, True), (0.0, False), (4.0, True)]
    assert not found.alarmed[1]


@dataclass(slots=True)
class _Example(Columns):
    level: Floats = column(1.5)
    of_row: Ints = column(-7, np.int64, rows=2)
    step: int = 11


def test_columns_grow_with_their_fill_and_keep_what_is_selected() -> None:
    """New series read as unknown; a selection renumbers all columns alike and leaves other fields alone."""
    example = _Example()
    example.resize(3)
    example.level[:3], example.of_row[:, 2] = [4.0, 5.0, 6.0], [8, 9]
    example.resize(5)
    assert (example.level[3], example.of_row[1, 4]) == (1.5, -7)
    example.select(np.array([2, 0, 99]))
    assert (example.level.tolist(), example.of_row.tolist(), example.step) == ([6.0, 4.0], [[8, -7], [9, -7]], 11)
