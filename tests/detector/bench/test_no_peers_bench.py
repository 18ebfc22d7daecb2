"""Machines that are no peers, in groups of several sizes: what is said of them."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import Detector, judge
from store.schema.time import SECOND

pytestmark = pytest.mark.bench
FILE = os.environ.get("PEERWATCH_SMD", "")
"""The data set's smd.npz."""
TRIALS = int(os.environ.get("PEERWATCH_TRIALS", "4"))
DAY, STEPS, BEGIN = 1440, 4320, 1_600_000_000
"""Samples of a minute in a day, and in a trial; seconds."""


def _group(size: int, same_hour: bool, rng: np.random.Generator) -> pa.Table:
    """Stretches of the machines that there are, each member's from another time; of the same hour of day or not."""
    found = np.load(FILE)
    names = [name for name in found.files if name.endswith("/test")]
    columns: dict[str, list[Any]] = {"time": [], "machine": []}
    readings = []
    for member in range(size):
        series = found[names[member % len(names)]]
        begin = int(rng.integers(len(series) - STEPS))
        begin -= begin % DAY if same_hour else 0
        readings.append(series[begin : begin + STEPS])
        columns["time"].append((BEGIN + 60 * np.arange(STEPS, dtype=np.int64)) * SECOND)
        columns["machine"].append(np.full(STEPS, f"m{member:02d}"))
    rows = {name: np.concatenate(parts) for name, parts in columns.items()}
    rows |= {f"metric_{at:02d}": metric for at, metric in enumerate(np.concatenate(readings).astype(np.float64).T)}
    return pa.table(rows)


@pytest.mark.skipif(not FILE, reason="PEERWATCH_SMD names no file")
@pytest.mark.parametrize("size", [3, 4, 5, 7, 12, 28])
def test_groups_of_no_peers(memory: Any, size: int) -> None:
    """The bench puts machines that have nothing to do with each other into one group, and prints what is said."""
    rng = np.random.default_rng(29 + size)
    said: Counter[str] = Counter()
    for trial in range(TRIALS):
        verdicts = judge(memory({"server": _group(size, trial % 2 == 1, rng)}), Detector())
        said.update(one.metric for one in verdicts if one.level != "ok")
    hours = TRIALS * size * STEPS / 60
    print(f"\n{size} machines, {hours:.0f} machine-hours: {said.total()} verdicts {dict(said) or ''}")
