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


def compared(values: Floats, machine: int = 0, since_bin: int = ONSET, start: int = 0) -> DifferenceInDifferences:
    """Readings [machine, bin] since an onset beside those before, of a verdict on one machine; `start` shifts time."""
    names, edges = [f"m{number}" for number in range(MACHINES)], EDGES + start
    since, end = int(edges[since_bin]), int(edges[-1])
    history = History(
        "cabinet",
        ("fan",),
        tuple((name, None) for name in names),
        edges,
        values[None].astype(np.float32),
        ~np.isnan(values),
    )
    verdict = Verdict(end, "run", names[machine], None, "peer", "cabinet.fan", 3.0, since, "warn", "")
    return DifferenceInDifferences(history, Times(START + start, since, end, end), verdict, set(names), Config())


def effect(values: Floats, machine: int = 0) -> float:
    """How far one machine changed unlike its peers since the onset, in multiples of what counts."""
    return float(compared(values, machine).effect[0, machine])


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


def table_of_four(before: float, after: float, peers_before: float, peers_after: float) -> Floats:
    """The two-by-two table of the textbook: one machine and its peers, before and after, without noise."""
    values = np.full((MACHINES, BINS), peers_before)
    values[0], values[:, ONSET:] = before, peers_after
    values[0, ONSET:] = after
    return values


@pytest.mark.parametrize(
    ("four", "own"),
    [((120, 155, 120, 120), 35), ((120, 155, 120, 130), 25), ((240, 290, 120, 130), 30), ((60, 75, 120, 130), 5)],
)
def test_the_effect_is_the_difference_of_two_differences(four: tuple[float, ...], own: float) -> None:
    """It is the machine's change less its peers', or less their share of it if that leaves less; 5 % is the least."""
    least = Config().unknown_metric_floor * four[3]
    assert effect(table_of_four(*four)) == pytest.approx(own / least, rel=1e-5)


@pytest.mark.parametrize("step", [21, 24, 29])
def test_the_onset_is_the_change_point(step: int) -> None:
    """A step within noise is found at its bin, wherever the verdict had put it."""
    values = readings()
    values[0, step:] += 25.0
    (moved,) = compared(values).moved()
    assert moved.onset == EDGES[step]
    assert (moved.key, moved.sign, moved.peers) == ("cabinet.fan", "cabinet.fan+", MACHINES - 1)


def test_runners_up_are_the_next_three_that_moved_the_same_way() -> None:
    """Machines that moved less in the same direction come in the order of how far, those that moved back do not."""
    values = readings(60.0)
    for machine, jump in ((3, 31.0), (5, -44.0), (6, 47.0)):
        values[machine, ONSET:] += jump
    found = [(one.machine, one.effect > 0) for one in compared(values).runners_up()]
    assert found[:2] == [("m6", True), ("m3", True)]
    assert ("m5", False) not in found


def test_a_device_without_rows_is_gone_only_while_most_peers_are_read() -> None:
    """The time is the end of the last bin with a row; where all stop nothing is gone of this machine alone."""
    values = readings()
    values[0, 31:] = np.nan
    assert list(compared(values).gone()) == [("cabinet", None, int(EDGES[31]))]
    values[:, 31:] = np.nan
    assert list(compared(values).gone()) == []


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([0.125, 0.5, 4.0, 32.0]), st.integers(-(10**5), 10**5))
def test_neither_unit_nor_date_matters(scale: float, later_s: int) -> None:
    """Readings in another unit, on another day, have the same effect, and an onset that is later by as much."""
    values, start = readings(23.0), later_s * SECOND
    plain, other = compared(values), compared(scale * values, start=start)
    np.testing.assert_allclose(other.effect, plain.effect, rtol=1e-3)
    assert [one.onset - start for one in other.moved()] == [one.onset for one in plain.moved()]


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
