"""Evidence: hard facts at once, endings for what they are, silence when the peers go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.pipeline import Detector, State, judge, replay
from detector.methods.evidence.events import EventState
from detector.methods.evidence.method import Evidence
from detector.model.verdict import Verdict
from detector.timeseries.rows import rows_of
from detector.topology.maintenance import OperatorState

SECOND, START = 10**9, 1_700_000_000 * 10**9
Make = Callable[..., pa.Table]


def events(*rows: tuple[float, str, str, str]) -> pa.Table:
    """Events at seconds from the start: time, machine, code, severity."""
    names = ("time", "machine", "code", "severity", "source", "device", "message")
    full = [
        (START + int(at * SECOND), m, code, level, "s", "gpu:1", f"what {code} means") for at, m, code, level in rows
    ]
    return pa.table(dict(zip(names, map(list, zip(*full, strict=True)), strict=True)))


def alone(memory: Any, **tables: pa.Table) -> list[Verdict]:
    """Verdicts of the method without the other methods, which would take most of the time."""
    return list(judge(memory(tables), Detector(state=State(methods=[Evidence(Config())]))))


def said(memory: Any, **tables: pa.Table) -> list[tuple[str, str | None, str, str]]:
    """Machine, device, metric and level of each verdict of the method."""
    return [(v.machine, v.device, v.metric, v.level) for v in alone(memory, **tables)]


def test_a_critical_event_is_a_verdict_at_once(memory: Any, fleet: Make) -> None:
    """A fatal event is a verdict within the step, an informative one is none, and saying it twice changes nothing."""
    table = events((50.2, "m3", "xid:79", "crit"), (60.1, "m3", "xid:79", "crit"), (70.3, "m1", "xid:13", "warn"))
    (verdict,) = replay(memory({"host": fleet(steps=100), "event": table}))
    assert (verdict.machine, verdict.device, verdict.metric) == ("m3", "gpu:1", "event.xid:79")
    assert verdict.message == "m3 GPU 1: what xid:79 means"
    assert verdict.time == START + 51 * SECOND


def test_a_link_that_is_up_again_is_cleared(memory: Any, fleet: Make) -> None:
    """The event that ends another clears its verdict."""
    table = events((40.5, "m2", "link_down", "crit"), (55.5, "m2", "link_up", "info"))
    levels = [level for *_, level in said(memory, host=fleet(steps=100), event=table)]
    assert levels == ["crit", "ok"]


def test_one_rank_that_leaves_is_named_and_a_task_that_ends_is_not(memory: Any, fleet: Make) -> None:
    """A rank that exits is named only when it leaves alone; those that follow it are consequences."""
    alone = events((40.5, "m4", "rank_exit", "crit"), (52.5, "m1", "rank_exit", "crit"))
    assert said(memory, host=fleet(steps=90), event=alone) == [("m4", "gpu:1", "event.rank_exit", "crit")]
    ended = events(*((40 + 0.4 * n, f"m{n}", "rank_exit", "crit") for n in range(6)))
    assert said(memory, host=fleet(steps=90), event=ended) == []


def test_silence_of_one_machine_is_said_and_of_all_is_not(memory: Any, fleet: Make) -> None:
    """A machine with peers that go on is silent after half a minute, critical after one; none is when all stop."""

    def lonely(values: np.ndarray) -> None:
        values[100:260, 2] = np.nan

    def together(values: np.ndarray) -> None:
        values[100:260, 1:] = np.nan

    who = ("m2", None, "event.silent")
    assert said(memory, host=fleet(steps=300, bend=lonely)) == [(*who, "warn"), (*who, "crit"), (*who, "ok")]
    assert said(memory, host=fleet(steps=300, bend=together)) == []


def test_after_an_outage_the_last_to_come_back_is_not_silent(memory: Any, fleet: Make) -> None:
    """Machines that were silent for minutes come back one by one; one that stays away is named later."""

    def outage(last: int) -> Callable[[np.ndarray], None]:
        def bend(values: np.ndarray) -> None:
            for machine in range(6):
                values[50 : 400 + 7 * machine, machine] = np.nan
            values[50:last, 5] = np.nan

        return bend

    assert said(memory, host=fleet(steps=700, bend=outage(435))) == []
    assert said(memory, host=fleet(steps=700, bend=outage(700))) == [("m5", None, "event.silent", "crit")]


def test_hard_evidence_makes_soft_deviations_consequences(memory: Any, fleet: Make) -> None:
    """After a fatal event the oddities of other machines in the task are not said."""

    def bend(values: np.ndarray) -> None:
        values[130:, 5] += 70

    soft = fleet(steps=300, bend=bend)
    assert [v.machine for v in replay(memory({"odd": soft}))] == ["m5"]
    hard = events((125.0, "m1", "xid:79", "crit"))
    assert [v.machine for v in replay(memory({"odd": soft, "event": hard}))] == ["m1"]


def test_a_gpu_that_vanishes_is_named(memory: Any, fleet: Make) -> None:
    """One GPU without rows, while its machine's others go on, is named; a GPU table that ends everywhere is not."""

    def falls_off(values: np.ndarray) -> None:
        values[90:, 4] = np.nan

    tables = []
    for gpu, bend in (("0", None), ("1", falls_off)):
        table = fleet("power_watts", steps=160, bend=bend)
        tables.append(table.append_column("gpu", pa.array([gpu] * len(table))))
    who = ("m4", "gpu:1", "event.silent")
    assert said(memory, gpu=pa.concat_tables(tables)) == [(*who, "warn"), (*who, "crit")]
    early = tables[0].slice(0, 300)
    assert said(memory, gpu=early, host=fleet(steps=160)) == []


