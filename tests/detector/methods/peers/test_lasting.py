"""Small differences that last for minutes, and readings that stick or lag, found on arrays of readings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.methods.peers.baseline import Baseline
from detector.methods.peers.slow.frozen import Frozen
from detector.methods.peers.slow.lag import Lag
from detector.methods.peers.slow.lasting import Lasting
from detector.stats.grouped import Groups, groups_of
from store.schema.time import SECOND

MACHINES, TURN_S = 12, 4
START = 1_700_000_000 * SECOND


def readings(steps: int, seed: int = 7) -> np.ndarray:
    """[step, metric, machine]: a clock and an activity that differ by machine for good, and swing with the task."""
    rng = np.random.default_rng(seed)
    swing = 1 + 0.05 * np.sin(np.arange(steps) / 9)[:, None, None]
    own = 1 + 0.01 * rng.normal(0, 1, (1, 2, MACHINES))
    level = np.array([1.9e9, 0.62])[None, :, None]
    return level * swing * own * (1 + 0.004 * rng.normal(0, 1, (steps, 2, MACHINES)))


def everybody() -> Groups:
    """All machines as one peer group."""
    return groups_of(np.zeros(MACHINES, np.int64))


def follow(values: np.ndarray) -> tuple[Lasting, list[int]]:
    """What is remembered in the end, and how many cells were found at each look."""
    lasting, groups, found = Lasting(), everybody(), []
    both, baseline = np.ones(2, bool), Baseline()
    baseline.resize((2, MACHINES))
    baseline.active_threshold[:] = 1.0
    for at, now in enumerate(values.astype(np.float32)):
        time, usual = START + at * TURN_S * SECOND, np.ones((2, MACHINES), np.float32)
        lasting.update(time, now, baseline, groups, np.arange(2), usual)
        found.append(len(lasting.cells(both, both)))
    return lasting, found


@pytest.mark.parametrize(("share", "within_s"), [(0.03, 600), (0.07, 300)])
def test_a_few_per_cent_in_one_machine_are_found_in_minutes(share: float, within_s: int) -> None:
    """3 % of a clock, lasting, is found within ten minutes, 7 % within five, and nothing else ever."""
    values = readings(500)
    values[200:, 0, 5] *= 1 - share
    lasting, found = follow(values)
    assert lasting.cells(np.ones(2, bool), np.ones(2, bool)) == [(0, 5)]
    assert max(found[:200]) == 0
    assert np.flatnonzero(found)[0] * TURN_S <= 200 * TURN_S + within_s
    far, since = lasting.of(0, 5)
    assert far > 0.5
    assert 0 <= since - START - 200 * TURN_S * SECOND <= 120 * SECOND


@pytest.mark.parametrize(("before", "found_at_last"), [(1.022, False), (1.0, True)])
def test_a_machine_that_was_faster_and_is_now_as_fast_holds_up_no_other(before: float, found_at_last: bool) -> None:
    """A clock that falls by 2.4 % to that of the peers is no finding; one that falls by as much below it is."""
    values = readings(420, seed=23)
    values[:, 0, 4] = np.median(values[:, 0], axis=1) * before
    values[200:, 0, 4] *= 0.976
    assert (max(follow(values)[1]) > 0) == found_at_last


def worse() -> np.ndarray:
    """Readings of which one machine's clock falls by 6 % after a while."""
    values = readings(330, seed=19)
    values[180:, 0, 7] *= 0.94
    return values


@settings(max_examples=4, deadline=None)
@given(st.permutations(range(MACHINES)))
def test_peers_have_no_order(order: list[int]) -> None:
    """Permuted machines have permuted differences."""
    (plain, _), (other, _) = follow(worse()), follow(worse()[:, :, order])
    np.testing.assert_allclose(other.far, plain.far[:, order], rtol=1e-3, atol=1e-3)
    assert np.array_equal(other.since, plain.since[:, order])


