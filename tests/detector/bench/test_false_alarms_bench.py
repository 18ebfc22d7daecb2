"""False alarms of healthy fleets in thousands of simulated machine-hours, with all that occurs in health."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import Detector, judge
from detector.evaluation.labels import Labels
from detector.evaluation.outcome import assess
from emulator.simulation.simulate import Plan, pieces

pytestmark = pytest.mark.bench
SEED = int(os.environ.get("PEERWATCH_SEED", "40"))
FLEETS = ((5.0, 1000, 10, 30.0), (5.0, 16, 4, 60.0), (2.0, 96, 1, 60.0), (1.0, 64, 1, 60.0))
"""Seconds a step, machines of two GPUs each, how many such fleets, and for how many minutes."""


def _alarms(memory: Any, plan: Plan) -> tuple[float, Counter[str]]:
    """Healthy machine-hours of a fleet, and the metrics of its false alarms."""
    labels, parts = pieces(plan)
    tables: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, columns in part.items():
            tables.setdefault(name, []).append(pa.table(columns))
    store = memory({name: pa.concat_tables(found) for name, found in tables.items()})
    verdicts = list(judge(store, Detector()))
    found = assess("healthy", "peerwatch", Labels(labels["machines"], ()), verdicts, store.span(0))
    for alarm in found.alarms:
        print(f"  {plan.machines} machines, seed {plan.seed}: {alarm.message}")
    return found.healthy_hours, Counter(alarm.metric for alarm in found.alarms)


def test_false_alarms(memory: Any) -> None:
    """The bench prints the false alarms of healthy fleets of 16 to 1,000 machines in a thousand machine-hours."""
    dice = np.random.default_rng(SEED)
    hours, begun = 0.0, time.process_time()
    alarms: Counter[str] = Counter()
    print()
    for step_s, machines, count, minutes in FLEETS:
        for _ in range(count):
            length, found = _alarms(memory, Plan(machines, 2, minutes, step_s, "none", int(dice.integers(2**31))))
            hours, alarms = hours + length, alarms + found
            print(f"{machines} machines, {minutes:g} minutes in steps of {step_s:g} s: {found.total()} false alarms")
    print(
        f"{hours:,.0f} machine-hours, {alarms.total()} false alarms, {1000 * alarms.total() / hours:.2f} per 1,000 "
        f"machine-hours; {(time.process_time() - begun) / 60:.1f} minutes of CPU; {dict(alarms)}"
    )
