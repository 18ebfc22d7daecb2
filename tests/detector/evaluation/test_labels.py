"""Labels, and what verdicts are worth against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detector.evaluation.labels import Fault, LabelError, Labels, read_labels
from detector.evaluation.outcome import Counting, assess
from detector.evaluation.windows import Windows
from detector.model.verdict import Level, Verdict
from store.schema.time import SECOND

FAULT = Fault("m3", "gpu:5", "slow_gpu", 1000 * SECOND, 1300 * SECOND)
LABELS = Labels(8, (FAULT,))
SPAN = (0, 3600 * SECOND)


def said(at: int, machine: str, level: Level = "crit", device: str | None = "gpu:5") -> Verdict:
    """A verdict at some second."""
    return Verdict(at * SECOND, "t", machine, device, "peer", "gpu.power_watts", 2.5, at * SECOND, level, "m")


@pytest.mark.parametrize(("at", "counts"), [(999, False), (1000, True), (1317, True), (1360, True), (1361, False)])
def test_a_verdict_counts_from_the_start_until_the_grace_is_over(at: int, counts: bool) -> None:
    """Naming the machine counts within the fault and 60 s after it, and is a false alarm outside."""
    outcome = assess("r", "m", LABELS, [said(at, "m3")], SPAN, Counting(60))
    assert (outcome.found[0].delay_s is not None, len(outcome.alarms)) == (counts, not counts)
    assert outcome.found[0].delay_s in (None, at - 1000)


def test_others_blamed_during_a_fault_are_false_alarms_of_their_own_kind() -> None:
    """The first verdict names the wrong machine, a later one the right one."""
    outcome = assess("r", "m", LABELS, [said(1010, "m6"), said(1025, "m3")], SPAN)
    assert (outcome.first_right, outcome.found[0].delay_s, outcome.found[0].device) == (False, 25, "gpu:5")
    assert [(alarm.machine, alarm.during) for alarm in outcome.alarms] == [("m6", "slow_gpu")]


def test_an_alarm_counts_once_until_it_is_cleared() -> None:
    """A level that rises is no second alarm; one that comes after the all-clear is."""
    levels: list[tuple[int, Level]] = [(100, "warn"), (130, "crit"), (170, "ok"), (210, "crit")]
    outcome = assess("r", "m", LABELS, [said(at, "m1", level) for at, level in levels], SPAN)
    assert [alarm.time // SECOND for alarm in outcome.alarms] == [100, 210]
    assert (outcome.first_right, outcome.found[0].delay_s) == (None, None)


def test_healthy_hours_leave_out_faults_and_what_is_not_judged() -> None:
    """Overlapping spans are taken off once, and nothing said in them counts."""
    labels = Labels(6, (FAULT,), ((1200 * SECOND, 1540 * SECOND),))
    outcome = assess("r", "m", labels, [said(1550, "m2")], SPAN, Counting(60))
    assert outcome.healthy_hours == pytest.approx(6 * (3600 - 600) / 3600)
    assert outcome.alarms == ()


RACK = (
    Fault("m2", None, "rack_power", 500 * SECOND, 700 * SECOND, "rack:3"),
    Fault("m5", None, "rack_power", 500 * SECOND, 760 * SECOND, "rack:3"),
)


def test_a_group_is_one_fault_or_each_machine_is() -> None:
    """A group as one fault is found by any of its machines without a false alarm; counted apart, one is missed."""
    verdicts = [said(530, "m5")]
    together = assess("r", "m", Labels(8, (*RACK, FAULT)), verdicts, SPAN, Counting())
    apart = assess("r", "m", Labels(8, (*RACK, FAULT)), verdicts, SPAN, Counting(groups="each"))
    assert [one.delay_s for one in together.found] == [30, None]
    assert [one.delay_s for one in apart.found] == [None, 30, None]
    assert (together.alarms, apart.alarms) == ((), ())


def test_notes_are_counted_once_and_are_no_alarms() -> None:
    """A note that is repeated until it ends is one; a note that becomes an alarm is both."""
    levels: list[tuple[int, Level]] = [(100, "note"), (110, "note"), (170, "ok"), (210, "note"), (230, "warn")]
    levels += [(240, "note"), (250, "ok")]
    outcome = assess("r", "m", LABELS, [said(at, "m1", level) for at, level in levels], SPAN)
    assert (outcome.notes, len(outcome.alarms), outcome.judged_hours) == (2, 1, 8.0)


def test_windows_count_machines_that_are_faulty_or_named() -> None:
    """A verdict counts in each window from when it is raised until it is cleared; windows not judged count nothing."""
    levels: list[tuple[int, str, Level]] = [(900, "m3", "warn"), (1400, "m3", "ok"), (2150, "m6", "crit")]
    verdicts = [said(at, machine, level) for at, machine, level in levels]
    labels = Labels(8, (FAULT, Fault("m4", None, "x", 1900 * SECOND, 2000 * SECOND)))
    outcome = assess("r", "m", labels, verdicts, SPAN, Counting(window_s=600))
    assert outcome.windows == Windows(right=2, wrong=3, missed=1)  # m3 in 1 and 2; m6 in 3, 4, 5; m4 in 3
    hidden = Labels(8, labels.faults, ((2450 * SECOND, 2460 * SECOND),))
    assert assess("r", "m", hidden, verdicts, SPAN, Counting(window_s=600)).windows == Windows(2, 2, 1)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "is not as labels must be"),
        ('{"faults": []}', "machines"),
        ('{"machines": 0, "faults": []}', "0 machines"),
    ],
)
def test_labels_that_are_none_are_named_with_their_file(tmp_path: Path, text: str, wrong: str) -> None:
    """One line says which file is wrong, and how."""
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(LabelError, match=rf"^[^\n]*labels.json[^\n]*{wrong}[^\n]*$"):
        read_labels(tmp_path)


def test_labels_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A fault of a machine as a whole has no device; a fault that ends before it starts is refused."""
    entry: dict[str, Any] = {"machine": "m4", "device": None, "kind": "storage_error", "start": 17, "end": 29}
    file = tmp_path / "labels.json"
    file.write_text(json.dumps({"machines": 9, "faults": [entry], "unjudged": [{"start": 3, "end": 5}]}))
    assert read_labels(tmp_path) == Labels(9, (Fault("m4", None, "storage_error", 17, 29),), ((3, 5),))
    file.write_text(json.dumps({"machines": 9, "faults": [{**entry, "group": "rack:8"}]}))
    assert read_labels(tmp_path).faults[0].group == "rack:8"
    file.write_text(json.dumps({"machines": 9, "faults": [{**entry, "end": 11}]}))
    with pytest.raises(LabelError, match="ends at 11"):
        read_labels(tmp_path)
    file.unlink()
    with pytest.raises(LabelError, match="missing"):
        read_labels(tmp_path)
