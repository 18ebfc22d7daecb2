"""The time of operations beside Little's law: share of time in flight × seconds of an iteration, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.operation_time import HOST, SAMPLED, OperationTime, Window
from detector.timeseries.rows import Rows
from detector.topology.rank_table import RankTable
from store.schema.time import SECOND

RANKS, START = 5, 1_700_000_000 * SECOND
METRICS = (
    *("operations_total", "active_ratio", "host_blocked_seconds_total", "iteration_seconds", "steps_done_total"),
    "receive_pending_ratio",
)
SHARE = np.array([0.24, 0.4, 0.1, 0.52, 0.31])
"""[rank]: of the time in which an operation is in flight."""
BLOCKED = np.array([0.18, 0.05, 0.27, 0.11, 0.2])
"""[rank]: seconds per second for which the host waits."""
PERIOD, LATE_S = 0.5, 17


def windows(
    order: list[int] | None = None,
    longer: float = 0.0,
    scale: float = 1.0,
    offset: float = 0.0,
    missing: frozenset[tuple[int, int]] = frozenset(),
    awaited: float = np.nan,
) -> list[Window]:
    """Windows of 30 s of five ranks in one communicator, rows in this order; iterations are `longer` from 17 s on.

    `scale` multiplies the iteration's seconds, `offset` is where the host's counters begin, `missing` (second, rank);
    `awaited` is the share of time for which data is, NaN where that is not known.
    """
    ranks, times, found = RankTable(), OperationTime(), []
    order = order or list(range(RANKS))
    idents = tuple((f"m{rank}", "6", "0") for rank in order)
    for second in range(30):
        now = START + second * SECOND
        iteration = scale * (PERIOD + longer * (second > LATE_S))
        columns = (7.0 * second, SHARE, offset + second * BLOCKED, iteration, 3.0 * second, awaited)
        values = np.stack(np.broadcast_arrays(*columns), 1)[order]
        there = np.array([at for at, rank in enumerate(order) if (second, rank) not in missing], np.int64)
        texts = {
            "comm": (np.zeros(len(there), np.int64), ["c0de"]),
            "operation": (np.zeros(len(there), np.int64), ["AllReduce"]),
        }
        time = np.full(len(there), now)
        ranks.update(Rows("nccl", time, there, idents, ("gpu", "slot"), METRICS, values[there], texts))
        each, one = np.arange(RANKS), np.zeros(RANKS, np.int64)
        live = LiveRanks(each, one, each, each, ranks.machine[:RANKS], one, np.ones(RANKS, bool))
        window = times.advance(now, ranks, live)
        found += [window] if window is not None else []
    return found


def test_the_time_in_flight_is_the_share_times_the_iteration() -> None:
    """A window of 4 s has share × 0.5 s by samples and blocked seconds × 0.5 s by the host's counter."""
    found = windows()
    assert len(found) == 7
    for window in found:
        assert window.elapsed[SAMPLED] == pytest.approx(SHARE * PERIOD)
        assert window.elapsed[HOST] == pytest.approx(BLOCKED * PERIOD)


def test_findings_4_1_posted_is_not_in_flight() -> None:
    """Where samples tell for how long data is awaited, that counts: operations are posted long before they run."""
    assert windows(awaited=0.37)[0].elapsed[SAMPLED] == pytest.approx(np.full(RANKS, 0.37 * PERIOD))


def test_the_baseline_is_the_mean_of_three_windows_or_more() -> None:
    """In warm-up the baseline is unknown; then it is the windows' mean, with no deviation where they are alike."""
    found = windows()
    assert [bool(np.isnan(window.mean).all()) for window in found] == [True] * 3 + [False] * 4
    assert found[-1].mean[SAMPLED] == pytest.approx(SHARE * PERIOD)
    assert found[-1].deviation == pytest.approx(np.zeros((2, RANKS)), abs=1e-12)


def test_a_delay_is_what_iterations_take_longer_than_usual() -> None:
    """Iterations that take 0.1 s more have that delay and leave the usual iteration nearly as it is; 1 % is regular."""
    last = windows(longer=0.1)[-1]
    assert last.delay == pytest.approx(np.full(RANKS, 0.1), abs=0.002)
    assert last.iteration == pytest.approx(np.full(RANKS, PERIOD), abs=0.002)
    assert np.isnan(windows(longer=0.005)[-1].delay).all()


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(RANKS)))
def test_the_order_of_arrival_does_not_matter(order: list[int]) -> None:
    """Rows of one time in another order give the same times in flight, each for its own rank."""
    plain, permuted = windows(longer=0.1)[-1], windows(order, longer=0.1)[-1]
    for name in ("elapsed", "mean", "deviation"):
        np.testing.assert_allclose(getattr(permuted, name), getattr(plain, name)[:, order])


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([0.25, 2.0, 8.0]), st.integers(0, 10**6))
def test_times_scale_with_the_iteration_and_counters_may_begin_anywhere(scale: float, offset: int) -> None:
    """Iterations that take k times as long have k times the time in flight; where a counter began says nothing."""
    plain, other = windows(longer=0.1)[-1], windows(longer=0.1, scale=scale, offset=float(offset))[-1]
    for name in ("elapsed", "mean", "delay"):
        np.testing.assert_allclose(getattr(other, name), scale * getattr(plain, name), rtol=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.sets(st.tuples(st.sampled_from([8, 11, 14, 18, 22]), st.integers(0, RANKS - 1)), max_size=9))
def test_missing_rows_leave_the_times_as_they_are(missing: set[tuple[int, int]]) -> None:
    """A row here and there that did not come changes no rank's time in flight."""
    for window in windows(missing=frozenset(missing)):
        np.testing.assert_allclose(window.elapsed[HOST], BLOCKED * PERIOD)
        np.testing.assert_allclose(window.elapsed[SAMPLED], SHARE * PERIOD)


def test_what_is_known_for_less_than_half_of_a_window_is_unknown() -> None:
    """A rank without rows for a whole window has no time in it, and the others do."""
    gone = frozenset((second, 3) for second in range(12, 17))
    found = windows(missing=gone)
    assert np.isnan([window.elapsed[SAMPLED, 3] for window in found]).sum() == 1
    assert not np.isnan([window.elapsed[SAMPLED, 2] for window in found]).any()
