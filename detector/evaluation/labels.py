"""Labels of a recording, and what a method's verdicts are worth against them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detector.model.verdict import RANK, Verdict
from store.schema.time import SECOND

GRACE_S = 60.0
"""A verdict that comes so soon after a fault's end still counts for it."""
_LARGEST = 10**6


class LabelError(ValueError):
    """labels.json is not there or not as it must be; one line with the file."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is known to be wrong: times in Unix ns, `device` None where the machine as a whole is meant."""

    machine: str
    device: str | None
    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Labels:
    """All that is known of a recording; no verdict counts either way in the spans `unjudged`."""

    machines: int
    faults: tuple[Fault, ...]
    unjudged: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A fault, and the first verdict that counts for it."""

    fault: Fault
    delay_s: float | None
    """From its onset; None where it was missed."""
    device: str | None
    metric: str


@dataclass(frozen=True, slots=True)
class Alarm:
    """A verdict that counts for no fault; `during` names the kind of a fault elsewhere that it came in, if any."""

    time: int
    machine: str
    device: str | None
    kind: str
    metric: str
    message: str
    during: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method did with one recording."""

    recording: str
    method: str
    machines: int
    healthy_hours: float
    """Machine-hours in which nothing was wrong anywhere."""
    found: tuple[Found, ...]
    alarms: tuple[Alarm, ...]
    first_right: bool | None
    """Whether the first verdict said while a fault was there named its machine; None where none was said."""
    step_ms: float = 0.0
    """CPU time a step, the mean."""
    state_bytes: int = 0
    """What the method remembers at the end, pickled."""


def read_labels(folder: Path) -> Labels:
    """The labels beside a recording's tables. Raises LabelError."""
    file = folder / "labels.json"
    try:
        found = json.loads(file.read_text())
        faults = tuple(_fault(entry) for entry in found["faults"])
        unjudged = tuple((int(span["start"]), int(span["end"])) for span in found.get("unjudged", ()))
        machines = int(found["machines"])
    except FileNotFoundError:
        raise LabelError(f"{file} is missing: a recording without labels cannot be evaluated") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise LabelError(f"{file} is not as labels must be: {type(error).__name__} {error}".splitlines()[0]) from error
    if not 0 < machines <= _LARGEST:
        raise LabelError(f"{file} speaks of {machines} machines")
    return Labels(machines, faults, unjudged)


def _fault(entry: Mapping[str, Any]) -> Fault:
    device = entry.get("device")
    start, end = int(entry["start"]), int(entry["end"])
    if end < start:
        raise ValueError(f"a fault ends at {end}, before it starts")
    return Fault(str(entry["machine"]), None if device is None else str(device), str(entry["kind"]), start, end)


def assess(
    name: str, method: str, labels: Labels, verdicts: Iterable[Verdict], span: tuple[int, int], grace_s: float = GRACE_S
) -> Outcome:
    """Hold a method's verdicts against the labels; `span` is the recording's first and last time (Unix ns).

    A verdict counts for a fault when it names the machine and comes from the fault's start until `grace_s` after its
    end. What counts for none is a false alarm, once until the machine is cleared.
    """
    grace = int(grace_s * SECOND)
    judged = [v for v in verdicts if not any(start <= v.time <= end + grace for start, end in labels.unjudged)]
    raised = [v for v in judged if RANK[v.level] > RANK["note"]]
    found = tuple(_found(fault, raised, grace) for fault in labels.faults)
    first: dict[tuple[int, int], Verdict] = {}
    for v in raised:
        for fault in labels.faults:
            if _is_within(v.time, fault, grace):
                first.setdefault((fault.start, fault.end), v)
    right = [any(_counts(v, fault, grace) for fault in labels.faults) for v in first.values()]
    away = [(f.start, f.end + grace) for f in labels.faults] + [(a, b + grace) for a, b in labels.unjudged]
    hours = labels.machines * (span[1] - span[0] - _covered(away, span)) / SECOND / 3600
    alarms = tuple(_alarms(labels.faults, judged, grace))
    return Outcome(name, method, labels.machines, hours, found, alarms, all(right) if right else None)


def _is_within(time: int, fault: Fault, grace: int) -> bool:
    return fault.start <= time <= fault.end + grace


def _counts(verdict: Verdict, fault: Fault, grace: int) -> bool:
    return verdict.machine == fault.machine and _is_within(verdict.time, fault, grace)


def _found(fault: Fault, raised: list[Verdict], grace: int) -> Found:
    hit = next((v for v in raised if _counts(v, fault, grace)), None)
    if hit is None:
        return Found(fault, None, None, "")
    return Found(fault, (hit.time - fault.start) / SECOND, hit.device, hit.metric)


def _alarms(faults: tuple[Fault, ...], judged: list[Verdict], grace: int) -> Iterable[Alarm]:
    """False alarms, each once until its machine is cleared."""
    open_: set[tuple[str, str]] = set()
    for v in judged:
        key = v.task, v.machine
        if v.level == "ok":
            open_.discard(key)
        elif v.level != "note" and key not in open_:
            open_.add(key)
            if not any(_counts(v, fault, grace) for fault in faults):
                during = next((fault.kind for fault in faults if _is_within(v.time, fault, grace)), "")
                yield Alarm(v.time, v.machine, v.device, v.kind, v.metric, v.message, during)


def _covered(spans: list[tuple[int, int]], within: tuple[int, int]) -> int:
    """Length of the union of some spans, as far as it lies within another."""
    total, reached = 0, within[0]
    for start, end in sorted(spans):
        start, end = max(start, reached), min(end, within[1])
        if end > start:
            total += end - start
            reached = end
    return total
