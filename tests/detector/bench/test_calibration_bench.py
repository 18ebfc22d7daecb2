"""Whether what was learned from some healthy recordings keeps its budget in others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from detector.calibration import Budget, Stream
from detector.config import Config
from detector.evaluation.calibrate import calibrate, follow
from detector.thresholds.history import History
from emulator.simulation.simulate import simulate
from tests.detector.conftest import Memory

pytestmark = pytest.mark.bench
SEEDS = (101, 102, 103)
RATES = (0.1, 0.03)
"""Pages a machine-hour: so many that what is left out can show them."""
PAGES = 0.05
"""Pages of a crossing, as `detector.thresholds.fit` takes it to be before it has seen any."""


def test_the_budget_holds_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold learned from one recording is crossed in the others about as often as was allowed, at most."""
    studied = []
    for seed in SEEDS:
        tables, _ = simulate(32, 30, 1.0, "none", seed, gpus=4)
        store = Memory({name: pa.table(columns) for name, columns in tables.items()})
        studied.append(follow(store, Config(), f"seed {seed}", lambda _: None))
    hours = sum(max(float(table.hours.sum(0).max()) for table in one.tables.values()) for one in studied)
    for rate in RATES:
        over = 0
        for one in studied:
            learned = calibrate([one], Budget(rate, 1, 1), Config()).tables
            for other in (other for other in studied if other is not one):
                over += sum(crossings(history, learned.get(table, {})) for table, history in other.tables.items())
        allowed = rate * hours * (len(studied) - 1)
        with capsys.disabled():
            print(f"\n{rate} pages a machine-hour: {over} crossings elsewhere, so {PAGES * over:.1f} of {allowed:.1f}")
        assert PAGES * over <= allowed + 3 * allowed**0.5


def crossings(history: History, taught: dict[str, Stream]) -> int:
    """How many excursions of a table are above thresholds that another recording has taught."""
    limits = [taught[name].multiplier if name in taught else 1.0 for name in history.streams]
    return sum(int((history.of(at)[0] > limit).sum()) for at, limit in enumerate(limits))
