"""Departures from the order of a process's own calls."""

from __future__ import annotations

import numpy as np
import pytest

from agent.nccl.call_history import departs

ITERATION = [11, 12, 13, 14, 12, 15]


@pytest.mark.parametrize("after", [0, 3, 9])
def test_a_call_in_place_of_the_usual_one_departs(after: int) -> None:
    """A wrong operation is seen although the program ran on after it; its peers' order is the usual one."""
    usual = np.array(ITERATION * 31)
    wrong = usual.copy()
    wrong[len(wrong) - 1 - after] = 19
    assert departs(wrong) is True
    assert departs(usual) is False


def test_what_does_not_repeat_predicts_nothing() -> None:
    """Sizes that are new each time, a short history and an order by chance are no departures."""
    rng = np.random.default_rng(23)
    assert departs(rng.integers(0, 1 << 31, 700)) is None
    assert departs(np.array(ITERATION * 7)) is None
    assert departs(rng.integers(0, 5, 900)) in (None, False)


def test_rare_phases_that_came_before_are_usual() -> None:
    """A checkpoint's operation every so often has been there before."""
    history = np.array(([*ITERATION * 10, 17] * 9) + ITERATION * 2 + [17])
    assert departs(history) is False
