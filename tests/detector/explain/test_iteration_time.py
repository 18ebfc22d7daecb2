"""Irregular iterations: what lasts, what was, what comes and goes; and nothing where all is regular."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.explain.iteration_time import irregular, iterations, read_irregular
from detector.timeseries.rows import rows_of
from detector.topology.parallelism import Task

SECOND, START = 10**9, 1_700_000_000 * 10**9
Series = tuple[np.ndarray, np.ndarray]


def readings(
    levels: list[tuple[float, float]], long: dict[int, float] | None = None, noise: float = 0.01, seed: int = 3
) -> Series:
    """What is read each second of iterations that take so long until so many seconds; some are so many times longer."""
    chance = np.random.default_rng(seed)
    ends, took = [0.0], [levels[0][0]]
    for seconds, until in levels:
        while ends[-1] < until:
            took.append(seconds * (1 + noise * chance.normal()) * (long or {}).get(len(took), 1.0))
            ends.append(ends[-1] + took[-1])
    grid = np.arange(1, int(levels[-1][1]))
    return START + grid * SECOND, np.array(took)[np.searchsorted(ends, grid, side="right") - 1]


@pytest.mark.parametrize(("seconds", "slower"), [(1.9, 2.6), (31.0, 41.0), (0.21, 0.33), (2.7, 2.9)])
def test_what_lasts_has_an_onset(seconds: float, slower: float) -> None:
    """A level that stays higher is said with its begin, to about an iteration, and both levels; 7 % is enough."""
    (found,) = irregular(*readings([(seconds, 2400), (slower, 3600)]))
    assert (found.kind, found.until) == ("slow", None)
    assert abs(found.since - START - 2400 * SECOND) < (2 * slower + 2) * SECOND
    assert (found.before, found.after) == (pytest.approx(seconds, rel=0.01), pytest.approx(slower, rel=0.01))


def test_steps_upward_are_one_slowness() -> None:
    """A task that grows slower twice is slower since the first time, beside what it was before."""
    (found,) = irregular(*readings([(1.9, 1100), (2.2, 2300), (2.6, 3600)]))
    assert found.kind == "slow"
    assert abs(found.since - START - 1100 * SECOND) < 6 * SECOND
    assert (found.before, found.after) == (pytest.approx(1.9, rel=0.01), pytest.approx(2.6, rel=0.01))


def test_a_minute_of_slowness_is_over() -> None:
    """A minute of slow iterations has an end in the report; iterations that grow quicker are no irregularity."""
    (found,) = irregular(*readings([(2.4, 800), (1.9, 1300), (2.6, 1370), (1.9, 3600)]))
    assert found.kind == "was slow"
    assert found.until is not None
    assert abs(found.since - START - 1300 * SECOND) < 6 * SECOND
    assert abs(found.until - START - 1370 * SECOND) < 6 * SECOND


def test_spikes_and_fluctuation() -> None:
    """One long iteration is a spike; a dozen are a fluctuation, and last while they go on coming."""
    (spike,) = irregular(*readings([(1.9, 3600)], {500: 3.0}))
    assert (spike.kind, spike.times) == ("spike", 1)
    assert spike.after == pytest.approx(5.7, rel=0.05)
    (still,) = irregular(*readings([(1.9, 3600)], dict.fromkeys(range(200, 1850, 150), 1.5)))
    assert (still.kind, still.times, still.until) == ("fluctuation", 11, None)
    (over,) = irregular(*readings([(1.9, 3600)], dict.fromkeys(range(200, 600, 100), 1.5)))
    assert (over.kind, over.times) == ("fluctuation", 4)
    assert over.until is not None


def test_regular_iterations_are_said_nothing_of() -> None:
    """Large noise gives no irregularity in forty of forty hours; nor do few readings, or a step of 2 %."""
    found = [irregular(*readings([(1.9, 3600)], noise=0.02 * (1 + seed % 7), seed=seed)) for seed in range(40)]
    assert found == [()] * 40
    assert irregular(*readings([(1.9, 13)])) == ()
    assert irregular(*readings([(1.9, 1800), (1.94, 3600)])) == ()


@given(st.lists(st.floats(0.01, 1e4), max_size=80))
def test_any_readings_are_survived(seconds: list[float]) -> None:
    """Any readings give irregularities that begin before they end and take longer than usual."""
    time = START + np.arange(len(seconds)) * SECOND
    for found in irregular(time, np.array(seconds)):
        assert found.since < (found.until or START + len(seconds) * SECOND)
        assert found.after > found.before > 0


def table(series: Series, pids: dict[str, int], factor: float = 1.0) -> pa.Table:
    """Rows of one communicator of each of these processes, which differ by a little."""
    parts = [
        pa.table(
            {
                "time": series[0],
                "machine": [machine] * len(series[0]),
                "gpu": ["0"] * len(series[0]),
                "slot": ["1"] * len(series[0]),
                "pid": [pid] * len(series[0]),
                "iteration_seconds": series[1] * factor * (1 + place / 1000),
            }
        )
        for place, (machine, pid) in enumerate(pids.items())
    ]
    return pa.concat_tables(parts)


def test_each_task_has_its_own(memory: Any) -> None:
    """The report names only the slower one of two tasks with different processes on the same machines."""
    steady, slower = readings([(1.9, 900)]), readings([(1.3, 500), (1.7, 900)])
    first, second = {"m1": 71, "m2": 72, "m3": 73}, {"m1": 81, "m2": 82}
    store = memory({"nccl": pa.concat_tables([table(steady, first), table(slower, second)])})
    tasks = [Task("c", len(who), tuple(who.items()), (), 1.0) for who in (first, second)]
    source = type("Source", (), {"read": lambda self, name, after, until, columns: store.read(name, after, until)})()
    quiet, (found,) = read_irregular(source, tasks, START, START + 900 * SECOND)
    assert quiet == ()
    assert (found.kind, found.before, found.after) == (
        "slow",
        pytest.approx(1.3, rel=0.01),
        pytest.approx(1.7, rel=0.01),
    )


def test_one_process_that_reads_otherwise_is_outvoted() -> None:
    """A task's iteration is the median of its processes; unknown ones do not count."""
    series = readings([(1.9, 60)])
    rows = table(series, {"m1": 71, "m2": 72, "m3": 73})
    odd = pa.concat_tables([rows, table(series, {"m4": 74}, factor=9.0)])
    task = Task("c", 4, (("m1", 71), ("m2", 72), ("m3", 73), ("m4", 74)), (), 1.9)
    time, seconds = iterations(rows_of("nccl", odd), task, SECOND)
    assert (np.diff(time) == SECOND).all()
    assert seconds == pytest.approx(series[1] * 1.001)


@settings(max_examples=25, deadline=None)
@given(st.integers(30, 170), st.floats(1.15, 2.5), st.floats(0.05, 20.0))
def test_a_change_point_is_found_wherever_it_is_and_in_any_unit(place: int, ratio: float, scale: float) -> None:
    """One step between two levels is one onset, within some iterations of where it is; scaling readings scales them."""
    noise = np.random.default_rng(35).normal(0, 0.004, 200)
    seconds = scale * (1.0 + noise) * np.where(np.arange(200) < place, 1.0, ratio)
    time = 1_700_000_000 * 10**9 + (np.cumsum(seconds) * 10**9).astype(np.int64)
    (found,) = [one for one in irregular(time, seconds) if one.kind == "slow"]
    assert abs(int(np.searchsorted(time, found.since)) - place) <= 3
    assert (found.before, found.after) == pytest.approx((scale, scale * ratio), rel=0.02)
