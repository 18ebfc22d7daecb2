"""Figures over recordings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detector.evaluation.intervals import poisson, wilson
from detector.evaluation.labels import Fault
from detector.evaluation.metrics import figures
from detector.evaluation.outcome import Alarm, Found, Outcome
from detector.evaluation.windows import Windows

FAULT = Fault("m3", "gpu:5", "slow_gpu", 1000, 1300)
ALARM = Alarm(7, "m1", None, "peer", "host.x", "m", "")


def outcome(*found: Found, alarms: tuple[Alarm, ...] = (), machines: int = 8, hours: float = 2.0) -> Outcome:
    """One recording's outcome."""
    return Outcome("r", "m", machines, hours, found, alarms, found[0].delay_s is not None if found else None, 3.5, 17)


def test_precision_and_recall_by_recording_and_by_fault() -> None:
    """Precision and recall follow from two of three faults found and from three false alarms in two recordings."""
    hit, miss = Found(FAULT, 21.0, "m3", "gpu:5", "a"), Found(FAULT, None, "", None, "")
    got = figures([outcome(hit, alarms=(ALARM,)), outcome(hit), outcome(miss, alarms=(ALARM, ALARM)), outcome()])
    assert (got["precision"], got["recall"], got["f1"]) == (0.5, 0.667, 0.571)
    assert (got["by_fault"]["precision"], got["by_fault"]["recall"], got["by_fault"]["wrong"]) == (0.4, 0.667, 3)
    assert got["false_per_1000h"] == 3 / 8 * 1000


def test_naming_and_delay() -> None:
    """Devices are right or wrong only where a label has one; delays are of what was found."""
    whole = Fault("m4", None, "slow_host", 5, 9)
    found = (
        Found(FAULT, 10.0, "m3", "gpu:2", "a"),
        Found(FAULT, 30.0, "m3", "gpu:5", "a"),
        Found(whole, 50.0, "m4", "gpu:1", "b"),
    )
    got = figures([outcome(*found)])
    assert (got["right_device"], got["delay_median_s"], got["delay_p90_s"]) == (0.5, 30.0, 46.0)
    kind = got["by_kind"]["slow_gpu"]
    assert (kind["faults"], kind["found"], kind["delay_median_s"], kind["delay_p90_s"]) == (2, 2, 20.0, 28.0)


def test_the_device_of_a_group_is_that_of_the_machine_that_was_named() -> None:
    """Each machine of a group has a device of its own."""
    group = Fault("m3", "gpu:5", "switch", 100, 200, "switch:7", (("m6", "rdma:mlx5_2/1"),))
    right, wrong = Found(group, 11.0, "m6", "rdma:mlx5_2/1", "a"), Found(group, 13.0, "m6", "gpu:5", "a")
    assert figures([outcome(right)])["right_device"] == 1.0
    assert figures([outcome(wrong)])["right_device"] == 0.0


def test_windows_and_notes() -> None:
    """Windows of all recordings add up; notes are counted for each day of a machine."""
    one = replace(outcome(), windows=Windows(3, 1, 2), notes=5, judged_hours=36.0)
    two = replace(outcome(), windows=Windows(4, 2, 0), notes=1, judged_hours=12.0)
    got = figures([one, two])
    assert (got["by_window"]["right"], got["by_window"]["of"], got["by_window"]["precision"]) == (7, 9, 0.7)
    assert (got["notes"], got["notes_per_machine_day"]) == (6, 3.0)
    assert figures([outcome()])["by_window"] is None


@pytest.mark.parametrize(
    ("right", "of", "ends"), [(0, 10, (0.0, 0.278)), (7, 9, (0.453, 0.937)), (30, 30, (0.886, 1.0))]
)
def test_wilson_intervals_of_shares(right: int, of: int, ends: tuple[float, float]) -> None:
    """Wilson intervals equal those of published tables."""
    assert wilson(right, of) == pytest.approx(ends, abs=0.0006)
    assert wilson(0, 0) is None


@pytest.mark.parametrize(
    ("count", "hours", "ends"), [(0, 2.0, (0.0, 1.844)), (3, 1.0, (0.619, 8.767)), (20, 4.0, (3.054, 7.722))]
)
def test_exact_intervals_of_rates(count: int, hours: float, ends: tuple[float, float]) -> None:
    """Intervals of rates equal those of tables of the Poisson distribution."""
    assert poisson(count, hours) == pytest.approx(ends, abs=0.001)
    assert poisson(count, 0.0) is None


def test_what_was_blamed_during_a_fault_is_no_false_alarm_of_health() -> None:
    """A wrong machine that is named during a fault counts against precision, and in a column of its own."""
    blamed = Alarm(7, "m1", None, "peer", "host.x", "m", "slow_gpu")
    got = figures([outcome(Found(FAULT, 10.0, "m3", "gpu:5", "a"), alarms=(blamed,))])
    assert (got["false_per_1000h"], got["blamed"], got["precision"]) == (0.0, 1, 0.5)


@pytest.mark.parametrize(("machines", "size"), [(8, "to 8"), (9, "to 16"), (1025, "over 1024")])
def test_fleets_are_counted_by_size(machines: int, size: str) -> None:
    """A fleet at a bound of two classes belongs to the smaller class."""
    assert list(figures([outcome(machines=machines)])["by_machines"]) == [size]


def test_nothing_to_divide_by_is_unknown() -> None:
    """A share of nothing is unknown."""
    got = figures([])
    assert (got["precision"], got["recall"], got["false_per_1000h"], got["delay_median_s"]) == (None,) * 4
