"""Sudden: many readings of one machine that change at once are found where readings are minutes apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import replay
from detector.model.verdict import Verdict

MACHINES, METRICS, STEP_S, DAY = 11, 7, 300, 288
SECOND, START = 10**9, 1_700_000_000 * 10**9


def servers(days: float, seed: int = 41) -> np.ndarray:
    """[metric, step, machine]: a load that goes with the day, and machines that are away from it for hours."""
    steps = round(days * DAY)
    rng = np.random.default_rng(seed)
    day = 60 + 25 * np.sin(2 * np.pi * np.arange(steps) / DAY)[:, None]
    wander = rng.normal(0, 1, (METRICS, steps // 36 + 2, MACHINES))
    at = np.arange(steps) / 36
    low, part = at.astype(int), (at % 1)[:, None]
    slow = wander[:, low] * (1 - part) + wander[:, low + 1] * part
    noise = rng.normal(0, 0.4, (METRICS, steps, MACHINES))
    return day + 5 * slow + noise


def said(memory: Any, values: np.ndarray) -> list[Verdict]:
    """The verdicts on these readings."""
    _, steps, machines = values.shape
    time = np.repeat(START + np.arange(steps) * STEP_S * SECOND, machines)
    names = np.tile([f"m{number}" for number in range(machines)], steps)
    columns = {f"reading_{at}": metric.reshape(-1) for at, metric in enumerate(values)}
    return list(replay(memory({"server": pa.table({"time": time, "machine": names, **columns})})))


def blamed(verdicts: list[Verdict]) -> list[str]:
    """The machines that are named, in order."""
    return [one.machine for one in verdicts if one.level != "ok"]


def test_a_machine_that_falls_off_at_once_is_named(memory: Any) -> None:
    """A fall that is no larger than what machines differ by over hours is named within five samples, and cleared."""
    values, onset = servers(3.2), 2 * DAY + 71
    values[:5, onset : onset + 14, 4] -= 13
    verdicts = said(memory, values)
    assert blamed(verdicts) == ["m4"]
    assert 0 <= verdicts[0].time - (START + onset * STEP_S * SECOND) <= 5 * STEP_S * SECOND
    assert "changed at once" in verdicts[0].message
    assert verdicts[-1].level == "ok"
    assert verdicts[-1].time <= START + (onset + 14 + 4) * STEP_S * SECOND


@pytest.mark.parametrize("what", ["nothing", "one reading", "every day", "most machines", "a moment"])
def test_no_machine_is_said_to_have_changed(memory: Any, what: str) -> None:
    """Neither one reading, nor a job of every day, nor what many machines do, nor a moment is a change of a machine."""
    values, onset = servers(3.2, seed=43), 2 * DAY + 67
    fall = 13
    if what == "one reading":
        values[2, onset : onset + 15, 6] -= fall
    elif what == "every day":
        for begin in range(onset % DAY, values.shape[1], DAY):
            values[:5, begin : begin + 16, 3] -= fall
    elif what == "most machines":
        values[:5, onset : onset + 17, 2:9] -= fall
    elif what == "a moment":
        values[:, onset, 8] -= 5 * fall
    assert [one.machine for one in said(memory, values) if "at once" in one.message] == []
