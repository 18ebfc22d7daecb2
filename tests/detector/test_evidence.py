"""Evidence: hard facts at once, endings for what they are, silence when the peers go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from detector.pipeline import replay

SECOND, START = 10**9, 1_700_000_000 * 10**9
Make = Callable[..., pa.Table]


def events(*rows: tuple[float, str, str, str]) -> pa.Table:
    """Events at seconds from the start: time, machine, code, severity."""
    names = ("time", "machine", "code", "severity", "source", "device", "message")
    full = [
        (START + int(at * SECOND), m, code, level, "s", "gpu:1", f"what {code} means") for at, m, code, level in rows
    ]
    return pa.table(dict(zip(names, map(list, zip(*full, strict=True)), strict=True)))


def said(memory: Any, **tables: pa.Table) -> list[tuple[str, str | None, str, str]]:
    """Machine, device, metric and level of each verdict."""
    return [(v.machine, v.device, v.metric, v.level) for v in replay(memory(tables))]


def test_a_critical_event_convicts_at_once(memory: Any, fleet: Make) -> None:
    """A fatal event is a verdict within the step, an informative one is none, and saying it twice changes nothing."""
    table = events((50.2, "m3", "xid:79", "crit"), (60.1, "m3", "xid:79", "crit"), (70.3, "m1", "xid:13", "warn"))
    (verdict,) = replay(memory({"host": fleet(steps=100), "event": table}))
    assert (verdict.machine, verdict.device, verdict.metric) == ("m3", "gpu:1", "event.xid:79")
    assert verdict.message == "m3 gpu:1: what xid:79 means"
    assert verdict.time == START + 51 * SECOND


def test_a_link_that_is_up_again_is_cleared(memory: Any, fleet: Make) -> None:
    """The event that ends another clears its verdict."""
    table = events((40.5, "m2", "link_down", "crit"), (55.5, "m2", "link_up", "info"))
    levels = [level for *_, level in said(memory, host=fleet(steps=100), event=table)]
    assert levels == ["crit", "ok"]


def test_one_rank_that_leaves_is_named_and_a_task_that_ends_is_not(memory: Any, fleet: Make) -> None:
    """An exit is held against a rank only when it leaves alone; those that follow it are consequences."""
    alone = events((40.5, "m4", "rank_exit", "crit"), (52.5, "m1", "rank_exit", "crit"))
    assert said(memory, host=fleet(steps=90), event=alone) == [("m4", "gpu:1", "event.rank_exit", "crit")]
    ended = events(*((40 + 0.4 * n, f"m{n}", "rank_exit", "crit") for n in range(6)))
    assert said(memory, host=fleet(steps=90), event=ended) == []


def test_silence_of_one_machine_is_said_and_of_all_is_not(memory: Any, fleet: Make) -> None:
    """A machine whose peers go on is silent after half a minute, critical after a minute; nobody is when all stop."""

    def lonely(values: np.ndarray) -> None:
        values[100:260, 2] = np.nan

    def together(values: np.ndarray) -> None:
        values[100:260, 1:] = np.nan

    who = ("m2", None, "event.silent")
    assert said(memory, host=fleet(steps=300, bend=lonely)) == [(*who, "warn"), (*who, "crit"), (*who, "ok")]
    assert said(memory, host=fleet(steps=300, bend=together)) == []


def test_after_an_outage_the_last_to_come_back_is_not_silent(memory: Any, fleet: Make) -> None:
    """Machines that nobody heard for minutes come back one by one; who stays away is named later."""

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
    assert [v[0] for v in said(memory, odd=soft)] == ["m5"]
    hard = events((125.0, "m1", "xid:79", "crit"))
    assert [v[0] for v in said(memory, odd=soft, event=hard)] == ["m1"]


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
