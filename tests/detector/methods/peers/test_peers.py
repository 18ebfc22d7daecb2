"""Peers: the machine that goes on differing is named, and none is for what all machines do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.pipeline import Detector, State, judge, replay
from detector.methods.peers.method import Peers

Make = Callable[..., pa.Table]
SECOND, START = 10**9, 1_700_000_000 * 10**9


def named(memory: Any, **tables: pa.Table) -> list[tuple[str, str | None, str]]:
    """Machine, device and metric of each verdict that incriminates, by this method alone: the others take time too."""
    detector = Detector(state=State(methods=[Peers(Config())]))
    return [(v.machine, v.device, v.metric) for v in judge(memory(tables), detector) if v.level != "ok"]


@pytest.mark.parametrize(("step_s", "shift"), [(1.0, -40.0), (1.0, 35.0), (2.0, -37.0), (60.0, 43.0), (300.0, -39.0)])
def test_a_lasting_shift_is_named_in_either_direction(memory: Any, fleet: Make, step_s: float, shift: float) -> None:
    """At any step and in both directions the machine that moved is named once, and cleared when it is back."""

    def bend(values: np.ndarray) -> None:
        values[200:320, 2] += shift

    verdicts = list(replay(memory({"odd": fleet("pressure", steps=450, step_s=step_s, bend=bend)})))
    assert {(v.machine, v.metric) for v in verdicts} == {("m2", "odd.pressure")}
    assert [v.level for v in verdicts] == ["crit", "ok"]
    onset = START + int(200 * step_s * SECOND)
    assert onset < verdicts[0].time <= onset + int(max(75, 8 * step_s) * SECOND)
    assert abs(verdicts[0].since - onset) <= 6 * step_s * SECOND


@pytest.mark.parametrize(
    "what",
    [
        "nothing",
        "short burst",
        "first burst",
        "everybody",
        "constant offset",
        "dead column",
        "holes",
        "few peers",
        "late machine",
    ],
)
def test_no_machine_is_blamed(memory: Any, fleet: Make, what: str) -> None:
    """Bursts, whole-task events, constant differences, dead columns and holes are no faults."""

    def bend(values: np.ndarray) -> None:
        if what == "short burst":
            values[200:210, 1] += 80
        if what == "first burst":
            values[:24, 1] += 230
        if what == "everybody":
            values[200:260] -= 70
        if what == "constant offset":
            values[:, 4] += 33
        if what == "dead column":
            values[:] = 0
        if what == "holes":
            values[np.random.default_rng(3).random(values.shape) < 0.3] = np.nan
        if what == "few peers":
            values[150:, 1] += 90
        if what == "late machine":
            values[:150, 3] = np.nan

    machines = 3 if what == "few peers" else 6
    assert named(memory, odd=fleet("load", machines=machines, steps=400, bend=bend)) == []


def test_a_young_norm_is_held_to_where_it_was_right(memory: Any, fleet: Make) -> None:
    """What moves away bit by bit soon after the start, from a little above its peers, is named all the same."""

    def bend(values: np.ndarray) -> None:
        values[:, 2] += 2 - np.clip((np.arange(300) - 50) * 0.2, 0, 12)

    assert named(memory, odd=fleet(bend=bend)) == [("m2", None, "odd.load")]


def test_a_difference_below_the_floor_is_no_fault(memory: Any, fleet: Make) -> None:
    """Healthy peers that agree to a hair do not make a hair's breadth a fault: the catalogue's floor counts."""

    def bend(values: np.ndarray) -> None:
        values[:] = 300 + (values - 100) * 0.01
        values[150:, 2] += shift

    shift = 12.0
    assert named(memory, host=fleet("processes_running", step_s=3.0, bend=bend)) == []
    shift = 300.0
    assert named(memory, host=fleet("processes_running", step_s=3.0, bend=bend)) == [
        ("m2", None, "host.processes_running")
    ]


def test_the_harmless_direction_is_no_fault(memory: Any, fleet: Make) -> None:
    """Less swapping than the peers is good news; more is not."""

    def bend(values: np.ndarray) -> None:
        values[:] = 0.5 + (values - 100) / 1000
        values[150:, 3] += shift

    shift = -0.45
    assert named(memory, host=fleet("memory_pressure_ratio", step_s=3.0, bend=bend)) == []
    shift = 0.45
    assert named(memory, host=fleet("memory_pressure_ratio", step_s=3.0, bend=bend)) == [
        ("m3", None, "host.memory_pressure_ratio")
    ]


def test_one_gpu_is_named_and_a_whole_machine_too(memory: Any) -> None:
    """One odd GPU of four is named as a device; when all four are odd the machine is."""
    steps, machines, gpus = 260, 4, 4
    time = np.repeat(START + np.arange(steps) * SECOND, machines * gpus)
    keys = {
        "machine": np.tile(np.repeat([f"m{n}" for n in range(machines)], gpus), steps),
        "gpu": np.tile([str(n) for n in range(gpus)], steps * machines),
    }
    for odd, device in ((slice(2, 3), "gpu:2"), (slice(None), None)):
        clock = 1.9e9 + np.random.default_rng(1).normal(0, 4e6, (steps, machines, gpus))
        clock[160:, 1, odd] *= 0.6
        table = pa.table({"time": time, **keys, "sm_clock_hertz": clock.reshape(-1)})
        assert named(memory, gpu=table) == [("m1", device, "gpu.sm_clock_hertz")]


@pytest.mark.parametrize("metric", ["cpu_wait_seconds_total", "disk_wait_seconds_total"])
def test_a_process_that_waits_is_named_by_its_gpu(memory: Any, metric: str) -> None:
    """Waits come in bursts, and all machines write checkpoints; one that waits on and on is named as a GPU."""
    steps, machines = 300, 6
    time = np.repeat(START + np.arange(steps) * SECOND, machines)
    keys = {"machine": np.tile([f"m{n}" for n in range(machines)], steps), "gpu": np.full(steps * machines, "3")}
    for more, expected in ((0.0, []), (0.1, []), (0.7, [("m4", "gpu:3", f"process.{metric}")])):
        rates = np.random.default_rng(5).exponential(0.02, (steps, machines))
        rates[np.arange(steps) % 97 < 6] += 0.8
        rates[150:, 4] += more
        table = pa.table({"time": time, **keys, metric: rates.cumsum(axis=0).reshape(-1)})
        assert named(memory, process=table) == expected


ONSET = 120


def late(blocked_too: bool) -> tuple[Callable[[np.ndarray], None], Callable[[np.ndarray], None]]:
    """Bends waits and activity: all begin to wait for m5, with operations that are short at work from the onset on."""
    jitter = np.random.default_rng(8).normal(0, 0.001, 200 - ONSET)

    def waits(values: np.ndarray) -> None:
        values[:] = 0.1 + (values - 100) / 200
        values[ONSET:] += 0.3
        if blocked_too:
            values[ONSET:, 5] = 0.02 + jitter
        values[:] = np.cumsum(values, axis=0)

    def activity(values: np.ndarray) -> None:
        values[:] = 0.2 + (values - 100) / 200
        values[ONSET:] += 0.3
        values[ONSET:, 5] = 0.13 + jitter

    return waits, activity


def test_who_waits_least_is_named_not_those_who_wait(memory: Any, fleet: Make) -> None:
    """When all others begin to wait, the one that does not is the culprit; without activity no reason is guessed."""
    waits, _ = late(blocked_too=True)
    table = fleet("host_blocked_seconds_total", steps=200, bend=waits)
    verdict, *others = replay(memory({"nccl": table.append_column("gpu", pa.array(["0"] * len(table)))}))
    assert others == []
    assert (verdict.machine, verdict.device, verdict.level) == ("m5", "gpu:0", "crit")
    assert verdict.message == "m5 GPU 0: 0.02 s/s waiting for its communicators (median of 5 peers: 0.40 s/s)"
    assert verdict.time - START <= (ONSET + 30) * SECOND


@pytest.mark.parametrize(("blocked_too", "reason"), [(True, "its GPU computes longer"), (False, "its host comes late")])
def test_why_a_rank_comes_late(memory: Any, fleet: Make, blocked_too: bool, reason: str) -> None:
    """Short activity with a short wait is a slow GPU, with the same wait as its peers a late host."""
    waits, activity = late(blocked_too)
    table = fleet("host_blocked_seconds_total", steps=200, bend=waits)
    table = table.append_column("active_ratio", fleet("active_ratio", steps=200, bend=activity)["active_ratio"])
    verdict, *others = replay(memory({"nccl": table.append_column("gpu", pa.array(["0"] * len(table)))}))
    assert others == []
    assert (verdict.machine, verdict.device) == ("m5", "gpu:0")
    assert verdict.message.endswith(reason)


def test_strangers_are_not_compared(memory: Any) -> None:
    """Where the loads of machines have nothing to do with each other none is named, however far it wanders."""
    steps, machines = 900, 6
    walk = np.random.default_rng(5).normal(0, 1, (steps, machines)).cumsum(0)
    time = np.repeat(START + np.arange(steps) * 60 * SECOND, machines)
    names = np.tile([f"m{n}" for n in range(machines)], steps)
    assert named(memory, apart=pa.table({"time": time, "machine": names, "walk": walk.reshape(-1)})) == []


def without(memory: Any, **tables: pa.Table) -> list[str]:
    """What a detector says after a recording of those that it does not compare."""
    detector = Detector()
    assert list(judge(memory(tables), detector)) == []
    return detector.uncompared_text()


@pytest.mark.parametrize("machines", [4, 7, 12, 28])
def test_bursts_of_strangers_name_no_machine(memory: Any, machines: int) -> None:
    """Loads of their own levels, with bursts at times of their own, name no machine in a group of any size."""
    steps, rng = 900, np.random.default_rng(31)
    level = rng.uniform(5, 80, (6, machines))
    values = level[:, None] * (1 + 0.05 * rng.normal(0, 1, (6, steps, machines)))
    for metric, machine in np.ndindex(6, machines):
        for begin in rng.integers(150, steps - 60, 4):
            values[metric, begin : begin + 45, machine] *= rng.uniform(2, 5)
    time = np.repeat(START + np.arange(steps) * 60 * SECOND, machines)
    names = np.tile([f"m{n}" for n in range(machines)], steps)
    columns = {f"reading_{at}": metric.reshape(-1) for at, metric in enumerate(values)}
    said = replay(memory({"server": pa.table({"time": time, "machine": names, **columns})}))
    assert [verdict.machine for verdict in said if verdict.level != "ok"] == []


def test_who_has_no_peers_is_said(memory: Any, fleet: Make) -> None:
    """Too few, or strangers to each other: that none was compared is said, with the reason; of peers it is not."""

    def apart(values: np.ndarray) -> None:
        values += 20 * np.sin(np.arange(400)[:, None] / np.array([13, 17, 23, 31, 41, 53]))

    assert without(memory, odd=fleet(machines=6, steps=150)) == []
    assert without(memory, odd=fleet(machines=3, steps=150)) == [
        "odd, task all: no peers, as 3 are too few to be compared (at least 4)"
    ]
    assert without(memory, apart=fleet(steps=400, step_s=60, bend=apart)) == [
        "apart, task all: no peers, as the readings of one do not predict the others'"
    ]


def test_a_slow_sender_is_named_only_where_the_task_slows_down(memory: Any, fleet: Make) -> None:
    """A rank that sends slowly is named within half a minute where all lose pace by it; else it is a note."""
    steps, onset = 260, 150

    def sending(values: np.ndarray) -> None:
        values[:] = 0.1 + (values - 100) / 500
        values[onset:, 4] += 0.6

    def said(pace: float) -> tuple[list[float], set[str]]:
        operations = 50 + np.random.default_rng(3).normal(0, 0.3, (steps, 6))
        operations[onset:] *= pace
        table = fleet("send_pending_ratio", steps=steps, bend=sending)
        table = table.append_column("gpu", pa.array(["0"] * len(table)))
        table = table.append_column("operations_total", pa.array(operations.cumsum(0).reshape(-1)))
        detector = Detector()
        found = [v for v in judge(memory({"nccl": table}), detector) if v.level != "ok"]
        assert all((v.machine, v.metric) == ("m4", "nccl.send_pending_ratio") for v in found)
        noted = {note.machine for note in detector.state.incidents.take_notes()}
        return [(v.time - START) / SECOND - onset for v in found], noted

    assert said(pace=0.7)[0][0] <= 30
    assert said(pace=1.0) == ([], {"m4"})


@pytest.mark.parametrize(("begins", "soon"), [(150, True), (190, False)])
def test_only_what_began_with_the_loss_of_pace_may_have_caused_it(
    memory: Any, fleet: Make, begins: int, soon: bool
) -> None:
    """A rank that sends slowly while the task is slowed by something earlier is not named for half a minute of it."""
    onset = 150

    def sending(values: np.ndarray) -> None:
        values[:] = 0.1 + (values - 100) / 500
        values[begins : begins + 35, 4] += 0.6

    operations = 50 + np.random.default_rng(3).normal(0, 0.3, (260, 6))
    operations[onset:] *= 0.7
    table = fleet("send_pending_ratio", steps=260, bend=sending)
    table = table.append_column("gpu", pa.array(["0"] * len(table)))
    table = table.append_column("operations_total", pa.array(operations.cumsum(0).reshape(-1)))
    assert [machine for machine, *_ in named(memory, nccl=table)] == (["m4"] if soon else [])


def test_who_waits_for_the_others_is_not_to_blame(memory: Any, fleet: Make) -> None:
    """A rank that is at its collectives all the time waits there: it may have written its checkpoint first."""

    def activity(values: np.ndarray) -> None:
        values[:] = 0.2 + (values - 100) / 200
        values[ONSET:, 2] = 0.97

    table = fleet("active_ratio", steps=220, bend=activity)
    assert named(memory, nccl=table.append_column("gpu", pa.array(["0"] * len(table)))) == []


def test_what_a_standing_task_reads_names_no_machine(memory: Any, fleet: Make) -> None:
    """A machine that does more than the rest of a task does nothing while all stand; then it does more again."""

    def busier(values: np.ndarray) -> None:
        values[:, 1] += 60
        values[200:330] = 0

    def pace(values: np.ndarray) -> None:
        values[:] = 3.0
        values[200:330] = 0
        values[:] = values.cumsum(0)

    readings = fleet("load", steps=500, bend=busier)
    assert named(memory, odd=readings) != []  # lest this test prove nothing
    calls = fleet("operations_total", steps=500, bend=pace)
    assert named(memory, odd=readings, nccl=calls) == []
