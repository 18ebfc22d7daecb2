"""Figures over recordings."""

from __future__ import annotations

import pytest

from detector.evaluation.labels import Alarm, Fault, Found, Outcome
from detector.evaluation.metrics import figures

FAULT = Fault("m3", "gpu:5", "slow_gpu", 1000, 1300)
ALARM = Alarm(7, "m1", None, "peer", "host.x", "m", "")


def outcome(*found: Found, alarms: tuple[Alarm, ...] = (), machines: int = 8, hours: float = 2.0) -> Outcome:
    """One recording's outcome."""
    return Outcome("r", "m", machines, hours, found, alarms, found[0].delay_s is not None if found else None, 3.5, 17)


def test_precision_and_recall_by_recording_and_by_fault() -> None:
    """Two faults of three found in two faulty recordings of three; three false alarms in two recordings."""
    hit, miss = Found(FAULT, 21.0, "gpu:5", "a"), Found(FAULT, None, None, "")
    got = figures([outcome(hit, alarms=(ALARM,)), outcome(hit), outcome(miss, alarms=(ALARM, ALARM)), outcome()])
    assert (got["precision"], got["recall"], got["f1"]) == (0.5, 0.667, 0.571)
    assert (got["by_fault"]["precision"], got["by_fault"]["recall"], got["by_fault"]["wrong"]) == (0.4, 0.667, 3)
    assert got["false_per_1000h"] == 3 / 8 * 1000


def test_naming_and_delay() -> None:
    """Devices are right or wrong only where a label has one; delays are of what was found."""
    whole = Fault("m4", None, "slow_host", 5, 9)
    found = (Found(FAULT, 10.0, "gpu:2", "a"), Found(FAULT, 30.0, "gpu:5", "a"), Found(whole, 50.0, "gpu:1", "b"))
    got = figures([outcome(*found)])
    assert (got["right_device"], got["delay_median_s"], got["delay_p90_s"]) == (0.5, 30.0, 46.0)
    assert got["by_kind"]["slow_gpu"] == {"faults": 2, "found": 2, "delay_median_s": 20.0, "delay_p90_s": 28.0}


def test_what_was_blamed_during_a_fault_is_no_false_alarm_of_health() -> None:
    """It counts against precision, and apart."""
    blamed = Alarm(7, "m1", None, "peer", "host.x", "m", "slow_gpu")
    got = figures([outcome(Found(FAULT, 10.0, "gpu:5", "a"), alarms=(blamed,))])
    assert (got["false_per_1000h"], got["blamed"], got["precision"]) == (0.0, 1, 0.5)


@pytest.mark.parametrize(("machines", "size"), [(8, "to 8"), (9, "to 16"), (1025, "over 1024")])
def test_fleets_are_counted_by_size(machines: int, size: str) -> None:
    """Bounds belong to the smaller class."""
    assert list(figures([outcome(machines=machines)])["by_machines"]) == [size]


def test_nothing_to_divide_by_is_unknown() -> None:
    """Of nothing, no share is claimed."""
    got = figures([])
    assert (got["precision"], got["recall"], got["false_per_1000h"], got["delay_median_s"]) == (None,) * 4
