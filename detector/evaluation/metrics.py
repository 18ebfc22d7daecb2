"""Figures over many recordings: how often a method is right, how soon, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from detector.evaluation.intervals import poisson, wilson
from detector.evaluation.outcome import Found, Outcome

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper bounds of the classes of fleets by number of machines."""


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All figures of one method; shares and times are None where there is nothing to divide by.

    By recording: right where a faulty machine was named, wrong where a healthy one was. By fault: each one found or
    missed, each false alarm one error. Delays in seconds from the onset, over the faults that were found. Keys that
    end in `_95` are 95 % intervals: Wilson's of shares, exact ones of rates.
    """
    found = [one for outcome in outcomes for one in outcome.found]
    return {
        "recordings": len(outcomes),
        **_by_recording(outcomes),
        "by_fault": _by_fault(found, sum(len(outcome.alarms) for outcome in outcomes)),
        "by_window": _by_window(outcomes),
        **_naming(outcomes, found),
        **_delays(found),
        **_false(outcomes),
        **_notes(outcomes),
        "step_ms": _rounded(_mean([outcome.step_ms for outcome in outcomes]), 2),
        "state_mb": _rounded(max((outcome.state_bytes for outcome in outcomes), default=0) / 1e6, 2),
        "by_kind": _grouped(outcomes, found, lambda one: one.fault.kind),
        "by_machines": _by_size(outcomes),
        "delays_s": sorted(round(one.delay_s, 1) for one in found if one.delay_s is not None),
    }


def _by_recording(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    faulty = [any(one.delay_s is not None for one in o.found) for o in outcomes if o.found]
    wrong = sum(bool(o.alarms) for o in outcomes)
    return _shares(sum(faulty), len(faulty), wrong)


def _by_fault(found: Sequence[Found], wrong: int) -> dict[str, Any]:
    return _shares(sum(one.delay_s is not None for one in found), len(found), wrong)


def _by_window(outcomes: Iterable[Outcome]) -> dict[str, Any] | None:
    """None where no windows were asked for."""
    counts = [outcome.windows for outcome in outcomes if outcome.windows]
    right, wrong, missed = (sum(getattr(one, name) for one in counts) for name in ("right", "wrong", "missed"))
    return _shares(right, right + missed, wrong) if counts else None


def _shares(right: int, there: int, wrong: int) -> dict[str, Any]:
    precision, recall = _ratio(right, right + wrong), _ratio(right, there)
    both = None if precision is None or recall is None else (precision + recall)
    f1 = 2 * precision * recall / both if both and precision and recall else (0.0 if there else None)
    named = {"precision": precision, "recall": recall, "f1": f1}
    return {
        **{name: _rounded(value) for name, value in named.items()},
        "precision_95": _interval(wilson(right, right + wrong)),
        "recall_95": _interval(wilson(right, there)),
        "right": right,
        "of": there,
        "wrong": wrong,
    }


def _naming(outcomes: Iterable[Outcome], found: Sequence[Found]) -> dict[str, Any]:
    said = [o.first_right for o in outcomes if o.first_right is not None]
    meant = [(one.device, one.fault.devices()[one.machine]) for one in found if one.delay_s is not None]
    meant = [pair for pair in meant if pair[1] is not None]
    right = sum(named == true for named, true in meant)
    return {
        "right_machine": _rounded(_ratio(sum(said), len(said))),
        "right_device": _rounded(_ratio(right, len(meant))),
        "right_device_95": _interval(wilson(right, len(meant))),
    }


def _delays(found: Iterable[Found]) -> dict[str, Any]:
    delays = [one.delay_s for one in found if one.delay_s is not None]
    named = {"delay_median_s": 50, "delay_p90_s": 90}
    return {name: _rounded(float(np.percentile(delays, p)), 1) if delays else None for name, p in named.items()}


def _false(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """False alarms of the healthy parts; alarms on others while a fault was there are counted apart."""
    hours, elsewhere, healthy = 0.0, 0, 0
    for outcome in outcomes:
        hours += outcome.healthy_hours
        healthy += sum(not alarm.during for alarm in outcome.alarms)
        elsewhere += sum(bool(alarm.during) for alarm in outcome.alarms)
    return {
        "machine_hours": _rounded(hours, 1),
        "false_per_1000h": _rounded(_ratio(1000 * healthy, hours), 2),
        "false_per_1000h_95": _interval(poisson(healthy, hours / 1000), 2),
        "false": healthy,
        "blamed": elsewhere,
    }


def _notes(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    notes, days = sum(o.notes for o in outcomes), sum(o.judged_hours for o in outcomes) / 24
    return {
        "notes": notes,
        "notes_per_machine_day": _rounded(_ratio(notes, days), 2),
        "notes_per_machine_day_95": _interval(poisson(notes, days), 2),
    }


def _grouped(outcomes: Iterable[Outcome], found: Iterable[Found], key: Callable[[Found], str]) -> dict[str, Any]:
    groups: dict[str, list[Found]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    during = [alarm.during for outcome in outcomes for alarm in outcome.alarms]
    return {
        name: {
            "faults": len(group),
            "found": (right := sum(one.delay_s is not None for one in group)),
            "recall_95": _interval(wilson(right, len(group))),
            "blamed": during.count(name),
            **_delays(group),
        }
        for name, group in sorted(groups.items())
    }


def _by_size(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    groups: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(next((size for size in SIZES if outcome.machines <= size), 10**6), []).append(outcome)
    return {
        f"to {size}" if size < 10**6 else f"over {SIZES[-1]}": {
            **_by_recording(group),
            **_delays([one for outcome in group for one in outcome.found]),
            **_false(group),
        }
        for size, group in sorted(groups.items())
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def _interval(ends: tuple[float, float] | None, digits: int = 3) -> list[float] | None:
    return None if ends is None else [round(end, digits) for end in ends]
