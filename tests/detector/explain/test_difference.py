"""Difference-in-differences: what a machine always had, and what happens to all, is no change of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.config import Config
from detector.explain.difference import DifferenceInDifferences, Times
from detector.model.verdict import Verdict
from detector.stats.arrays import Floats
from detector.timeseries.binned import History
from store.schema.time import SECOND

MACHINES, BINS, ONSET = 7, 40, 24
START = 1_700_000_000 * SECOND
EDGES = START + 5 * SECOND * np.arange(BINS + 1, dtype=np.int64)
NOISE = np.random.default_rng(33).normal(0, 0.4, (MACHINES, BINS))


def effect(values: Floats, machine: int = 0) -> float:
    """How far one machine [machine, bin] changed unlike its peers since the onset, in multiples of what counts."""
    names = [f"m{number}" for number in range(MACHINES)]
    since, end = int(EDGES[ONSET]), int(EDGES[-1])
    history = History(
        "cabinet",
        ("fan",),
        tuple((name, None) for name in names),
        EDGES,
        values[None].astype(np.float32),
        ~np.isnan(values),
    )
    verdict = Verdict(end, "run", names[machine], None, "peer", "cabinet.fan", 3.0, since, "warn", "")
    times = Times(START, since, end, end)
    compared = DifferenceInDifferences(history, times, verdict, set(names), Config())
    return float(compared.effect[0, machine])


def readings(jump: float = 0.0) -> Floats:
    """Levels of their own around 100; machine 0 jumps at the onset."""
    values = 100 + 3.0 * np.arange(MACHINES)[:, None] + NOISE
    values[0, ONSET:] += jump
    return values


def test_a_jump_of_one_machine_is_its_effect() -> None:
    """The effect is the jump over the least difference that counts, with its sign; without a jump it is near 0."""
    assert effect(readings(40.0)) > 4
    assert effect(readings(-40.0)) < -4
    assert abs(effect(readings())) < 1


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(1, MACHINES)))
def test_the_order_of_peers_does_not_matter(order: list[int]) -> None:
    """The effect does not change when the peers are permuted."""
    assert effect(readings(17.0)[[0, *order]]) == pytest.approx(effect(readings(17.0)), rel=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.floats(-20, 20))
def test_what_a_machine_always_had_does_not_matter(offset: float) -> None:
    """A constant offset of the machine, before and after the onset, leaves its effect as it is."""
    values = readings(19.0)
    values[0] += offset
    assert effect(values) == pytest.approx(effect(readings(19.0)), rel=1e-3)


def test_what_happens_to_all_does_not_matter() -> None:
    """A jump of the whole task is no effect of one machine."""
    values = readings()
    values[:, ONSET:] += 31.0
    assert abs(effect(values)) < 1


def test_rows_that_are_missing_do_not_hide_a_jump() -> None:
    """A quarter of the bins of each machine is unknown, and the jump is found all the same."""
    values = readings(43.0)
    values[np.random.default_rng(34).random(values.shape) < 0.25] = np.nan
    assert effect(values) > 4
