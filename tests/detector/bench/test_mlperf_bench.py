"""Faults planted in the node power of a real training run on 64 nodes: how often they are found, and how soon."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from detector.engine.pipeline import Detector, judge
from store.schema.time import SECOND
from store.transfer.public_datasets import read

pytestmark = pytest.mark.bench
FILE = os.environ.get("PEERWATCH_MLPERF", "")
"""The data set's node_power.parquet."""
TRIALS = int(os.environ.get("PEERWATCH_TRIALS", "20"))
LASTS_S = 1200
Floats = NDArray[np.float64]
Plant = Callable[[NDArray[np.int64], Floats], Floats]
"""Times (s since its start) and readings of one node, and the readings with the fault from time 0 on."""


def _drop(time: NDArray[np.int64], watts: Floats) -> Floats:
    return np.where(time >= 0, 0.95 * watts, watts)


def _lag(time: NDArray[np.int64], watts: Floats) -> Floats:
    return np.where(time >= 0, np.interp(time - 20, time, watts), watts)


def _freeze(time: NDArray[np.int64], watts: Floats) -> Floats:
    return np.where(time >= 0, watts[np.searchsorted(time, 0)], watts)


def _run() -> dict[str, Any]:
    """The longest run, its supplies' input side."""
    tables = {name: tables["power"] for name, tables, _ in read("mlperf_power", Path(FILE))}
    return max((table for name, table in tables.items() if name.endswith("-ac")), key=lambda one: len(one["time"]))


def _trial(memory: Any, run: dict[str, Any], plant: Plant | None, rng: np.random.Generator) -> tuple[str, float, int]:
    """What is found of one node ("verdict", "note" or "nothing"), after how many seconds, and other verdicts."""
    time, machine, watts = np.asarray(run["time"]), np.asarray(run["machine"]), run["node_power_watts"].copy()
    node = str(rng.choice(np.unique(machine)))
    start = int(time.min() + rng.uniform(0.2, 0.6) * np.ptp(time))
    if plant:
        mine = np.flatnonzero(machine == node)
        mine = mine[np.argsort(time[mine])]
        mine = mine[time[mine] < start + LASTS_S * SECOND]
        watts[mine] = plant((time[mine] - start) // SECOND, watts[mine])
    detector = Detector()
    table = pa.table({"time": time, "machine": machine, "node_power_watts": watts})
    verdicts = [one for one in judge(memory({"power": table}), detector) if one.level != "ok"]
    right = [one for one in verdicts if one.machine == node and plant and start <= one.time]
    notes = [one for one in detector.state.incidents.take_notes() if one.machine == node and start <= one.time]
    found = "verdict" if right else "note" if notes and plant else "nothing"
    first = min((one.time for one in right or notes), default=start)
    return found, (first - start) / SECOND, len(verdicts) - len(right)


@pytest.mark.skipif(not FILE, reason="PEERWATCH_MLPERF names no file")
@pytest.mark.parametrize("plant", [_drop, _lag, _freeze, None], ids=["drop of 5 %", "lag of 20 s", "freeze", "healthy"])
def test_faults_in_mlperf_power(memory: Any, plant: Plant | None, request: pytest.FixtureRequest) -> None:
    """The bench plants a fault in a random node at a random time, again and again, and prints what is found."""
    run, rng = _run(), np.random.default_rng(17)
    trials = [_trial(memory, run, plant, rng) for _ in range(TRIALS if plant else 1)]
    found = [found for found, _, _ in trials]
    delays = [delay for found, delay, _ in trials if found != "nothing"]
    print(
        f"\n{request.node.callspec.id}: {found.count('verdict')} of {len(trials)} named, "
        f"{found.count('note')} more noted, after {np.median(delays) if delays else float('nan'):.0f} s (median); "
        f"{sum(others for _, _, others in trials)} verdicts on other nodes"
    )
