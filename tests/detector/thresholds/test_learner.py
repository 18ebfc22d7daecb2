"""Thresholds that a running detector learns: what teaches, what does not, and what becomes of it at a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.pipeline import Detector, walk
from detector.service.snapshot import dump, restore
from detector.thresholds.history import EVERY_MACHINE
from detector.thresholds.learner import Thresholds
from detector.thresholds.report import report
from store.schema.time import SECOND

Make = Callable[..., pa.Table]
STREAM = "power_watts"


def bursts(values: np.ndarray) -> None:
    """Harmless jumps of half a minute on one machine after the other."""
    for at, start in enumerate(range(200, 1500, 50)):
        values[start : start + 20 + at % 17, at % 7] += 25


def run(store: Any, config: Config | None = None) -> tuple[Detector, list[Any]]:
    """A detector after the readings of a store, and what it has said."""
    detector, said = Detector(config or Config()), []
    for now, rows in walk(store):
        said += detector.step(now, rows)
    return detector, said


@pytest.fixture
def noisy(memory: Any, fleet: Make) -> Any:
    """A detector after twenty minutes of bursts, copied from the first one that was made."""
    if not _SAVED:
        detector, said = run(memory({"meter": fleet(STREAM, machines=7, steps=1300, bend=bursts, seed=11)}))
        assert said == []
        _SAVED.append(dump(detector.state, 1234))
    return restore(_SAVED[0], Config())


_SAVED: list[bytes] = []


def peaks(thresholds: Thresholds, table: str = "meter") -> list[tuple[str, float]]:
    """Machine and height of what has taught the stream."""
    history = thresholds.tables[table].history
    found, machines, _ = history.of(history.streams.index(STREAM))
    names = [history.names[at] if at != EVERY_MACHINE else "every" for at in machines.tolist()]
    return sorted(zip(names, found.tolist(), strict=True))


def test_bursts_raise_the_threshold(noisy: Any) -> None:
    """Bursts that slow nothing raise the threshold of their metric within twenty minutes, on all machines."""
    state, _ = noisy
    assert state.thresholds.learned["meter"].multiplier[0] > 1.1
    limits = state.methods[0].panels["meter"].limits.metrics
    assert limits.shape == (1, 8)
    assert (limits > 1.05).all()
    assert len({name for name, _ in peaks(state.thresholds)}) == 7


def test_a_number_of_zero_leaves_the_built_in_thresholds(memory: Any, fleet: Make) -> None:
    """With 0 nothing is learned, and the report says so."""
    config = replace(Config(), false_pages_per_1000_machine_hours=0.0)
    detector, _ = run(memory({"meter": fleet(STREAM, machines=7, steps=300, bend=bursts)}), config)
    assert detector.state.thresholds.tables == {}
    assert report(detector.state.thresholds, config).words().startswith("built-in; ")


def leave(values: np.ndarray) -> None:
    """A machine that differs for five minutes."""
    values[400:700, 3] += 31


def test_a_fault_teaches_nothing(memory: Any, fleet: Make) -> None:
    """What a machine under a verdict shows, and its task at that time, does not raise the threshold."""
    store = memory({"meter": fleet(STREAM, machines=7, steps=1200, bend=leave, seed=5)})
    detector, said = run(store)
    assert {verdict.machine for verdict in said} == {"m3"}
    thresholds = detector.state.thresholds
    assert max((height for name, height in peaks(thresholds) if name == "m3"), default=0) < 0.5
    assert thresholds.tables["meter"].held.peak.max() > 1
    hours = thresholds.tables["meter"].history.hours[:, 0].sum()
    assert hours == pytest.approx(7 * (1200 - 100 - 300) / 3600, rel=0.1)  # nor do the start and the incident count


def test_a_false_alarm_teaches(memory: Any, fleet: Make) -> None:
    """After `peerwatch ack --false-alarm` a difference that lasts no longer raises no verdict on another machine."""

    def twice(values: np.ndarray) -> None:
        values[300:500, 3] += 31
        values[900:980, 5] += 31

    table = fleet(STREAM, machines=7, steps=1100, bend=twice, seed=5)
    time = np.unique(np.asarray(table["time"]))[450]
    order = {"source": ["operator"], "code": ["false_alarm"], "device": [None], "message": ["a test of the fans"]}
    event = pa.table({"time": [int(time)], "machine": ["m3"], **order})
    _, said = run(memory({"meter": table}))
    assert [verdict.machine for verdict in said if verdict.level != "ok"] == ["m3", "m5"]
    detector, said = run(memory({"meter": table, "event": event}))
    assert {verdict.machine for verdict in said} == {"m3"}
    assert any(name == "every" and height > 1 for name, height in peaks(detector.state.thresholds))


def test_learning_is_continued_after_a_restart(noisy: Any) -> None:
    """A saved state holds what was learned; with other settings of the evidence it begins again."""
    state, at = noisy
    assert (at, len(peaks(state.thresholds)) >= 10) == (1234, True)
    now = max(one.counted for one in state.thresholds.tables.values())
    Detector(Config(), state).step(now + 61 * SECOND, {})
    assert len(peaks(state.thresholds)) >= 10
    Detector(Config(correlation_seconds=7.0), state).step(now + 130 * SECOND, {})
    assert state.thresholds.learned == {}


def test_the_report_says_how_much_was_learned(noisy: Any) -> None:
    """One line for people says what was seen, what was asked for and what has changed."""
    config = Config()
    found = report(noisy[0].thresholds, config)
    assert (found.asked, found.readings >= 1, found.raised >= 1, found.excursions >= 10) == (0.5, True, True, True)
    assert found.machine_hours == pytest.approx(7 * 1200 / 3600, abs=0.2)
    assert "excursions in 2." in found.words()
    assert "0.5 false pages in 1,000 machine-hours" in found.words()
    assert report(Thresholds(), config).words() == "built-in, learning; 0 excursions in 0.0 machine-hours so far"
