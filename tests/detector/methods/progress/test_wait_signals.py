"""Signals of a straggler, from what each rank of one communicator shows."""

from __future__ import annotations

import numpy as np
import pytest

from detector.methods.progress.wait_signals import LATE, OTHERS, SENDING, wait_signals, waiting
from detector.topology.rank_table import RankTable

EACH, ONE = np.arange(4), np.zeros(4, np.int64)


def table(receiving: list[float], active: list[float], sending: list[float]) -> RankTable:
    """Four ranks of one communicator, each in a process and on a machine of its own."""
    ranks = RankTable()
    ranks.resize(4)
    ranks.receiving[:], ranks.active[:], ranks.sending[:] = receiving, active, sending
    ranks.unsent[:], ranks.process[:] = 0.0, EACH
    ranks.machine = EACH
    return ranks


def test_ranks_are_compared_by_the_data_that_they_await() -> None:
    """The mean of the others less the own share; operations, which all have at work, say nothing."""
    signals = wait_signals(table([0.9, 0.7, 0.85, 0.95], [1.0] * 4, [0.1, 0.1, 0.1, 0.4]), EACH, ONE)
    assert signals[LATE] == pytest.approx([-0.2 / 3, 0.2, 0.0, -0.4 / 3])
    assert signals[SENDING] == pytest.approx([-0.1, -0.1, -0.1, 0.3])
    assert signals[OTHERS] == pytest.approx([2.5 / 3, 0.9, 0.85, 2.45 / 3])


def test_a_rank_that_receives_within_its_machine_is_compared_by_its_operations() -> None:
    """It awaits nothing from the network, which makes it neither late nor waiting; without operations it is late."""
    ranks = table([0.9, 0.7, np.nan, 0.95], [1.0, 1.0, 0.75, 1.0], [0.1] * 4)
    signals = wait_signals(ranks, EACH, ONE)
    assert signals[LATE] == pytest.approx([-0.075, 0.225, 0.25, -0.15])
    assert signals[OTHERS][2] == pytest.approx(0.85)
    assert np.isnan(waiting(ranks, EACH, ONE)[2])


def test_where_no_rank_is_looked_at_operations_stand_for_data() -> None:
    """A library without a layout tells only what is at work."""
    ranks = table([np.nan] * 4, [0.3, 0.5, 0.9, 0.7], [np.nan] * 4)
    assert waiting(ranks, EACH, ONE) == pytest.approx([0.3, 0.5, 0.9, 0.7])
    assert wait_signals(ranks, EACH, ONE)[LATE] == pytest.approx([0.4, 2.0 / 15, -0.4, -2.0 / 15])


def test_where_the_others_receive_within_their_machines_a_rank_is_compared_with_its_own_past() -> None:
    """What it awaits counts by itself: as a victim it waits for more in one communicator, and in another for less."""
    signals = wait_signals(table([0.6, np.nan, np.nan, np.nan], [1.0] * 4, [0.1] * 4), EACH, ONE)
    assert signals[LATE] == pytest.approx([-0.6, 0.0, 0.0, 0.0])


def test_a_chunk_that_a_proxy_holds_back_is_refused_by_no_rank_that_receives_within_its_machine() -> None:
    """Of half of the time a tenth may be a receiver's that awaits nothing then; a rank off the network refuses none.

    As these shares hardly vary in health, they count five times.
    """
    ranks = table([np.nan, 0.95, np.nan, 0.9], [1.0] * 4, [np.nan, 0.2, np.nan, 0.2])
    ranks.unsent[0] = 0.5
    assert wait_signals(ranks, EACH, ONE)[SENDING] == pytest.approx([2.0, -2.0 / 3, -2.0 / 3, -2.0 / 3])
