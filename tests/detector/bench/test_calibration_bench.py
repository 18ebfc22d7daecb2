"""Whether what was learned from some healthy recordings keeps its budget in others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from detector.calibration import Budget
from detector.config import Config
from detector.evaluation.calibrate import calibrate, follow
from emulator.simulation.simulate import simulate
from tests.detector.conftest import Memory

pytestmark = pytest.mark.bench
SEEDS = (101, 102, 103)
RATES = (0.1, 0.03)
"""Alarms a machine-hour: so many that what is left out can show them."""


def test_the_budget_holds_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold learned from one recording is crossed in the others about as often as was allowed, at most."""
    studied = []
    for seed in SEEDS:
        tables, _ = simulate(32, 30, 1.0, "none", seed, gpus=4)
        store = Memory({name: pa.table(columns) for name, columns in tables.items()})
        studied.append(follow(store, Config(), f"seed {seed}", lambda _: None))
    hours = sum(max(mine.hours for mine in one.values()) for one in studied)
    for rate in RATES:
        over = 0
        for one in studied:
            learned = calibrate([one], Budget(rate, 1, 1), Config())
            bars = {what: tail.caution for what, tail in learned.tails.items()}
            others = [other for other in studied if other is not one]
            over += sum(int((mine.found() > bars[what]).sum()) for other in others for what, mine in other.items())
        allowed = rate * hours * (len(studied) - 1)
        with capsys.disabled():
            print(f"\nbudget of {rate} a machine-hour: {over} of {allowed:.1f} allowed in the recordings left out")
        assert over <= allowed + 3 * allowed**0.5
