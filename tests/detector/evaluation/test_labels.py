"""Labels, and what verdicts are worth against them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detector.evaluation.labels import Fault, LabelError, Labels, assess, read_labels
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
    outcome = assess("r", "m", LABELS, [said(at, "m3")], SPAN, 60)
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
    outcome = assess("r", "m", labels, [said(1550, "m2")], SPAN, 60)
    assert outcome.healthy_hours == pytest.approx(6 * (3600 - 600) / 3600)
    assert outcome.alarms == ()


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
    file.write_text(json.dumps({"machines": 9, "faults": [{**entry, "end": 11}]}))
    with pytest.raises(LabelError, match="ends at 11"):
        read_labels(tmp_path)
    file.unlink()
    with pytest.raises(LabelError, match="missing"):
        read_labels(tmp_path)
