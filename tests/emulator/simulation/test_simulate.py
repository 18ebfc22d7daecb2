"""Pretend fleets: repeatable, well-formed, and faulty where the labels say."""

from __future__ import annotations

import numpy as np
import pytest

from emulator.simulation.simulate import FAULTS, WEAK, simulate
from store.schema.catalogue import METRICS, TABLES


def test_equal_arguments_give_equal_recordings() -> None:
    """A recording depends on nothing but its arguments."""
    one, other, third = (simulate(5, 3, fault="random", seed=seed, gpus=2) for seed in (4, 4, 9))
    assert one[1] == other[1] != third[1]
    assert all(np.array_equal(one[0][t][c], other[0][t][c]) for t in one[0] for c in one[0][t])


@pytest.mark.parametrize("fault", [*FAULTS, *WEAK, "none"])
def test_tables_keep_to_the_catalogue(fault: str) -> None:
    """Every column is known, counters grow, ratios stay between 0 and 1, and the fault lies inside the recording."""
    tables, labels = simulate(4, 4, fault=fault, seed=3, gpus=2)
    for name, columns in tables.items():
        assert {c for c in columns if c not in TABLES[name].key_columns} <= {
            m.name for m in METRICS.values() if m.table == name
        }
        assert len({len(column) for column in columns.values()}) == 1
        assert (np.diff(columns["time"]) >= 0).all()
        for column, values in columns.items():
            if column.endswith("_ratio"):
                assert np.nanmin(values) >= 0
                assert np.nanmax(values) <= 1
            if column.endswith("_total") and not np.isnan(values).any():
                keys = np.stack([columns[key] for key in TABLES[name].keys] or [columns["machine"]])
                first = (columns["machine"] == "m0001") & (keys == keys[:, :1]).all(0)
                assert (np.diff(values[first]) < 0).sum() <= 1  # a restart
    assert len(labels["faults"]) == (fault != "none")
    for labelled in labels["faults"]:
        time = tables["host"]["time"]
        assert time[0] < labelled["start"] < labelled["end"] < time[-1]
        assert labelled["kind"] == fault


@pytest.mark.parametrize("wrong", [{"fault": "gremlin"}, {"machines": 0}, {"step_seconds": -1.0}, {"minutes": 0.01}])
def test_wrong_arguments_are_named(wrong: dict[str, object]) -> None:
    """What cannot be simulated is said in one line."""
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        simulate(**{"machines": 4, "minutes": 3, **wrong})  # type: ignore[arg-type]
