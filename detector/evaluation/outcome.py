"""What a method's verdicts are worth against the labels of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from detector.evaluation.labels import Fault, Labels
from detector.evaluation.windows import Spans, Windows, opened, windows
from detector.model.verdict import RANK, Verdict
from store.schema.time import SECOND

GRACE_S = 60.0
"""A verdict that comes so soon after a fault's end still counts for it."""


@dataclass(frozen=True, slots=True)
class Counting:
    """How verdicts are counted."""

    grace_s: float = GRACE_S
    groups: str = "one"
    """`one`: the faulty machines of a group are one fault, found where any is named; `each`: one fault a machine."""
    window_s: float = 0.0
    """Seconds of the windows that are counted beside; 0: none."""


@dataclass(frozen=True, slots=True)
class Found:
    """A fault, and the first verdict that counts for it."""

    fault: Fault
    delay_s: float | None
    """From its onset; None where it was missed."""
    machine: str
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
    notes: int = 0
    """Differences without harm that were noted, each once until it ended."""
    judged_hours: float = 0.0
    """Machine-hours that were judged, with faults and without."""
    windows: Windows | None = None
    """Machines by windows of time, where such were asked for."""


def assess(
    name: str,
    method: str,
    labels: Labels,
    verdicts: Iterable[Verdict],
    span: tuple[int, int],
    how: Counting | None = None,
) -> Outcome:
    """Compare a method's verdicts with the labels; `span` is the recording's first and last time (Unix ns).

    A verdict counts for a fault when it names a machine of it and comes from the fault's start until the grace after
    its end. What counts for none is a false alarm, once until the machine is cleared. A task that stands still with no
    machine to name is neither while a fault is there, and a false alarm otherwise.
    """
    how = how or Counting()
    labels, grace = labels.together() if how.groups == "one" else labels, int(how.grace_s * SECOND)
    hidden = tuple((start, end + grace) for start, end in labels.unjudged)
    judged = [v for v in verdicts if not any(start <= v.time <= end for start, end in hidden)]
    judged = [v for v in judged if v.names_machine or not any(_is_within(v.time, f, grace) for f in labels.faults)]
    raised = [v for v in judged if RANK[v.level] > RANK["note"]]
    away = [(f.start, f.end + grace) for f in labels.faults] + list(hidden)
    return Outcome(
        *(name, method, labels.machines, _hours(labels.machines, span, away)),
        found=tuple(_found(fault, raised, grace) for fault in labels.faults),
        alarms=tuple(_alarms(labels.faults, judged, grace)),
        first_right=_first_right(labels.faults, raised, grace),
        notes=sum(1 for _ in _opened(judged, "note")),
        judged_hours=_hours(labels.machines, span, hidden),
        windows=_windows(labels, judged, span, how) if how.window_s else None,
    )


def _windows(labels: Labels, judged: Sequence[Verdict], span: tuple[int, int], how: Counting) -> Windows:
    faults: Spans = [(who, f.start, f.end) for f in labels.faults for who in f.devices()]
    return windows(labels.machines, faults, opened(judged, span[1]), labels.unjudged, span, int(how.window_s * SECOND))


def _first_right(faults: Iterable[Fault], raised: Sequence[Verdict], grace: int) -> bool | None:
    first: dict[tuple[int, int], Verdict] = {}
    for v in raised:
        for fault in faults:
            if _is_within(v.time, fault, grace):
                first.setdefault((fault.start, fault.end), v)
    right = [any(_counts(v, fault, grace) for fault in faults) for v in first.values()]
    return all(right) if right else None


def _is_within(time: int, fault: Fault, grace: int) -> bool:
    return fault.start <= time <= fault.end + grace


def _counts(verdict: Verdict, fault: Fault, grace: int) -> bool:
    return verdict.machine in fault.devices() and _is_within(verdict.time, fault, grace)


def _found(fault: Fault, raised: Sequence[Verdict], grace: int) -> Found:
    hit = next((v for v in raised if _counts(v, fault, grace)), None)
    if hit is None:
        return Found(fault, None, "", None, "")
    return Found(fault, (hit.time - fault.start) / SECOND, hit.machine, hit.device, hit.metric)


def _opened(judged: Iterable[Verdict], least: str) -> Iterator[Verdict]:
    """Verdicts that begin something: a note where nothing is open, or an alarm where no alarm is."""
    open_: set[tuple[str, str]] = set()
    for v in judged:
        key, is_note = (v.task, v.machine), v.level == "note"
        if v.level == "ok":
            open_.discard(key)
        elif key not in open_ and not (is_note and least == "warn"):
            open_.add(key)
            if is_note == (least == "note"):
                yield v


def _alarms(faults: Sequence[Fault], judged: Iterable[Verdict], grace: int) -> Iterator[Alarm]:
    """False alarms, each once until its machine is cleared."""
    for v in _opened(judged, "warn"):
        if not any(_counts(v, fault, grace) for fault in faults):
            during = next((fault.kind for fault in faults if _is_within(v.time, fault, grace)), "")
            yield Alarm(v.time, v.machine, v.device, v.kind, v.metric, v.message, during)


def _hours(machines: int, span: tuple[int, int], without: Iterable[tuple[int, int]]) -> float:
    """Machine-hours of a recording outside of some spans."""
    return machines * (span[1] - span[0] - _covered(without, span)) / SECOND / 3600


def _covered(spans: Iterable[tuple[int, int]], within: tuple[int, int]) -> int:
    """Length of the union of some spans, as far as it lies within another."""
    total, reached = 0, within[0]
    for start, end in sorted(spans):
        start, end = max(start, reached), min(end, within[1])
        if end > start:
            total += end - start
            reached = end
    return total