def levels(memory: Any, **tables: pa.Table) -> list[str]:
    """The levels of all verdicts."""
    return [level for *_, level in said(memory, **tables)]


@pytest.mark.parametrize("code", ["xid:13", "xid:31", "xid:43", "xid:45", "xid:68", "xid:69"])
def test_faults_of_programs_blame_no_hardware(memory: Any, fleet: Make, code: str) -> None:
    """The Xids that user code causes name no machine, whatever severity their source gave them."""
    assert said(memory, host=fleet(steps=90), event=events((40.5, "m3", code, "crit"))) == []


def test_what_lasts_stands_and_what_passes_is_forgotten(memory: Any, fleet: Make) -> None:
    """A hardware Xid stands until somebody mends it; a process that was killed is forgotten after ten minutes."""
    host = fleet(steps=720)
    assert levels(memory, host=host, event=events((20.5, "m3", "xid:79", "crit"))) == ["crit"]
    assert levels(memory, host=host, event=events((20.5, "m3", "check:dcgm", "crit"))) == ["crit"]
    assert levels(memory, host=host, event=events((20.5, "m3", "oom_kill", "crit"))) == ["crit", "ok"]


def test_a_restart_of_the_machine_forgives_what_it_mends(memory: Any, fleet: Make) -> None:
    """When the kernel's counters restart, the events of before are over."""

    def boots(values: np.ndarray) -> None:
        values[:] = 1e6 + 1e4 * np.arange(len(values))[:, None]
        values[80:, 3] -= 1.5e6

    host = fleet("context_switches_total", steps=140, bend=boots)
    found = said(memory, host=host, event=events((40.5, "m3", "xid:95", "crit"), (43.5, "m1", "mce", "crit")))
    assert [(machine, level) for machine, _, _, level in found] == [("m3", "crit"), ("m1", "crit"), ("m3", "ok")]


@pytest.mark.parametrize("code", ["gpu_lost", "nvml_stalled"])
def test_a_gpu_that_is_read_again_is_neither_lost_nor_stalled(memory: Any, fleet: Make, code: str) -> None:
    """Readings of a minute refute it where the event that ends it was lost; an Xid they do not refute."""

    def away(values: np.ndarray) -> None:
        values[40:70, 4] = np.nan

    table = fleet("power_watts", steps=200, bend=away)
    gpu = table.append_column("gpu", pa.array(["1"] * len(table)))
    assert levels(memory, gpu=gpu, event=events((40.5, "m4", code, "crit"))) == ["crit", "ok"]
    assert levels(memory, gpu=gpu, event=events((40.5, "m4", "xid:79", "crit"))) == ["crit"]


def test_nvml_that_stays_stalled_stays_said(memory: Any, fleet: Make) -> None:
    """What has an end stands until it comes, however long that takes."""
    table = events((30.5, "m2", "nvml_stalled", "crit"), (700.5, "m2", "nvml_resumed", "info"))
    first, last = alone(memory, host=fleet(steps=720), event=table)
    assert (first.level, last.level, last.time) == ("crit", "ok", START + 701 * SECOND)


