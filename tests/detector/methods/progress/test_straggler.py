"""The numeric core of stragglers: signals, excess, and the shares of a delay, with the laws that they obey."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.config import StragglerConfig
from detector.methods.progress.delay_shares import LATE, SLOW, Delays, delay_shares
from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.straggler import Straggler, StragglerDetector
from detector.timeseries.rows import Rows
from detector.topology.rank_table import RankTable
from store.schema.time import SECOND

RANKS, START = 6, 1_700_000_000 * SECOND
METRICS = ("operations_total", "active_ratio", "send_pending_ratio", "iteration_seconds", "rank", "ranks", "pending")


def stragglers(
    late: int, order: list[int], missing: int | None = None, iteration_s: float = 0.5, restless: int | None = None
) -> tuple[list[Straggler], RankTable]:
    """Stragglers after 105 s of six machines in one communicator, read in this order; one rank is late from 75 s on.

    With a `restless` rank, which comes early and late by turns of four seconds, lateness is half as much.
    """
    ranks, detector, found = RankTable(), StragglerDetector(), []
    noise = np.random.default_rng(31).normal(0, 0.01, (105, RANKS))
    idents = tuple((f"m{machine}", "3", "0") for machine in order)
    for second in range(105):
        size = 0.5 if restless is not None else 1.0
        lateness = np.where(np.arange(RANKS) == late, -0.24, 0.26)
        active = 0.3 + noise[second] + (second > 75) * size * lateness
        if restless is not None and second > 75:
            active[restless] += 0.35 if second % 8 < 4 else -0.35
        if missing is not None:
            active[missing] = np.nan
        columns = np.stack(
            np.broadcast_arrays(5.0 * second, active, 0.1, iteration_s, np.arange(RANKS) + 0.0, float(RANKS), 0.0), 1
        )[order]
        texts = {"comm": (np.zeros(RANKS, np.int64), ["c0de"]), "operation": (np.zeros(RANKS, np.int64), ["AllReduce"])}
        time = np.full(RANKS, START + second * SECOND)
        ranks.update(Rows("nccl", time, np.arange(RANKS), idents, ("gpu", "slot"), METRICS, columns, texts))
        each, one = np.arange(RANKS), np.zeros(RANKS, np.int64)
        live = LiveRanks(each, one, each, each, ranks.machine[:RANKS], one, np.ones(RANKS, bool))
        found = detector.update(START + second * SECOND, ranks, live, StragglerConfig())
    return found, ranks


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(RANKS)), st.integers(0, RANKS - 1))
def test_the_straggler_does_not_depend_on_the_order_of_ranks(order: list[int], late: int) -> None:
    """The result has the same machine, score and onset when the ranks are permuted."""
    (plain,), _ = stragglers(late, list(range(RANKS)))
    (permuted,), ranks = stragglers(late, order)
    assert list(ranks.machines)[permuted.process] == f"m{late}"
    assert (permuted.score, permuted.evidence) == pytest.approx((plain.score, plain.evidence))
    assert (permuted.onset, permuted.share) == (plain.onset, plain.share)
    assert plain.waiting == pytest.approx(0.26, abs=0.03)


def test_a_rank_without_readings_is_no_straggler_and_hides_none() -> None:
    """The detector compares the other ranks among themselves."""
    (found,), ranks = stragglers(4, list(range(RANKS)), missing=1)
    assert list(ranks.machines)[found.process] == "m4"


def test_noise_of_another_rank_hides_no_straggler() -> None:
    """Another rank that is later in some seconds, and earlier in as many, clears none that is always late."""
    (found,), ranks = stragglers(3, list(range(RANKS)), restless=5)
    assert list(ranks.machines)[found.process] == "m3"


@pytest.mark.parametrize(("iteration_s", "named"), [(0.9, True), (1.9, True), (23.0, False)])
def test_one_long_iteration_makes_no_straggler(iteration_s: float, named: bool) -> None:
    """29 s of lateness are many iterations of a second, and hardly more than one of 23 s."""
    found, _ = stragglers(2, list(range(RANKS)), iteration_s=iteration_s)
    assert bool(found) == named


def sharing(absence: float) -> Straggler:
    """The straggler of three machines of two GPUs, of which only GPU 0 receives from the network.

    From 75 s on GPU 0 of m1 awaits less than the others', and GPU 1 beside it is out of operations for that share.
    """
    ranks, detector, found = RankTable(), StragglerDetector(), []
    each, one = np.arange(RANKS), np.zeros(RANKS, np.int64)
    noise = np.random.default_rng(37).normal(0, 0.01, (105, RANKS))
    idents = tuple((f"m{rank // 2}", str(rank % 2), "0") for rank in each)
    texts = {"comm": (one, ["c0de"]), "operation": (one, ["AllReduce"])}
    for second in range(105):
        late = second > 75
        receiving = np.where(each % 2 == 0, 0.5 + noise[second] + late * np.where(each == 2, -0.2, 0.3), np.nan)
        active = np.where((each == 3) & late, 1 - absence, 1.0)
        columns = np.broadcast_arrays(5.0 * second, active, 0.1, 0.6, each + 0.0, float(RANKS), 0.0, receiving)
        metrics = (*METRICS, "receive_pending_ratio")
        time = np.full(RANKS, START + second * SECOND)
        ranks.update(Rows("nccl", time, each, idents, ("gpu", "slot"), metrics, np.stack(columns, 1), texts))
        live = LiveRanks(each, one, each, each, ranks.machine[:RANKS], one, np.ones(RANKS, bool))
        found = detector.update(START + second * SECOND, ranks, live, StragglerConfig())
    (straggler,) = found
    return straggler


@pytest.mark.parametrize(("absence", "cause"), [(0.17, 3), (0.04, 2)])
def test_of_ranks_that_share_a_way_in_the_one_out_of_operations_is_the_cause(absence: float, cause: int) -> None:
    """What the late rank's machine awaits shows on another rank; the late one is not in the operation yet."""
    straggler = sharing(absence)
    assert (straggler.process, straggler.cause) == (2, cause)


