"""Fusion: many weak deviations raise an alarm together, and what is read twice counts once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import replay
from detector.model.verdict import Verdict
from emulator.simulation.simulate import simulate

Make = Callable[..., pa.Table]
SECOND, START = 10**9, 1_700_000_000 * 10**9
ONSET, METRICS = 180, 6
BENT = ("power_watts", "temperature_celsius", "sm_clock_hertz", "tensor_active_ratio", "throttle_power_seconds_total")


def odd(fleet: Make, shift: float, metrics: int = METRICS, alike: bool = False, until: int = 400) -> pa.Table:
    """Readings of eight machines, of which m3 moves a little by some metrics; `alike` ones are all the same column."""

    def moved(number: int) -> pa.Table:
        def bend(values: np.ndarray) -> None:
            values[ONSET:until, 3] += shift if number < metrics else 0.0

        return fleet(f"load_{number}", machines=8, steps=400, bend=bend, seed=3 if alike else 20 + number)

    table, *more = (moved(number) for number in range(METRICS))
    for number, other in enumerate(more, 1):
        table = table.append_column(f"load_{number}", other[f"load_{number}"])
    return table


def raised(memory: Any, **tables: pa.Table) -> list[Verdict]:
    """The verdicts that incriminate."""
    return [verdict for verdict in replay(memory(tables)) if verdict.level != "ok"]


def test_many_weak_deviations_raise_an_alarm_together(memory: Any, fleet: Make) -> None:
    """Six readings that each move by less than counts name the machine, after a minute; one or two of them do not."""
    verdict, *others = raised(memory, odd=odd(fleet, 4.0))
    assert others == []
    assert (verdict.machine, verdict.device, verdict.level) == ("m3", None, "warn")
    assert ONSET + 55 <= (verdict.time - START) / SECOND <= ONSET + 150
    assert abs((verdict.since - START) / SECOND - ONSET) <= 20
    assert len(verdict.evidence) == METRICS - 1
    assert raised(memory, odd=odd(fleet, 4.0, metrics=2)) == []


@pytest.mark.parametrize("what", ["the same reading", "a short burst", "everybody"])
def test_what_proves_nothing_together(memory: Any, fleet: Make, what: str) -> None:
    """One reading under six names counts once; half a minute is too short; what half of the machines do is no fault."""
    if what == "the same reading":
        table = odd(fleet, 4.0, alike=True)
    elif what == "a short burst":
        table = odd(fleet, 4.4, until=ONSET + 30)
    else:
        moved = odd(fleet, 4.0)
        shift = np.where((np.asarray(moved["time"]) >= START + ONSET * SECOND), 4.0, 0.0)
        half = np.isin(np.asarray(moved["machine"]), ["m0", "m1", "m2"]) * shift
        columns = {f"load_{n}": np.asarray(moved[f"load_{n}"]) + half for n in range(METRICS)}
        table = pa.table({"time": moved["time"], "machine": moved["machine"], **columns})
    assert raised(memory, odd=table) == []


def test_a_worn_gpu_is_named_that_no_single_reading_names(memory: Any) -> None:
    """A simulated GPU that is a little slower, hotter and weaker is named; each of its readings alone says nothing."""
    tables, labels = simulate(machines=6, minutes=8, fault="worn_gpu", seed=7, gpus=2)
    fault, gpus = labels["faults"][0], pa.table(tables["gpu"])
    made = {name: pa.table(columns) for name, columns in tables.items()}
    assert [(v.machine, v.device) for v in raised(memory, **made)] == [(fault["machine"], fault["device"])]
    rest = {name: table for name, table in made.items() if name != "gpu"}
    assert raised(memory, **rest) == []
    for metric in BENT:
        assert raised(memory, gpu=gpus.select(["time", "machine", "gpu", metric])) == []


def test_who_leaves_takes_nothing_along(memory: Any, fleet: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a machine that went is forgotten, amid growing evidence, the one that moves a little is named alone."""
    monkeypatch.setattr("detector.engine.eviction.GONE_NS", 100 * SECOND)
    monkeypatch.setattr("detector.engine.pipeline.SWEEP_NS", 40 * SECOND)
    table = odd(fleet, 4.0)
    gone = np.isin(np.asarray(table["machine"]), ["m0"]) & (np.asarray(table["time"]) > START + 100 * SECOND)
    said = [verdict for verdict in raised(memory, odd=table.filter(pa.array(~gone))) if verdict.kind == "peer"]
    assert [verdict.machine for verdict in said] == ["m3"]


def test_a_machine_that_falls_silent_stays_named_without_breaking_anything(memory: Any, fleet: Make) -> None:
    """Readings that end after the verdict leave it standing as a number that can be said."""
    table = odd(fleet, 4.0)
    late = np.isin(np.asarray(table["machine"]), ["m3"]) & (np.asarray(table["time"]) > START + (ONSET + 120) * SECOND)
    said = raised(memory, odd=table.filter(pa.array(~late)))
    assert [(verdict.machine, verdict.kind) for verdict in said] == [("m3", "peer"), ("m3", "evidence")]
    assert all(np.isfinite(verdict.score) for verdict in said)
