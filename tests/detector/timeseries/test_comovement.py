"""Two faults at once: suspects that do not move alike, many times a second, are no consequences of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import Detector, State, judge, replay
from detector.timeseries.comovement import apart
from tests.detector.conftest import SECOND, START, Memory

Make = Callable[..., pa.Table]


def closer(curves: dict[str, Any], begin: float, seconds: float = 20.0, hertz: float = 20.0) -> pa.Table:
    """Looks at some machines of one GPU each; a curve is a function of seconds by the machine's own clock."""
    at = begin + np.arange(0, seconds, 1 / hertz)
    parts = [
        pa.table(
            {
                "time": START + (at * SECOND).astype(np.int64),
                "machine": [machine] * len(at),
                "gpu": ["0"] * len(at),
                "power_watts": curve(at),
            }
        )
        for machine, curve in curves.items()
    ]
    return pa.concat_tables(parts)


def bursts(seed: int, clock: float = 0.0, size: float = 90.0) -> Any:
    """Power in bursts of a third of a second, by a clock that is off."""
    noise = np.convolve(np.random.default_rng(seed).normal(0, size, 9000), np.ones(7) / 2.6, "same")
    return lambda at: 600 + np.interp(at - clock, np.arange(9000) / 20, noise)


def pairs(curves: dict[str, Any], **words: Any) -> set[tuple[str, str]]:
    """Who is apart right after such looks."""
    store = Memory({"gpu_zoom": closer(curves, 100.0, **words)})
    return set(apart(store, START + 125 * SECOND))


def test_who_is_apart() -> None:
    """Machines with bursts of their own are apart, whatever the clocks; those that share bursts are not."""
    assert pairs({"a": bursts(1), "b": bursts(1, 0.5), "c": bursts(2)}) == {("a", "c"), ("b", "c")}


def test_a_common_rhythm_is_one_task() -> None:
    """Machines that follow the same iterations, each with its own share and lag, are not distinguished."""
    rhythm = {
        name: lambda at, late=late, size=size: 500 + size * np.sign(np.sin(2 * np.pi * (at - late) / 0.9) + 0.3)
        for name, late, size in (("a", 0.0, 120.0), ("b", 0.35, 80.0), ("c", 0.8, 150.0))
    }
    assert pairs(rhythm) == set()


def test_noise_and_short_looks_tell_nothing() -> None:
    """Series that hardly move, or overlap for less than four seconds, change nothing."""
    assert pairs({"a": bursts(1, size=4.0), "b": bursts(2, size=4.0)}) == set()
    assert pairs({"a": bursts(1), "b": bursts(2)}, seconds=3.5) == set()
    late = closer({"b": bursts(2)}, 118.0)
    store = Memory({"gpu_zoom": pa.concat_tables([closer({"a": bursts(1)}, 100.0), late])})
    assert apart(store, START + 140 * SECOND) == frozenset()
    assert apart(Memory({}), START) == frozenset()


@pytest.mark.parametrize(("second", "named"), [(bursts(2), {"m0", "m1"}), (bursts(1, 0.3), {"m0"}), (None, {"m0"})])
def test_a_second_fault_is_named(second: Any, named: set[str], fleet: Make) -> None:
    """A weaker suspect is taken for a consequence of the first, unless it was seen to move on its own."""

    def two(values: np.ndarray) -> None:
        values += 500
        values[200:, 0] += 420
        values[200:, 1] += 130

    tables = {"gpu": fleet("power_watts", machines=12, steps=420, bend=two)}
    if second is not None:
        tables["gpu_zoom"] = closer({"m0": bursts(1), "m1": second}, 235.0)
    assert {verdict.machine for verdict in replay(Memory(tables)) if verdict.level != "ok"} == named


def test_zoomed_readings_belong_to_what_is_open(fleet: Make) -> None:
    """The detector reads zooms while an incident is open, and its state has their result."""
    tables = {"gpu": fleet("power_watts", machines=6, steps=90)}
    detector = Detector(state=State())
    list(judge(Memory({**tables, "gpu_zoom": closer({"a": bursts(1), "b": bursts(2)}, 10.0)}), detector))
    assert detector.state.incidents.independent == frozenset()
