"""Orders: what the operator has forgiven stays forgiven, and nothing is said of a machine that is worked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.engine.pipeline import replay
from detector.timeseries.rows import rows_of
from detector.topology.maintenance import OperatorState, in_maintenance, orders_in
from emulator.simulation.simulate import simulate

SECOND, START = 10**9, 1_700_000_000 * 10**9
Make = Callable[..., pa.Table]
Row = tuple[float, str, str, str]


def events(*rows: Row, device: str | None = None, until: float | None = None, reason: str = "") -> pa.Table:
    """Events at seconds from the start: time, machine, source, code. Critical unless the operator's."""
    mine = [source == "operator" for _, _, source, _ in rows]
    return pa.table(
        {
            "time": [START + int(at * SECOND) for at, *_ in rows],
            "machine": [machine for _, machine, *_ in rows],
            "source": [source for _, _, source, _ in rows],
            "code": [code for *_, code in rows],
            "device": pa.array([device if own else "gpu:3" for own in mine], pa.string()),
            "severity": ["info" if own else "crit" for own in mine],
            "message": [reason if own else "what it is" for own in mine],
            "until": pa.array([START + int(until * SECOND) if own and until else None for own in mine], pa.int64()),
        }
    )


def said(memory: Any, event: pa.Table, **tables: pa.Table) -> list[tuple[str, str, int]]:
    """Machine, level and second of each verdict."""
    found = replay(memory({"event": event, **tables}))
    return [(v.machine, v.level, (v.time - START) // SECOND) for v in found]


LOST = (40.5, "m3", "kernel_log", "xid:79")


def test_clear_forgets_once_and_for_all_that_was(memory: Any, fleet: Make) -> None:
    """The verdict is cleared at once with the reason, said once; the same fact again is a new verdict."""
    order = (60.5, "m3", "operator", "clear")
    host = fleet(steps=120)
    first, over = replay(memory({"host": host, "event": events(LOST, order, order, reason="card swapped")}))
    assert (over.machine, over.level, over.metric) == ("m3", "ok", "event.xid:79")
    assert over.message == "m3 GPU 3 was cleared by the operator: card swapped (event.xid:79)"
    assert first.time < over.time == START + 61 * SECOND
    again = (80.5, "m3", "kernel_log", "xid:79")
    assert said(memory, events(LOST, order, again), host=host) == [
        ("m3", "crit", 41),
        ("m3", "ok", 61),
        ("m3", "crit", 81),
    ]


def test_clear_of_one_device_leaves_the_others(memory: Any, fleet: Make) -> None:
    """An order about gpu:5 does not touch the verdicts on gpu:3, nor does one about another machine."""
    order = (60.5, "m3", "operator", "clear")
    other = (60.5, "m2", "operator", "clear")
    host = fleet(steps=90)
    assert said(memory, events(LOST, order, device="gpu:3"), host=host) == [("m3", "crit", 41), ("m3", "ok", 61)]
    assert said(memory, events(LOST, order, device="gpu:5"), host=host) == [("m3", "crit", 41)]
    assert said(memory, events(LOST, other), host=host) == [("m3", "crit", 41)]


@pytest.mark.parametrize(("column", "healthy"), [("ecc_uncorrected_total", 7.0), ("remap_failed", 0.0)])
def test_clear_forgives_counts_and_marks_as_they_are(memory: Any, fleet: Make, column: str, healthy: float) -> None:
    """Memory errors counted so far, and a remap that failed, are forgiven; one more is not."""

    def errors(values: np.ndarray) -> None:
        values[:] = healthy
        values[40:, 3] = healthy + 2
        values[100:, 3] = healthy + 3

    table = fleet(column, steps=130, bend=errors)
    gpu = table.append_column("gpu", pa.array(["3"] * len(table)))
    found = said(memory, events((60.5, "m3", "operator", "clear")), gpu=gpu)
    assert found == [("m3", "crit", 40), ("m3", "ok", 61), ("m3", "crit", 100)]


def test_what_is_still_wrong_after_clear_is_found_again(memory: Any, fleet: Make) -> None:
    """A soft verdict that was cleared begins without evidence and is raised again about a minute later."""

    def odd(values: np.ndarray) -> None:
        values[130:, 3] += 70

    found = said(memory, events((250.5, "m3", "operator", "clear")), odd=fleet(steps=420, bend=odd))
    assert [(machine, level) for machine, level, _ in found] == [("m3", "crit"), ("m3", "ok"), ("m3", "crit")]
    assert found[1][2] == 251
    assert found[2][2] > 300


def test_what_stands_still_is_forgotten_for_a_minute(memory: Any, fleet: Make) -> None:
    """A fault that goes on is not said again in the second in which it is closed, but a minute later."""

    def gone(values: np.ndarray) -> None:
        values[40:, 3] = np.nan

    verdicts = said(memory, events((250.5, "m3", "operator", "clear")), odd=fleet(steps=400, bend=gone))
    levels = [(level, at) for machine, level, at in verdicts if machine == "m3"]
    assert [level for level, _ in levels[-2:]] == ["ok", "crit"]
    assert levels[-1][1] - levels[-2][1] >= 60


def test_an_acknowledgement_leaves_the_incident_open(memory: Any, fleet: Make) -> None:
    """An acknowledgement ends nothing; verdicts from before it are acknowledged, later ones are not."""
    host = fleet(steps=90)
    order = (60.5, "m3", "operator", "ack")
    assert said(memory, events(LOST, order, reason="known"), host=host) == [("m3", "crit", 41)]
    orders = orders_in(rows_of("event", events(LOST, order, reason="known")), START + 70 * SECOND)
    known = orders.acknowledged("m3", "gpu:3", START + 41 * SECOND)
    assert known is not None
    assert known.reason == "known"
    assert orders.acknowledged("m3", "gpu:3", START + 61 * SECOND) is None
    assert orders.acknowledged("m2", "gpu:3", START + 41 * SECOND) is None


def test_maintenance_that_comes_again(memory: Any, fleet: Make) -> None:
    """The detector is silent in each window, not between them, nor after the last one."""
    times = {"begin": START + 100 * SECOND, "until": START + 120 * SECOND, "every": 100 * SECOND, "times": 2}
    order = events((10.5, "m3", "operator", "maintenance")).drop_columns("until")
    for name, value in times.items():
        order = order.append_column(name, pa.array([value], pa.int64()))
    facts = events(*((at + 0.5, "m3", "kernel_log", f"xid:{at}") for at in (110, 210, 310))).drop_columns("until")
    table = pa.concat_tables([order, facts], promote_options="default")
    assert said(memory, table, host=fleet(steps=340)) == [("m3", "crit", 311)]
    for at, idle in ((50, False), (105, True), (150, False), (205, True), (305, False)):
        assert (orders_in(rows_of("event", order), START + at * SECOND).idle == {"m3"}) == idle


def test_maintenance_is_silent_and_leaves_no_history(memory: Any, fleet: Make) -> None:
    """Facts, silence and soft deviations of a machine in maintenance raise no alarm then or later."""

    def worked_on(values: np.ndarray) -> None:
        values[150:, 3] += 70
        values[200:290, 3] = np.nan
        values[300:, 3] -= 70

    def orders(*rows: Row) -> pa.Table:
        return events((145.5, "m3", "operator", "maintenance"), *rows)

    odd = fleet(steps=480, bend=worked_on)
    during = (170.5, "m3", "kernel_log", "xid:79")
    assert said(memory, orders(during, (310.5, "m3", "operator", "maintenance_end")), odd=odd) == []
    assert {machine for machine, *_ in said(memory, events(during), odd=odd)} == {"m3"}


@pytest.mark.parametrize(
    ("metric", "level", "change", "earliest_s"), [("load", 100.0, 70.0, 55), ("power_watts", 640.0, -150.0, 25)]
)
def test_a_fault_that_outlasts_its_maintenance_is_named(
    memory: Any, fleet: Make, metric: str, level: float, change: float, earliest_s: int
) -> None:
    """A machine that comes back worse than it left, and unlike its peers, is named: that is no new norm."""

    def spoiled(values: np.ndarray) -> None:
        values += level - 100
        values[:, 3] += 9.0  # what is usual for it
        values[150:, 3] += change

    odd = fleet(metric, steps=480, bend=spoiled)
    tables = {"odd": odd} if metric == "load" else {"gpu": odd.append_column("gpu", pa.array(["3"] * len(odd)))}
    ends = 310
    orders = events((145.5, "m3", "operator", "maintenance"), (ends + 0.5, "m3", "operator", "maintenance_end"))
    (verdict,) = said(memory, orders, **tables)
    assert verdict[:2] == ("m3", "crit")
    assert ends + earliest_s < verdict[2] < ends + earliest_s + 30


@pytest.mark.parametrize("fault", ["slow_gpu", "pcie_downgrade"])
def test_a_recorded_fault_that_begins_in_maintenance(memory: Any, fault: str) -> None:
    """A replay names the machine that comes back with a fault, and not before it is back."""
    found, labels = simulate(machines=8, gpus=2, minutes=12, step_seconds=2.0, fault=fault, seed=5)
    (label,) = labels["faults"]
    begin, ends = label["start"] - 20 * SECOND, label["start"] + 90 * SECOND
    tables = {name: pa.table(columns) for name, columns in found.items()}
    order = events(((begin - START) / SECOND, label["machine"], "operator", "maintenance"))
    order = order.set_column(order.column_names.index("until"), "until", pa.array([ends], pa.int64()))
    whole = [order, *([tables["event"]] if "event" in tables else [])]
    tables["event"] = pa.concat_tables(whole, promote_options="permissive")
    named = [v for v in replay(memory(tables)) if v.level in ("warn", "crit")]
    assert {v.machine for v in named} == {label["machine"]}
    assert ends <= named[0].time < ends + 75 * SECOND


@pytest.mark.parametrize("after", [0.0, 60.0])
def test_a_repaired_machine_is_well(memory: Any, fleet: Make, after: float) -> None:
    """A machine that comes back as it was, or as its peers are, is not named, whatever it read meanwhile."""

    def repaired(values: np.ndarray) -> None:
        values[:150, 3] += 60.0
        values[150:300, 3] -= 45.0
        values[300:, 3] += after

    orders = events((145.5, "m3", "operator", "maintenance"), (310.5, "m3", "operator", "maintenance_end"))
    assert said(memory, orders, odd=fleet(steps=560, bend=repaired)) == []


def test_maintenance_closes_what_is_open_and_ends_by_itself(memory: Any, fleet: Make) -> None:
    """An open verdict is cleared when maintenance begins; when its time is over the machine is judged again."""
    order, again = (60.5, "m3", "operator", "maintenance"), (130.5, "m3", "kernel_log", "xid:48")
    table = events(LOST, order, (80.5, "m3", "kernel_log", "xid:48"), until=120.25, reason="new riser")
    verdicts = list(replay(memory({"host": fleet(steps=160), "event": table})))
    assert [v.level for v in verdicts] == ["crit", "ok"]
    assert verdicts[1].message == "m3 GPU 3 is in maintenance: new riser (event.xid:79)"
    later = pa.concat_tables([table, events(again)])
    assert said(memory, later, host=fleet(steps=160))[2:] == [("m3", "crit", 131)]


def test_a_machine_that_stays_away_after_maintenance_is_silent_from_its_end(memory: Any, fleet: Make) -> None:
    """The silence of a machine under work does not count, that after it does."""

    def off(values: np.ndarray) -> None:
        values[80:, 3] = np.nan

    table = events((70.5, "m3", "operator", "maintenance"), until=200.0)
    assert said(memory, table, odd=fleet(steps=400, bend=off)) == [("m3", "crit", 380)]


def test_peers_are_compared_without_the_machine_under_work(memory: Any, fleet: Make) -> None:
    """Peers are compared without the machine in maintenance."""

    def mixed(values: np.ndarray) -> None:
        values[140:, :3] += 70  # a third of the machines would be no minority

    table = events(*((100.5, f"m{n}", "operator", "maintenance") for n in range(2)))
    found = said(memory, table, odd=fleet(steps=300, machines=9, bend=mixed))
    assert {machine for machine, *_ in found} == {"m2"}


@given(st.lists(st.sampled_from(["maintenance", "maintenance_end"]), min_size=1, max_size=6), st.integers(0, 5))
def test_orders_read_twice_count_once(codes: list[str], again: int) -> None:
    """The last order decides, and reading the newest of them again changes nothing."""
    rows = [(10.0 * n, "m1", "operator", code) for n, code in enumerate(codes)]
    now = START + 1000 * SECOND
    whole, tail = rows_of("event", events(*rows)), rows_of("event", events(*rows[-1 - again :]))
    orders = OperatorState()
    for part in (whole, tail):
        orders.feed(part)
        orders.turn(now)
        assert (orders.idle == {"m1"}) == (codes[-1] == "maintenance")
    assert set(in_maintenance(orders_in(whole, now))) == set(orders.idle)
