"""Corroboration: two independent tables raise an alarm sooner than either alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from detector.engine.pipeline import replay
from detector.model.verdict import Verdict

Make = Callable[..., pa.Table]
SECOND, START = 10**9, 1_700_000_000 * 10**9
ONSET, END = 150, 166


def calls(fleet: Make, odd: int) -> pa.Table:
    """All begin to wait for one rank, and for a short while only."""

    def bend(values: np.ndarray) -> None:
        values[:] = 0.1 + (values - 100) / 300
        values[ONSET:END] += 0.22
        values[ONSET:END, odd] = 0.1
        values[:] = np.cumsum(values, axis=0)

    table = fleet("host_blocked_seconds_total", steps=230, bend=bend, seed=3)
    return table.append_column("gpu", pa.array(["0"] * len(table)))


def driver(fleet: Make, odd: int) -> pa.Table:
    """One GPU is busier than the others, for as short a while."""

    def bend(values: np.ndarray) -> None:
        values[:] = 0.4 + (values - 100) / 300
        values[ONSET:END, odd] += 0.7

    table = fleet("tensor_active_ratio", steps=230, bend=bend, seed=5)
    return table.append_column("gpu", pa.array(["0"] * len(table)))


def raised(memory: Any, **tables: pa.Table) -> list[Verdict]:
    """The verdicts that incriminate."""
    return [verdict for verdict in replay(memory(tables)) if verdict.level != "ok"]


def test_two_tables_raise_an_alarm_that_neither_does_alone(memory: Any, fleet: Make) -> None:
    """What process and driver say of one GPU adds up; of two GPUs it does not, and each alone falls short."""
    assert raised(memory, nccl=calls(fleet, 4)) == []
    assert raised(memory, gpu=driver(fleet, 4)) == []
    assert raised(memory, nccl=calls(fleet, 4), gpu=driver(fleet, 1)) == []
    verdict, *others = raised(memory, nccl=calls(fleet, 4), gpu=driver(fleet, 4))
    assert others == []
    assert (verdict.machine, verdict.device) == ("m4", "gpu:0")
    assert "waiting for its communicators" in verdict.message
    assert (verdict.time - START) / SECOND <= END + 8