def delays(excess: list[float], abnormal: list[bool]) -> Delays:
    """One communicator of as many ranks, in a task that is 0.2 s slower."""
    count = len(excess)
    each, one = np.arange(count), np.zeros(count, np.int64)
    return Delays(one, each, np.full(count, 0.2), np.zeros(count, bool), np.array(abnormal), np.array(excess))


def test_the_one_normal_rank_among_abnormal_ones_caused_the_delay() -> None:
    """The one normal rank caused the delay: all others waited for it, and their wait explains the whole delay."""
    shares = delay_shares(delays([0.2, 0.2, 0.0, 0.2], [True, True, False, True]), np.zeros(4, np.int64))
    assert shares[LATE].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert not shares[SLOW].any()


def test_where_all_ranks_are_abnormal_the_communication_is_slow() -> None:
    """No rank is late where all are abnormal; shares below half of the delay count for nothing."""
    task = np.zeros(3, np.int64)
    whole = delay_shares(delays([0.2, 0.2, 0.2], [True] * 3), task)
    assert not whole[LATE].any()
    assert (whole[SLOW] > 0).all()
    assert not delay_shares(delays([0.09, 0.09, 0.09], [True] * 3), task).any()


@given(st.permutations(range(5)), st.lists(st.floats(0.05, 0.4), min_size=5, max_size=5))
def test_shares_follow_a_permutation_of_ranks(order: list[int], excess: list[float]) -> None:
    """Renumbering ranks renumbers their shares; shares are never negative."""
    abnormal, task = [True, True, True, False, True], np.zeros(5, np.int64)
    plain = delay_shares(delays(excess, abnormal), task)
    permuted = delay_shares(delays([excess[at] for at in order], [abnormal[at] for at in order]), task)
    np.testing.assert_allclose(permuted, plain[:, order])
    assert (plain >= 0).all()
