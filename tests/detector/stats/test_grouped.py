"""Reductions over peer groups and the trimmed mean over time beside numpy, group by group."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from detector.stats.grouped import distinct, groups_of, mean_of, middle, middle_of
from detector.stats.trimmed_mean import TrimmedMeanFilter

VALUE = st.floats(-1e3, 1e3, width=32) | st.just(float("nan"))
VALUES = arrays.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 12)), elements=VALUE)


def nanmedian(values: np.ndarray) -> float:
    """The median of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


@given(VALUES)
def test_the_median_leaves_out_what_is_unknown(values: np.ndarray) -> None:
    """Along the last axis it is numpy's median of the known values."""
    np.testing.assert_allclose(middle(values), [nanmedian(row) for row in values])


@given(VALUES, st.data())
def test_groups_are_reduced_one_by_one(values: np.ndarray, data: st.DataObject) -> None:
    """Medians and sums are those of each group's members; what has no group gets the last column, which is NaN."""
    count = values.shape[1]
    of = np.array(data.draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count)), np.int64)
    groups = groups_of(of)
    found, total = groups.middle(values), groups.total(np.nan_to_num(values))
    assert groups.count == of.max(initial=-1) + 1
    for group in np.unique(of[of >= 0]):
        members = values[:, of == group]
        np.testing.assert_allclose(found[:, group], [nanmedian(row) for row in members])
        np.testing.assert_allclose(total[:, group], np.nan_to_num(members).sum(1), atol=1e-6)
    spread = np.broadcast_to(groups.each(found), values.shape)
    np.testing.assert_array_equal(np.isnan(spread[:, of < 0]), True)
    for at in np.flatnonzero(of >= 0):
        np.testing.assert_array_equal(spread[:, at], found[:, of[at]])


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 6)), min_size=1, max_size=40))
def test_different_members_are_counted_once(pairs: list[tuple[int, int]]) -> None:
    """Each group has as many as the set of its members; what has no group counts nowhere."""
    group, member = (np.array(side) for side in zip(*pairs, strict=True))
    sets = [len({one for of, one in pairs if of == number}) for number in range(5)]
    assert distinct(group, member, 5).tolist() == sets


@given(arrays.arrays(np.float64, st.integers(1, 15), elements=st.floats(-50, 50)), st.data())
def test_means_and_lower_medians_by_group(values: np.ndarray, data: st.DataObject) -> None:
    """Each entity has the mean, and the lower median, of its group."""
    group = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(values), max_size=len(values))), np.int64)
    for at, own in enumerate(group):
        members = np.sort(values[group == own])
        np.testing.assert_allclose(mean_of(group, values)[at], members.mean(), atol=1e-9)
        assert middle_of(values, group)[at] == members[(len(members) - 1) // 2]


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(5, 14), st.just(1), st.just(2)), elements=VALUE),
    st.integers(3, 5),
)
def test_the_filter_is_a_trimmed_mean_of_the_last_steps(snapshots: np.ndarray, depth: int) -> None:
    """Of the last three to five it is the mean of what is known without its ends; unknown if fewer than three are."""
    smoothing = TrimmedMeanFilter()
    out = [smoothing.push(snapshot, depth) for snapshot in snapshots]
    for place in range(2):
        known = np.sort(snapshots[-depth:, 0, place].astype(np.float64))
        known = known[~np.isnan(known)]
        expected = known[1:-1].mean() if len(known) >= 3 else np.nan
        np.testing.assert_allclose(out[-1][0, place], expected, rtol=1e-3, atol=2e-3)


def test_a_window_that_grows_keeps_the_past() -> None:
    """More entities, or a longer window, leave what was read in place; one new step is one of seven."""
    smoothing = TrimmedMeanFilter()
    for value in (4.0, 4.0, 4.0, 4.0, 4.0):
        smoothing.push(np.full((1, 1), value, np.float32), 5)
    out = smoothing.push(np.array([[90.0, 7.0]], np.float32), 7)
    assert out[0, 0] == 4.0
    assert np.isnan(out[0, 1])
