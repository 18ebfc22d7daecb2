"""Pretend fleets: repeatable, well-formed, and faulty where the labels say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulator.simulation.disturbances import disturb
from emulator.simulation.fleet_model import START, Bend, Fleet, Place
from emulator.simulation.harmless import HARMLESS
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


@pytest.mark.parametrize(("seed", "step_s"), [(3, 1.0), (7, 1.0), (11, 0.5), (13, 4.0)])
def test_no_reading_shows_a_fault_before_its_label_begins(seed: int, step_s: float) -> None:
    """A clock that is behind dates what it reads earlier: a label begins by then, and less than two steps before."""
    plain, _ = simulate(4, 6, fault="none", seed=seed, gpus=2, step_seconds=step_s)
    struck, labels = simulate(4, 6, fault="power_cap", seed=seed, gpus=2, step_seconds=step_s)
    (label,) = labels["faults"]
    before, after = (tables["gpu"] for tables in (plain, struck))
    assert np.array_equal(before["time"], after["time"])
    shown = after["time"][before["power_watts"] != after["power_watts"]].min()
    assert label["start"] <= shown < label["start"] + 2 * step_s * 1e9


def one_fleet(kinds: tuple[str, ...], seed: int) -> tuple[Fleet, list[dict[str, Any]]]:
    """A fleet of 19 machines in which things of these kinds go on, and their labels."""
    seconds = np.arange(0, 3000, 2.0)
    load, flat = np.ones((len(seconds), 1)), np.ones(len(seconds))
    rng = np.random.default_rng(seed)
    zeros = np.zeros(len(seconds), bool)
    fleet = Fleet(19, 4, 2.0, seed, rng, seconds, np.zeros(19, np.int64), load, flat, zeros)
    return fleet, disturb(fleet, "many", kinds)


@pytest.mark.parametrize("kind", HARMLESS)
def test_every_harmless_thing_changes_the_fleet_and_stands_in_the_labels(kind: str) -> None:
    """Each row of the table leaves its mark, lies within the recording, and is listed with machine and time."""
    bare, _ = one_fleet((), 3)
    marked = []
    for seed in range(3, 40):
        fleet, labels = one_fleet((kind,), seed)
        marked += labels
        if labels:
            parts = ("bends", "slows", "gone", "events", "drags")
            changed = any(getattr(fleet, part) for part in parts) or not np.array_equal(fleet.load, bare.load)
            assert changed
    assert marked
    assert {label["kind"] for label in marked} == {kind}
    last = START + 3000 * 10**9
    assert all(START <= label["start"] < label["end"] <= last for label in marked)
    whole = HARMLESS[kind].scope in ("task", "rail")
    assert all((label["machine"] is None) == whole for label in marked)


def test_labels_list_what_is_harmless_and_faults_stay_the_same() -> None:
    """With disturbances a recording has the same faults as without, and labels.json names what else went on."""
    bare, without = simulate(16, 8, 2.0, "slow_host", 23, 2)
    some, with_some = simulate(16, 8, 2.0, "slow_host", 23, 2, disturbances="some")
    _, with_many = simulate(16, 8, 2.0, "slow_host", 23, 2, disturbances="many")
    assert "disturbances" not in without
    assert without["faults"] == with_some["faults"] == with_many["faults"]
    assert 0 < len(with_some["disturbances"]) < len(with_many["disturbances"])
    assert not np.array_equal(bare["gpu"]["temperature_celsius"], some["gpu"]["temperature_celsius"])


def test_an_absorbed_flap_is_counted_once() -> None:
    """Whatever the step, the counter of falls grows by one for each flap: two would be a fault."""
    fleet, labels = one_fleet(("absorbed_flap",), 5)
    falls = sum(bend.by * bend.place.on.sum() * fleet.step_s for bend in fleet.bends["rdma.link_downed_total"])
    assert falls == pytest.approx(len(labels))


def test_a_sensor_that_sticks_repeats_its_last_value() -> None:
    """While it sticks, the reading of that device does not move; its neighbours' do."""
    out = np.random.default_rng(7).normal(300, 9, (30, 3, 2))
    on = np.zeros(30, bool)
    on[11:19] = True
    before = out.copy()
    Bend(Place(on, 1, 0), "hold", 0.0).apply(out, 0)
    assert (out[11:19, 1, 0] == before[11, 1, 0]).all()
    assert np.array_equal(out[~on], before[~on])
    assert np.array_equal(out[:, [0, 2]], before[:, [0, 2]])


@pytest.mark.parametrize(
    "wrong",
    [{"fault": "gremlin"}, {"machines": 0}, {"step_seconds": -1.0}, {"minutes": 0.01}, {"disturbances": "lots"}],
)
def test_wrong_arguments_are_named(wrong: dict[str, object]) -> None:
    """What cannot be simulated is said in one line."""
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        simulate(**{"machines": 4, "minutes": 3, **wrong})  # type: ignore[arg-type]
