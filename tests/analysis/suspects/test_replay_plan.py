"""Dual-phase replay: two phases of tests name one faulty machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.suspects.replay_plan import plan_replay, repeats


@given(st.integers(1, 9), st.integers(2, 40), st.data())
def test_one_fault_is_always_among_the_suspects(pipeline: int, copies: int, data: st.DataObject) -> None:
    """Whatever machine is faulty, its two failing groups have it in common; alone, where groups are small enough."""
    plan = plan_replay(pipeline * copies, pipeline)
    faulty = data.draw(st.integers(0, plan.machines - 1))
    found = plan.suspects([int(plan.horizontal()[faulty])], [int(plan.vertical()[faulty])])
    assert faulty in found
    if plan.size <= plan.groups:
        assert found.tolist() == [faulty]
    assert np.bincount(plan.horizontal()).tolist() == np.bincount(plan.vertical()).tolist() == [plan.size] * plan.groups


def test_the_papers_example() -> None:
    """Twenty-four machines with pipelines of four: six groups of four, and one suspect."""
    plan = plan_replay(24, 4)
    assert (plan.size, plan.groups) == (4, 6)
    assert plan.suspects([3], [1]).tolist() == [13]
    assert plan.expected_suspects(1) == 1.0
    assert 2.0 < plan.expected_suspects(2) < 4.0


@pytest.mark.parametrize(("machines", "pipeline", "said"), [(25, 4, "whole pipelines"), (8, 8, "cannot be divided")])
def test_machines_that_cannot_be_divided(machines: int, pipeline: int, said: str) -> None:
    """A number of machines without two whole pipelines is refused with the reason."""
    with pytest.raises(ValueError, match=said):
        plan_replay(machines, pipeline)


def test_a_large_fleet_is_planned_in_bounded_work() -> None:
    """The mean number of suspects of 60,000 machines comes from few draws, and is one for one fault."""
    assert plan_replay(60_000, 6).expected_suspects(1) == 1.0


def test_faults_that_do_not_always_show() -> None:
    """A fault that shows in half of the replays needs six a phase to show in both with 95 %."""
    assert [repeats(chance) for chance in (1.0, 0.8, 0.5)] == [1, 3, 6]
    assert (1 - 0.5**6) ** 2 > 0.95 > (1 - 0.5**5) ** 2
    with pytest.raises(ValueError, match="no probability"):
        repeats(0.0)
