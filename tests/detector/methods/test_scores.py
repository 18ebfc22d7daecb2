"""One unit of scores: of every method 1.0 is what just raises an alarm, so that any two can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.pipeline import METHODS, read_rows
from detector.evaluation.run import BASELINES, methods_of
from detector.harm.judge import Harm
from detector.methods.contract import Method
from detector.methods.evidence.method import Evidence
from detector.methods.peers.method import Peers
from detector.methods.progress.method import Progress
from detector.model.verdict import Finding
from detector.topology.tasks import Tasks
from store.schema.time import SECOND
from tests.detector.conftest import Memory
from tests.detector.methods.progress.test_progress import calls
from tests.detector.methods.progress.test_slowdown import train

START, MACHINES, STEPS = 1_700_000_000 * SECOND, 9, 400
Tables = Mapping[str, pa.Table]
Make = Callable[[Config], Method]
Scene = Callable[[Callable[..., pa.Table], float], Tables]
"""The tables of a fleet with a fault of a size; of size 0 it is healthy."""


def off(fleet: Callable[..., pa.Table], size: float) -> Tables:
    """One machine's readings are off by so many standard deviations and swing, from the third minute on."""

    def bend(values: np.ndarray) -> None:
        values[140:, 4] += size + min(size, 15.0) * np.sin(np.arange(STEPS - 140))

    return {"meter": fleet("power_watts", machines=MACHINES, steps=STEPS, bend=bend, seed=13)}


def weak(fleet: Callable[..., pa.Table], size: float) -> Tables:
    """One machine is off by each of six readings, none of which raises an alarm by itself."""

    def bend(values: np.ndarray) -> None:
        values[190:, 3] += size

    first, *more = (fleet(f"load_{n}", machines=8, steps=STEPS, bend=bend, seed=20 + n) for n in range(6))
    for n, table in enumerate(more, 1):
        first = first.append_column(f"load_{n}", table[f"load_{n}"])
    return {"odd": first}


def hung(fleet: Callable[..., pa.Table], size: float) -> Tables:
    """A communicator that stops for one rank, which is `size` operations behind."""
    return {"nccl": calls(20, behind=2) if size else calls(60)}


def reported(fleet: Callable[..., pa.Table], size: float) -> Tables:
    """A critical event on one machine, one that is no fault by itself on another, and a third falls silent."""

    def bend(values: np.ndarray) -> None:
        values[120:, 5] = np.nan if size else values[120:, 5]

    codes = (("m1", "xid:79", "crit"), ("m3", "xid:13", "warn"))
    names = ("time", "machine", "code", "severity", "source", "device", "message")
    rows = [(START + 77 * SECOND, machine, code, level, "s", "gpu:1", code) for machine, code, level in codes]
    event = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    host = fleet(machines=MACHINES, steps=230, bend=bend)
    return {"host": host, "event": event} if size else {"host": host}


SCENES: tuple[tuple[Make, Scene, float, set[str]], ...] = (
    (Peers, off, 40.0, {"crit"}),
    (Peers, weak, 4.0, {"warn"}),
    (Progress, hung, 1.0, {"warn", "crit"}),
    (Evidence, reported, 1.0, {"note", "warn", "crit"}),
    *((methods_of(name)[0], off, 40.0, {"crit"}) for name in BASELINES),
)
NAMES = ["peers", "fusion", "progress", "evidence", *BASELINES]


def findings(make: Make, tables: Tables) -> Iterator[Finding]:
    """All findings of a method, second by second, but early ones, which count by the harm that they do."""
    method, tasks, store = make(Config()), Tasks(), Memory(tables)
    ends = store.span(0)
    assert ends is not None
    for now in range(ends[0], ends[1] + SECOND, SECOND):
        rows = read_rows(store, now - SECOND, now)
        for new in rows.values():
            tasks.feed(new)
        tasks.turn(now)
        yield from (one for one in method.step(now, rows, tasks) if not one.early)


def firsts(found: Iterable[Finding]) -> list[Finding]:
    """Of each machine, reading and level the finding that came first; an alarm that goes on may be weaker."""
    seen: dict[tuple[str, str, str], Finding] = {}
    for one in found:
        seen.setdefault((one.verdict.machine, one.verdict.metric, one.verdict.level), one)
    return list(seen.values())


def raises(finding: Finding) -> bool:
    """Whether both the strength and the evidence are what raises an alarm, or more."""
    return min(finding.verdict.score, finding.evidence) >= 1


def test_every_method_has_a_scene() -> None:
    """A method that is added to the detector is asked for its scores too."""
    assert set(METHODS) <= {make for make, *_ in SCENES}


@pytest.mark.parametrize(("make", "scene", "size", "levels"), SCENES, ids=NAMES)
def test_a_score_of_one_is_what_raises_an_alarm(
    make: Make, scene: Scene, size: float, levels: set[str], fleet: Any
) -> None:
    """Score and evidence are 1 or more where an alarm begins, one of them is less in a note, and health has none."""
    found = firsts(findings(make, scene(fleet, size)))
    assert {one.verdict.level for one in found} == levels
    assert [(raises(one), one.verdict.level) for one in found if raises(one) == (one.verdict.level == "note")] == []
    assert list(findings(make, scene(fleet, 0.0))) == []


def test_the_times_of_operations_score_in_the_same_unit() -> None:
    """A process that makes iterations longer scores just above 1 when it is named: windows are no score."""
    _, steps = train("late", culprit=4, late=0.035, host=True, until=125)
    (first,) = firsts(one for some in steps for one in some if "makes iterations longer" in one.verdict.message)
    assert 1 <= first.verdict.score == first.evidence < 1.4


def test_what_does_harm_is_an_alarm(fleet: Any) -> None:
    """A note that is found to do harm becomes a warning, with the score of what just raises one."""
    (note,) = (one for one in firsts(findings(Evidence, reported(fleet, 1.0))) if one.verdict.metric == "event.xid:13")
    assert not raises(note)
    harm, verdict = Harm(), note.verdict
    harm.harmful[verdict.task, verdict.machine, verdict.device or "", False] = verdict.time
    raised = harm.graded(note, {}, verdict.time)
    assert raised is not None
    assert (raised.verdict.level, raised.verdict.score, raised.evidence) == ("warn", 1.0, 1.0)
    assert replace(raised, verdict=verdict, evidence=note.evidence) == note