@settings(max_examples=4, deadline=None)
@given(st.sampled_from([1e-9, 0.5, 3600.0]), st.sampled_from([1e-3, 2.0, 100.0]))
def test_differences_have_no_unit(clock: float, activity: float) -> None:
    """A metric in another unit shows the same spreads: they are of relative distances."""
    scale = np.array([clock, activity])[None, :, None]
    (plain, found), (other, same) = follow(worse()), follow(worse() * scale)
    np.testing.assert_allclose(other.far, plain.far, rtol=0.02, atol=0.02)
    assert found == same


def test_missing_readings_hide_no_difference() -> None:
    """With a tenth of the readings missing the machine is found, a little later at most, and no other."""
    values = worse()
    values[np.random.default_rng(20).random(values.shape) < 0.1] = np.nan
    assert follow(values)[0].cells(np.ones(2, bool), np.ones(2, bool)) == [(0, 7)]


@pytest.mark.parametrize(("missed_s", "later_s"), [(0, 0), (120, 110)])
def test_what_an_agent_missed_lasts_no_longer_for_it(missed_s: int, later_s: int) -> None:
    """A clock that is 2.5 % lower, of which the readings of two minutes are missing, is found that much later."""
    values = readings(330, seed=29)
    values[180:, 0, 7] *= 0.975
    plain, gaps = values.copy(), values
    begins = int(np.flatnonzero(follow(plain)[1])[0]) - 8  # it is odd by then, and not yet for long enough
    gaps[begins : begins + missed_s // TURN_S, :, 7] = np.nan
    first = [int(np.flatnonzero(follow(one)[1])[0]) * TURN_S for one in (plain, gaps)]
    assert first[1] - first[0] >= later_s


def test_twice_what_makes_a_finding_is_one_after_half_the_time() -> None:
    """A clock that is 9 % lower is found 20 s or more before one that is 3 % lower."""
    first = {}
    for share in (0.03, 0.09):
        values = readings(330, seed=31)
        values[180:, 0, 6] *= 1 - share
        _, found = follow(values)
        first[share] = int(np.flatnonzero(found)[0]) * TURN_S - 180 * TURN_S
    assert first[0.09] < 60 < first[0.03]
    assert first[0.03] - first[0.09] > 20


@pytest.mark.parametrize("lasts_s", [20, 28])
def test_a_short_fall_is_none_that_lasts(lasts_s: int) -> None:
    """A clock that is a tenth lower for less than half a minute is no finding, then or in the minute after."""
    values = readings(330, seed=37)
    values[180 : 180 + lasts_s // TURN_S, 0, 2] *= 0.9
    assert max(follow(values)[1]) == 0


def test_machines_that_differ_for_good_and_small_steps_are_nothing() -> None:
    """Half a per cent is below what is worth a repair, and what is there from the first reading is no change."""
    values = readings(450, seed=11)
    values[:, 0, 3] *= 0.94
    values[220:, 1, 8] *= 0.995
    assert max(follow(values)[1]) == 0


def test_a_machine_that_recovers_while_it_is_watched_is_not_odd() -> None:
    """A detector that starts in the middle of a fault does not name the machine when it is well again."""
    values = readings(450, seed=13)
    values[:230, 0, 2] *= 0.9
    assert max(follow(values)[1]) == 0


def test_a_fleet_that_begins_to_work_is_not_compared_with_its_idle_time() -> None:
    """What machines read before the task began says nothing of how they differ under load."""
    values = readings(400, seed=17)
    values[:90] *= 0.02
    values[90:, 1, 6] *= 0.93
    assert max(follow(values)[1]) == 0


def test_of_small_differences_direction_counts() -> None:
    """A clock that is higher than before is no fault where only a low one is."""
    values = readings(400, seed=19)
    values[200:, 0, 4] *= 1.05
    lasting, _ = follow(values)
    assert lasting.cells(np.zeros(2, bool), np.ones(2, bool)) == []
    assert lasting.cells(np.ones(2, bool), np.zeros(2, bool)) == [(0, 4)]


def test_a_reading_that_repeats_itself_is_unknown_and_one_at_rest_is_not() -> None:
    """A sensor that sticks for eight steps says nothing of now; a port without traffic says that it has none."""
    frozen, rng = Frozen(), np.random.default_rng(3)
    for at in range(90):
        now = rng.normal(410, 9, (2, MACHINES)).astype(np.float32)
        if at >= 60:
            now[:, 7], now[:, 2] = 404.25, 0.0
        stuck = frozen.mask(now, np.zeros(2, bool), np.zeros(2, bool))
        assert np.flatnonzero(stuck).tolist() == ([7] if at >= 68 else [])
        assert np.isnan(now[:, 7]).all() == (at >= 66)
        assert not np.isnan(now[:, 2]).any()


def test_a_single_sensor_that_sticks_is_unknown_and_a_steady_reading_is_not() -> None:
    """Of two readings that repeat themselves the clock at its limit is well read; full activity stays at 1 as well."""
    frozen, rng = Frozen(), np.random.default_rng(13)
    for at in range(90):
        now = rng.normal(310, 6, (3, MACHINES)).astype(np.float32)
        now[2] = rng.uniform(0.8, 0.99, MACHINES)
        if at >= 60:
            now[:2, 5], now[2, 8] = 301.5, 1.0
        assert not frozen.mask(now, np.zeros(3, bool), np.array([False, True, False])).any()
        assert np.argwhere(np.isnan(now)).tolist() == ([[0, 5]] if at >= 65 else [])


def test_a_sensor_that_sticks_soon_after_its_task_began_is_unknown_until_it_moves() -> None:
    """What was at rest for five minutes is as lively as it is at work; that all rest again makes it tell nothing."""
    frozen, rng = Frozen(), np.random.default_rng(37)
    for at in range(420):
        now = rng.uniform(0.3, 0.8, (3, MACHINES)).astype(np.float32)
        if not 300 <= at < 380:
            now[0] = 0.41
        if at >= 345:
            now[0, 4] = 0.39 + 0.01 * (at >= 405)
        frozen.mask(now, np.zeros(3, bool), np.zeros(3, bool))
        assert np.argwhere(np.isnan(now)).tolist() == ([[0, 4]] if 350 <= at < 405 else []), at


@pytest.mark.parametrize(("works", "unknown"), [(True, [[0, 6]]), (False, [])])
def test_a_reading_of_zero_sticks_where_others_show_that_the_device_works(
    works: bool, unknown: list[list[int]]
) -> None:
    """A GPU with tensor cores at 0 and two shares of time that move has a counter that stands."""
    frozen, rng = Frozen(), np.random.default_rng(29)
    for at in range(100):
        now = rng.uniform(0.2, 0.7, (4, MACHINES)).astype(np.float32)
        now[3] = rng.normal(310, 6, MACHINES)
        if at >= 60:
            now[0, 6] = 0.0
            now[1:3, 6] *= works
        frozen.mask(now, np.zeros(4, bool), np.zeros(4, bool))
        assert np.argwhere(np.isnan(now)).tolist() == (unknown if at >= 65 else []), at


@pytest.mark.parametrize("steps", [10, -6])
def test_a_reading_that_follows_too_late_is_known_by_how_many_steps(steps: int) -> None:
    """The rhythm of one machine is that of its peers some steps ago; the others are on time."""
    rng = np.random.default_rng(5)
    rhythm = np.repeat(rng.uniform(0.4, 1.0, 90), 7)
    lag, groups = Lag(), everybody()
    for at in range(40, 560):
        now = (300 + 250 * rhythm[at] + rng.normal(0, 4, (1, MACHINES))).astype(np.float32)
        if at > 250:
            now[0, 9] = 300 + 250 * rhythm[at - steps]
        lag.update(now, groups.middle(now), groups, np.arange(1))
        assert at > 250 or not len(lag.late())
    assert lag.late().tolist() == [9]
    assert lag.steps[9] == steps