def test_a_link_that_its_column_tells_of_is_left_to_the_column(memory: Any, fleet: Make) -> None:
    """An event alone is reported at once; where the port is read, a moment is tolerated and longer is not."""

    def away(last: int) -> Callable[[np.ndarray], None]:
        def bend(values: np.ndarray) -> None:
            values[:] = 1
            values[40:last, 5] = 0

        return bend

    def port(last: int) -> pa.Table:
        table = fleet("link_up", steps=90, bend=away(last))
        return table.append_column("port", pa.array(["mlx5_1/1"] * len(table)))

    loss = (
        events((40.0, "m5", "link_down", "crit")).drop(["device"]).append_column("device", pa.array(["rdma:mlx5_1/1"]))
    )
    assert said(memory, host=fleet(steps=90), event=loss) == [("m5", "rdma:mlx5_1/1", "event.link_down", "crit")]
    assert said(memory, rdma=port(43), event=loss) == []
    assert said(memory, rdma=port(90), event=loss) == [("m5", "rdma:mlx5_1/1", "rdma.link_up", "crit")]


def test_a_reset_of_the_gpu_forgives_what_it_mends(memory: Any, fleet: Make) -> None:
    """When the driver's count of a GPU's energy restarts, its Xids are over; those of another GPU are not."""

    def reset(values: np.ndarray) -> None:
        values[:] = 5e5 + 611.0 * np.arange(len(values))[:, None]
        values[80:, 3] -= 5e5

    def gpu(name: str) -> pa.Table:
        table = fleet("energy_joules_total", steps=140, bend=reset)
        return table.append_column("gpu", pa.array([name] * len(table)))

    fact = events((40.5, "m3", "xid:79", "crit"))
    assert levels(memory, gpu=gpu("1"), event=fact) == ["crit", "ok"]
    assert levels(memory, gpu=gpu("2"), event=fact) == ["crit"]


def test_an_incident_of_dcgm_passes_unless_it_is_named_again(memory: Any, fleet: Make) -> None:
    """A failed health check is critical while DCGM goes on naming it, and a warning alone is no verdict."""
    host = fleet(steps=1300)
    fails = [(at, "m3", "health:memory", "crit") for at in (20.5, 321.5, 622.5)]
    first, last = replay(memory({"host": host, "event": events(*fails)}))
    assert (first.level, first.machine, first.device) == ("crit", "m3", "gpu:1")
    assert (last.level, round((last.time - START) / SECOND)) == ("ok", 1223)
    warns = events((20.5, "m3", "health:thermal", "warn"))
    assert levels(memory, host=host, event=warns) == []


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("fatal_sxid", (0.0, 12028.0), "reported the fatal SXid 12028"),
        ("fatal_errors_total", (3.0, 5.0), "had 2 fatal errors on its links"),
        ("reset_required", (0.0, 1.0), "asks to be reset"),
    ],
)
def test_a_fatal_error_of_a_switch(
    memory: Any, fleet: Make, column: str, values: tuple[float, float], words: str
) -> None:
    """A fatal SXid and fatal errors that grow name the machine's NVSwitch; those counted before are no growth."""

    def breaks(found: np.ndarray) -> None:
        found[:] = values[0]
        found[60:, 2] = values[1]

    table = fleet(column, steps=140, bend=breaks)
    switch = table.append_column("switch", pa.array(["4"] * len(table)))
    (verdict,) = replay(memory({"host": fleet(steps=140), "nvswitch": switch}))
    assert (verdict.machine, verdict.device, verdict.level) == ("m2", "nvswitch:4", "crit")
    assert verdict.message == f"m2 NVSwitch 4 {words}"


def test_a_storm_of_one_event_is_one_fact(memory: Any, fleet: Make) -> None:
    """The same Xid many thousand times a second is one verdict, and steps stay cheap: each kind is looked at once."""
    storm = events(*((40 + n / 40_000, "m1", "xid:95", "crit") for n in range(20_000)))
    assert said(memory, host=fleet(steps=60), event=storm) == [("m1", "gpu:1", "event.xid:95", "crit")]
    facts = EventState()
    facts.feed(rows_of("event", storm), OperatorState())
    assert len(facts.active) == 1


def test_a_lasting_fact_makes_no_empty_decades_long(memory: Any, fleet: Make) -> None:
    """After a clock that was wrong once, replay comes to its end although a verdict stays open."""
    late = events((40.5, "m3", "xid:79", "crit"), (3e8, "m1", "xid:13", "info"))
    assert levels(memory, host=fleet(steps=60), event=late) == ["crit"]
