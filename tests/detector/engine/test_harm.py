"""Harm decides what is said: each class of mistake that was made on unknown fleets has a test here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from detector.config import Config
from detector.engine.pipeline import Detector, walk
from detector.model.verdict import Verdict
from detector.topology.roles import ALIKE
from store.schema.time import LATEST

SECOND, START, ONSET, STEPS, MACHINES = 10**9, 1_700_000_000 * 10**9, 210, 420, 7
CALM = START + 140 * SECOND
"""Until then nothing happens: it is judged once for all tests with the same readings so far."""
Bend = Callable[[dict[str, np.ndarray]], None]
_CALM: list[tuple[dict[str, pa.Table], Detector]] = []


def training(bend: Bend | None = None, seed: int = 41) -> dict[str, np.ndarray]:
    """Readings [step, machine] of a task with iterations that vary by 2 %, which all its members follow."""
    rng = np.random.default_rng(seed)
    pace = 1 + 0.02 * rng.normal(0, 1, (STEPS, 1))
    own = lambda size: size * rng.normal(0, 1, (STEPS, MACHINES))  # noqa: E731
    found = {
        "gpu.power_watts": 520 * (0.3 + 0.7 * pace) + own(4.0),
        "gpu.tensor_active_ratio": 0.43 * pace + own(0.004),
        "gpu.duty_cycle_ratio": 0.97 + own(0.003),
        "host.disk_write_bytes_total": 3e6 * (1 + own(0.2)),
        "host.processes_running": 9 + own(0.8),
        "rdma.pfc_transmit_frames_total": 40 * (1 + own(0.2)),
        "rdma.cnp_sent_total": 60 * (1 + own(0.2)),
        "gpu.remapped_rows": np.zeros((STEPS, MACHINES)),
    }
    if bend:
        bend(found)
    return found


def tables(
    found: dict[str, np.ndarray], silent: dict[int, slice] | None = None, step_s: int = 1
) -> dict[str, pa.Table]:
    """The same as the store has them; `silent` machines write no rows meanwhile."""
    step, machine = (index.reshape(-1) for index in np.indices((STEPS, MACHINES)))
    there = np.ones(len(step), bool)
    for one, span in (silent or {}).items():
        there &= ~((machine == one) & (step >= span.start) & (step < span.stop))
    out: dict[str, dict[str, Any]] = {}
    for key, values in found.items():
        table, _, metric = key.partition(".")
        columns = out.setdefault(
            table,
            {"time": START + step_s * step[there] * SECOND, "machine": np.char.add("m", machine.astype(str))[there]},
        )
        if table in ("gpu", "rdma"):
            columns["gpu" if table == "gpu" else "port"] = ["0" if table == "gpu" else "mlx5_0/1"] * int(there.sum())
        if table == "nccl":
            columns |= {"gpu": ["0"] * int(there.sum()), "slot": ["0"] * int(there.sum())}
        columns[metric] = (values.cumsum(0) if metric.endswith("_total") else values).reshape(-1)[there]
    return {name: pa.table(columns) for name, columns in out.items()}


def watch(memory: Any, found: dict[str, pa.Table], clustered: bool = False) -> tuple[list[Verdict], list[Verdict]]:
    """What is said, recoveries aside, and what is noted; `clustered` peers were found by their readings."""
    calm = {name: table.filter(pc.field("time") <= CALM) for name, table in found.items()}
    known = next((detector for seen, detector in _CALM if seen == calm), None)
    if known is None:
        known = Detector()
        assert list(judged(memory(found), known, START - SECOND, CALM)) == []
        _CALM.append((calm, known))
    detector = deepcopy(known)
    if clustered:
        detector.state.tasks.roles.alike = {f"m{at}": ALIKE for at in range(MACHINES)}
    said = list(judged(memory(found), detector, CALM, LATEST))
    return [verdict for verdict in said if verdict.level != "ok"], detector.state.incidents.take_notes()


def judged(store: Any, detector: Detector, after: int, until: int) -> Iterator[Verdict]:
    """The verdicts over what was read in a part of the time, as `judge` gives those over all of it."""
    for now, rows in walk(store, detector.state.incidents.settled):
        if after < now <= until:
            yield from detector.step(now, rows)
            detector.learn_independence(store, now)


def slower(found: dict[str, np.ndarray], share: float = 0.93) -> None:
    """All lose pace from the onset on."""
    for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
        found[key][ONSET:] *= share


def paced(found: dict[str, np.ndarray]) -> None:
    """Two more readings that follow the iterations, so that the pace is known without any one of them."""
    for key, level in (("gpu.dram_active_ratio", 0.29), ("gpu.nvlink_transmit_bytes_total", 7e9)):
        found[key] = level * found["gpu.tensor_active_ratio"] / 0.43


def crowded(metric: str, usual: float, more: float, idle: float, share: float, seconds: int) -> Bend:
    """For so long threads of m3 wait for processors, its GPU is idle by this, and all have this share of their pace."""

    def bend(found: dict[str, np.ndarray]) -> None:
        during = slice(ONSET, ONSET + seconds)
        found[metric] = usual * (1 + 0.2 * np.random.default_rng(89).random((STEPS, MACHINES)))
        found[metric][during, 3] += more
        found["gpu.duty_cycle_ratio"][during, 3] -= idle
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][during] *= share

    return bend


@pytest.mark.parametrize(
    ("metric", "more"),
    [("host.processes_running", 55.0), ("rdma.pfc_transmit_frames_total", 7e2)],
)
def test_other_work_on_a_machine_is_a_note_unless_the_task_slows_down_with_it(
    memory: Any, metric: str, more: float
) -> None:
    """An upgrade or congestion does no harm; the same with a lower pace is reported."""

    def odd(found: dict[str, np.ndarray]) -> None:
        found[metric][ONSET:, 3] += more

    def both(found: dict[str, np.ndarray]) -> None:
        odd(found)
        slower(found)

    said, notes = watch(memory, tables(training(odd)))
    assert said == []
    assert {(note.machine, note.metric) for note in notes} == {("m3", metric)}
    said, _ = watch(memory, tables(training(both)))
    assert {(verdict.machine, verdict.metric) for verdict in said} == {("m3", metric)}


@pytest.mark.parametrize(("harm", "named"), [(0.06, {"m3"}), (0.0, set())])
def test_a_copy_is_a_note_also_while_the_task_is_slower(memory: Any, harm: float, named: set[str]) -> None:
    """Bytes that a backup writes say nothing of who makes the task slower; GPUs that are at work less do."""

    def copies(found: dict[str, np.ndarray]) -> None:
        found["host.disk_write_bytes_total"][ONSET:, 3] += 8e8
        found["gpu.duty_cycle_ratio"][ONSET:, 3] -= harm
        found["gpu.power_watts"][ONSET:, 3] *= 1 - harm
        slower(found)

    said, notes = watch(memory, tables(training(copies)))
    assert {one.machine for one in said} == named
    assert ("m3", "host.disk_write_bytes_total") in {(note.machine, note.metric) for note in notes}


@pytest.mark.parametrize(("lasts_s", "named"), [(41, set()), (95, {"m3"})])
def test_threads_that_wait_for_processors_do_so_for_longer_than_a_neighbour_takes(
    memory: Any, lasts_s: int, named: set[str]
) -> None:
    """What processes wait is moved by other work, as readings of hosts are: after half a minute it is not plain."""
    waits = crowded("process.cpu_wait_seconds_total", 0.05, 0.9, 0.02, 0.95, lasts_s)
    said, _ = watch(memory, tables(training(waits)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("harm", "named"), [(0.02, {"m3"}), (0.0, set())])
def test_what_is_far_off_is_said_before_its_evidence_is_complete_if_the_harm_is_plain(
    memory: Any, harm: float, named: set[str]
) -> None:
    """Seven times as many processes as elsewhere: an alarm takes a minute, a GPU that has less to do shows sooner."""

    def busy(found: dict[str, np.ndarray]) -> None:
        found["host.processes_running"][ONSET:, 3] += 53.0
        found["gpu.duty_cycle_ratio"][ONSET:, 3] -= harm
        found["gpu.power_watts"][ONSET:, 3] *= 1 - harm
        slower(found, 1 - 2 * harm)

    said, _ = watch(memory, tables(training(busy)))
    soon = [one for one in said if (one.time - START) / SECOND - ONSET < 58]
    assert {one.machine for one in soon} == named
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("low", "before_s"), [(0.71, 24), (0.93, 75)])
def test_a_clock_that_is_far_too_low_is_named_with_half_of_the_evidence(memory: Any, low: float, before_s: int) -> None:
    """29 % are named within 24 s, however the task goes; 7 % take all of the evidence."""

    def slow(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(23).normal(0, 1, (STEPS, MACHINES))
        found["gpu.sm_clock_hertz"] = 1.93e9 * (1 + 0.001 * noise)
        found["gpu.sm_clock_hertz"][ONSET:, 5] *= low

    first, *_ = watch(memory, tables(training(slow)))[0]
    assert (first.machine, first.metric) == ("m5", "gpu.sm_clock_hertz")
    assert before_s - 15 < (first.time - START) / SECOND - ONSET < before_s


@pytest.mark.parametrize(
    ("more", "lasts_s", "named"), [(3.1e3, STEPS, {"m2"}), (3.2e3, 88, set()), (830, STEPS, set())]
)
def test_a_storm_of_pause_frames_is_said_whatever_the_pace(
    memory: Any, more: float, lasts_s: int, named: set[str]
) -> None:
    """Three thousand a second for two minutes stop the switch too; eight hundred, or a minute and a half, do not."""

    def storms(found: dict[str, np.ndarray]) -> None:
        found["rdma.pfc_transmit_frames_total"][ONSET : ONSET + lasts_s, 2] += more

    said = watch(memory, tables(training(storms)))[0]
    assert {one.machine for one in said} == named
    assert all(120 <= (one.time - START) / SECOND - ONSET < 150 for one in said)


@pytest.mark.parametrize(("share", "names"), [(0.95, {"m2"}), (1.0, set())])
def test_pause_frames_are_said_sooner_if_the_task_slows_down_with_them(
    memory: Any, share: float, names: set[str]
) -> None:
    """With 5 % of the pace they are said after half a minute, before a burst of other traffic would be over."""

    def pauses(found: dict[str, np.ndarray]) -> None:
        found["rdma.pfc_transmit_frames_total"][ONSET:, 2] += 810
        slower(found, share)

    said = watch(memory, tables(training(pauses)))[0]
    assert {one.machine for one in said} == names
    assert all(29 <= (one.time - START) / SECOND - ONSET < 45 for one in said)


@pytest.mark.parametrize(
    ("metric", "more"),
    [("rdma.cnp_sent_total", 9e3), ("gpu.remapped_rows", 1.0), ("rdma.transmit_wait_ticks_total", 3.7e4)],
)
def test_what_others_make_or_what_was_mended_is_a_note_whatever_the_task_does(
    memory: Any, metric: str, more: float
) -> None:
    """A port that sends congestion notifications receives too much, one without credit waits for who does not take what
    it sends, a remapped row is mended: none is a fault."""

    def odd(found: dict[str, np.ndarray]) -> None:
        usual = found.get(metric, 700 * (1 + 0.05 * np.random.default_rng(97).normal(0, 1, (STEPS, MACHINES))))
        found[metric] = usual
        found[metric][ONSET:, 3] += more
        slower(found)

    said, notes = watch(memory, tables(training(odd)))
    assert said == []
    assert {(note.machine, note.metric) for note in notes} == {("m3", metric)}


@pytest.mark.parametrize(
    ("metric", "more", "named", "latest"),
    [
        ("processes_running", 48, [("m5", "host.processes_running")], 120),
        ("disk_write_bytes_total", 8.3e8, [("m5", "gpu.duty_cycle_ratio")], 205),
    ],
)
def test_other_work_that_makes_its_own_gpus_wait_is_said(
    memory: Any, metric: str, more: float, named: list[tuple[str, str]], latest: int
) -> None:
    """The GPUs of a machine that thrashes are at work 6 % less than their peers', which no reading of theirs tells.

    A copy is no cause of that while the task goes on as before: then they are said by themselves, as soon as that lasts
    for two minutes.
    """

    def thrashes(found: dict[str, np.ndarray]) -> None:
        found[f"host.{metric}"][ONSET:, 5] += more
        found["gpu.duty_cycle_ratio"][ONSET:, 5] -= 0.06
        found["gpu.power_watts"][ONSET:, 5] -= 29

    said, _ = watch(memory, tables(training(thrashes)))
    assert [(verdict.machine, verdict.metric) for verdict in said] == named
    assert 0 < (said[0].time - START) / SECOND - ONSET <= latest


def test_gpus_that_wait_for_a_moment_of_each_long_iteration_are_held_up(memory: Any) -> None:
    """Of iterations of 30 s one machine begins each 4 s late, as its processors are busy: its GPUs are idle then."""

    def late(found: dict[str, np.ndarray]) -> None:
        second = np.arange(STEPS) % 30
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][second >= 21] *= 0.4
        found["gpu.graphics_active_ratio"] = found["gpu.duty_cycle_ratio"] - 0.008
        begins = np.flatnonzero((second < 4) & (np.arange(STEPS) >= ONSET))
        for key in ("gpu.duty_cycle_ratio", "gpu.graphics_active_ratio"):
            found[key][begins, 5] = 0.31
        found["host.processes_running"][ONSET:, 5] += 47

    said, _ = watch(memory, tables(training(late)))
    assert {(one.machine, one.metric) for one in said} == {("m5", "host.processes_running")}


@pytest.mark.parametrize(("lasts_s", "named"), [(70, set()), (STEPS, {"m3"})])
def test_traffic_is_less_for_three_long_iterations_before_it_is_said(
    memory: Any, lasts_s: int, named: set[str]
) -> None:
    """Less than half of the bytes in two iterations of 30 s may be a part of these; in all that follow it is not."""

    def less(found: dict[str, np.ndarray]) -> None:
        second = np.arange(STEPS) % 30
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][second >= 19] *= 0.35
        paced(found)
        noise = np.random.default_rng(43).normal(0, 0.05, (STEPS, MACHINES))
        found["gpu.nvlink_receive_bytes_total"] = 5e9 * (1 + noise)
        found["gpu.nvlink_receive_bytes_total"][ONSET : ONSET + lasts_s, 3] *= 0.4
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts", "gpu.dram_active_ratio"):
            found[key][ONSET : ONSET + lasts_s] *= 0.7

    assert {one.machine for one in watch(memory, tables(training(less)))[0]} == named


def test_a_backup_during_which_another_machine_slows_the_task_is_a_note(memory: Any) -> None:
    """Only a fall of the pace at the moment at which a machine begins to differ speaks against that machine."""

    def later(found: dict[str, np.ndarray]) -> None:
        found["host.disk_write_bytes_total"][ONSET - 60 :, 3] += 7e8
        slower(found)

    said, notes = watch(memory, tables(training(later)))
    assert said == []
    assert ("m3", "host.disk_write_bytes_total") in {(note.machine, note.metric) for note in notes}


def test_a_backup_after_the_task_was_stopped_is_a_note(memory: Any) -> None:
    """A task that stands for most of what is remembered still has the pace that it ran at."""

    def stopped(found: dict[str, np.ndarray]) -> None:
        for key in ("gpu.tensor_active_ratio", "gpu.duty_cycle_ratio"):
            found[key][120:] = 0.0
        found["gpu.power_watts"][120:] = 70 + np.random.default_rng(6).normal(0, 1, (STEPS - 120, MACHINES))
        found["host.disk_write_bytes_total"][260:, 2] += 9e8

    assert watch(memory, tables(training(stopped)))[0] == []


def test_an_agent_that_restarts_is_a_note_and_a_machine_for_which_the_task_stands_is_said(memory: Any) -> None:
    """75 s without a row while all go on are its agent; with a task that hangs it is lost, after 60 s."""
    said, notes = watch(memory, tables(training(), {2: slice(ONSET, ONSET + 75)}))
    assert said == []
    assert {(note.machine, note.metric) for note in notes} == {("m2", "event.silent")}

    def stands(found: dict[str, np.ndarray]) -> None:
        found["gpu.tensor_active_ratio"][ONSET:] = 0.0
        found["gpu.power_watts"][ONSET:] = 131.0

    (first, *others), _ = watch(memory, tables(training(stands), {2: slice(ONSET, STEPS)}))
    assert (first.machine, first.metric, first.level) == ("m2", "event.silent", "crit")
    assert 60 <= (first.time - START) / SECOND - ONSET < 70
    assert others == []


@pytest.mark.parametrize(("before_s", "named"), [(14, set()), (0, {"m2"})])
def test_an_agent_that_restarts_while_its_task_stands_already_is_not_lost(
    memory: Any, before_s: int, named: set[str]
) -> None:
    """A task that stopped 14 s before a machine fell silent, for a checkpoint, does not stand for it."""

    def stands(found: dict[str, np.ndarray]) -> None:
        found["gpu.tensor_active_ratio"][ONSET - before_s : ONSET + 90] = 0.0
        found["gpu.power_watts"][ONSET - before_s : ONSET + 90] = 129.0

    said, _ = watch(memory, tables(training(stands), {2: slice(ONSET, ONSET + 70)}))
    assert {one.machine for one in said} == named


def test_a_machine_that_is_silent_for_long_is_named_beside_another_fault(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link is down at the time at which another machine dies; after minutes that one is no effect of the link."""
    monkeypatch.setattr("detector.harm.silence.LOST_NS", 160 * SECOND)

    def down(found: dict[str, np.ndarray]) -> None:
        found["rdma.link_up"] = np.ones((STEPS, MACHINES))
        found["rdma.link_up"][ONSET - 3 :, 1] = 0

    said, _ = watch(memory, tables(training(down), {5: slice(ONSET, STEPS)}))
    first = {one.machine: one for one in reversed(said)}
    assert {name: one.metric for name, one in first.items()} == {"m1": "rdma.link_up", "m5": "event.silent"}
    assert 160 <= (first["m5"].time - START) / SECOND - ONSET <= 180


@pytest.mark.parametrize(("reads", "named"), [(1, set()), (2, {"m1"})])
def test_a_link_has_to_be_read_down_twice_however_rare_readings_are(memory: Any, reads: int, named: set[str]) -> None:
    """Of readings each 13 s one that shows the link down, the next being late, may have met a short flap."""

    def flaps(found: dict[str, np.ndarray]) -> None:
        found["rdma.link_up"] = np.ones((STEPS, MACHINES))
        found["rdma.link_up"][ONSET : ONSET + reads, 1] = 0

    late = {1: slice(ONSET + reads, ONSET + reads + 1)}
    said, _ = watch(memory, tables(training(flaps), late, step_s=13))
    assert {one.machine for one in said} == named


def test_a_rack_that_falls_silent_is_said_if_its_task_stands_since_then(memory: Any) -> None:
    """Three of seven machines without rows are notes while the others go on, and one incident if these stand."""
    rack = {at: slice(ONSET, STEPS) for at in (1, 4, 6)}
    said, notes = watch(memory, tables(training(), rack))
    assert said == []
    assert {(note.machine, note.metric) for note in notes} == {(f"m{at}", "event.silent") for at in rack}

    def stands(found: dict[str, np.ndarray]) -> None:
        found["gpu.tensor_active_ratio"][ONSET:] = 0.0
        found["gpu.power_watts"][ONSET:] = 127.0

    (lost,), _ = watch(memory, tables(training(stands), rack))
    assert (lost.machine, lost.metric, lost.level) == ("m1", "event.silent", "crit")
    assert lost.message.endswith(" s nor of m4, m6 while other peers go on")
    assert lost.time - START < (ONSET + 30) * SECOND


def test_a_task_that_begins_again_does_not_wait(memory: Any) -> None:
    """GPUs that were idle while a task stood, and are busy again, are no ranks that all wait for one."""

    def restarts(found: dict[str, np.ndarray]) -> None:
        found["gpu.tensor_active_ratio"][ONSET : ONSET + 170] = 0.0
        found["gpu.duty_cycle_ratio"][ONSET : ONSET + 130] = 0.0
        found["gpu.duty_cycle_ratio"][ONSET + 130 :] = 1.0
        idle = 118 + np.random.default_rng(9).normal(0, 1, (170, MACHINES))
        found["gpu.power_watts"][ONSET : ONSET + 170] = idle

    assert watch(memory, tables(training(restarts)))[0] == []


def test_a_machine_that_is_silent_for_minutes_is_missed_although_its_task_goes_on(memory: Any) -> None:
    """After five minutes somebody should look, be it the agent or the machine."""

    def early(found: dict[str, np.ndarray]) -> None:
        """Nothing else is odd."""

    said, _ = watch(memory, tables(training(early), {6: slice(80, STEPS)}))
    assert [(verdict.machine, verdict.metric) for verdict in said[:1]] == [("m6", "event.silent")]
    assert 290 <= (said[0].time - START) / SECOND - 80 <= 330


def test_of_a_task_that_stands_the_one_that_does_not_wait_as_the_others_do_is_named(memory: Any) -> None:
    """A kernel that never ends draws more power than ranks that wait; where all wait alike the task itself is named.

    So it is where one draws more power while it waits as it did while it worked, and where a sensor reads 0 W.
    """

    def hangs(found: dict[str, np.ndarray]) -> None:
        found["gpu.tensor_active_ratio"][ONSET:] = 0.0
        found["gpu.duty_cycle_ratio"][ONSET:] = 1.0
        found["gpu.power_watts"][ONSET:] = 148 + np.random.default_rng(2).normal(0, 2, (STEPS - ONSET, MACHINES))

    def kernel(found: dict[str, np.ndarray]) -> None:
        hangs(found)
        found["gpu.power_watts"][ONSET:, 4] += 77

    (first, *others), _ = watch(memory, tables(training(kernel)))
    assert (first.machine, first.device, first.level) == ("m4", "gpu:0", "crit")
    assert first.time - START < (ONSET + 40) * SECOND
    assert "stands still since" in first.message
    assert others == []
    (nameless,), notes = watch(memory, tables(training(hangs)))
    assert [note.time - START <= (ONSET + 20) * SECOND for note in notes if note.metric == "task.stalled"] == [True]
    assert (nameless.machine, nameless.metric, nameless.level) == (nameless.task, "task.stalled", "crit")
    assert (ONSET + 110) * SECOND <= nameless.time - START <= (ONSET + 140) * SECOND
    assert "no machine can be named; most unlike the others: m" in nameless.message

    def differs(found: dict[str, np.ndarray]) -> None:
        found["gpu.power_watts"][:, 6] += 83
        hangs(found)
        found["gpu.power_watts"][ONSET:, 6] += 61
        found["gpu.power_watts"][ONSET:, 2] = 0.0

    said, _ = watch(memory, tables(training(differs)))
    assert {one.metric for one in said if one.level == "crit"} == {"task.stalled"}


@pytest.mark.parametrize(
    ("code", "slow", "names"),
    [("edac", True, {"m1"}), ("edac", False, set()), ("xid:92", False, set()), ("xid:63", True, set())],
)
def test_a_corrected_error_is_said_only_with_harm(memory: Any, code: str, slow: bool, names: set[str]) -> None:
    """Corrected errors of memory are a note; they are said when the task is slower since, a remapped row is not."""
    found = tables(training(slower if slow else None))
    found["event"] = pa.table(
        {
            "time": [START + (ONSET + 2) * SECOND],
            "machine": ["m1"],
            "source": ["kernel_log"],
            "code": [code],
            "severity": ["warn"],
            "message": ["EDAC MC0: CE memory read error"],
            "device": [""],
        }
    )
    said, notes = watch(memory, found)
    assert {verdict.machine for verdict in said} == names
    assert {note.machine for note in notes} == {"m1"}


def test_a_corrected_error_is_said_where_the_gpus_of_its_machine_wait(memory: Any) -> None:
    """Its GPUs alone are at work 2.5 % less since then, too little to be seen in the pace of all."""

    def waits(found: dict[str, np.ndarray]) -> None:
        for key in ("gpu.duty_cycle_ratio", "gpu.graphics_active_ratio"):
            found[key] = 0.96 + 0.002 * np.random.default_rng(14).normal(0, 1, (STEPS, MACHINES))
            found[key][ONSET + 2 :, 3] -= 0.025

    found = tables(training(waits))
    event = {"time": START + (ONSET + 2) * SECOND, "machine": "m3", "source": "kernel_log", "code": "mce"}
    event |= {"severity": "warn", "message": "mce: corrected errors", "device": ""}
    found["event"] = pa.table({name: [value] for name, value in event.items()})
    said, _ = watch(memory, found)
    assert {one.machine for one in said} == {"m3"}


@pytest.mark.parametrize(
    ("metric", "lasts_s", "named"),
    [
        ("processes_running", 250, set()),
        ("processes_running", STEPS, {"m2"}),
        ("disk_write_bytes_total", STEPS, set()),
    ],
)
def test_where_only_hosts_are_read_what_lasts_for_five_minutes_is_said(
    memory: Any, metric: str, lasts_s: int, named: set[str]
) -> None:
    """Nothing tells how the task goes: an upgrade of four minutes and a copy of any length are notes, a load is not."""

    def busy(found: dict[str, np.ndarray]) -> None:
        for key in [key for key in found if not key.startswith("host.")]:
            del found[key]
        found[f"host.{metric}"][200 : 200 + lasts_s // 2, 2] *= 9

    said, _ = watch(memory, tables(training(busy), step_s=2))
    assert {one.machine for one in said} == named


def test_what_changes_on_one_machine_when_the_task_slows_is_its_cause_far_below_the_floor(memory: Any) -> None:
    """A port throws away 3.9 packets a second more, three quarters of the floor, while the task loses 11 %."""

    def discards(found: dict[str, np.ndarray]) -> None:
        found["rdma.discards_total"] = 1.4 * (1 + 0.1 * np.random.default_rng(8).normal(0, 1, (STEPS, 7)))
        found["rdma.discards_total"][ONSET:, 3] += 3.9

    def harms(found: dict[str, np.ndarray]) -> None:
        discards(found)
        slower(found, 0.89)

    assert watch(memory, tables(training(discards)))[0] == []
    (verdict,), _ = watch(memory, tables(training(harms)))
    assert (verdict.machine, verdict.device, verdict.level) == ("m3", "rdma:mlx5_0/1", "crit")
    assert verdict.time - START <= (ONSET + 130) * SECOND
    assert "changed" in verdict.message
    assert "lost 11 % of its pace" in verdict.message


@pytest.mark.parametrize(
    ("metric", "usual", "share", "named"),
    [
        ("cpu_system_ratio", 0.044, 0.7, {"m4"}),
        ("cpu_system_ratio", 0.014, 0.7, set()),
        ("cpu_system_ratio", 0.044, 0.97, set()),
        ("cpu_utilization_ratio", 0.11, 0.72, set()),
        ("cpu_utilization_ratio", 0.34, 0.71, {"m4"}),
        ("network_receive_bytes_total", 6e6, 0.7, set()),
    ],
)
def test_processors_at_other_work_since_the_task_lost_much_of_its_pace_are_the_cause(
    memory: Any, metric: str, usual: float, share: float, named: set[str]
) -> None:
    """Twice the time in the kernel since a loss of 30 % tells enough; since one of 3 %, or twice the traffic, not.

    Nor does twice of little. So does twice the time of processors, unless more than half of it is left.
    """

    def kernel(found: dict[str, np.ndarray]) -> None:
        key = f"host.{metric}"
        found[key] = usual * (1 + 0.02 * np.random.default_rng(5).normal(0, 1, (STEPS, MACHINES)))
        found[key][ONSET:, 4] *= 2
        slower(found, share)

    said, _ = watch(memory, tables(training(kernel)))
    assert {verdict.machine for verdict in said} == named


def test_how_long_iterations_seem_to_a_rank_is_no_cause_of_their_length(memory: Any) -> None:
    """An iteration ends for all when it does for the last: one rank that reads 43 s in place of 41 s holds up none."""

    def longer(found: dict[str, np.ndarray]) -> None:
        found["nccl.iteration_seconds"] = 41 + 0.3 * np.random.default_rng(53).normal(0, 1, (STEPS, MACHINES))
        found["nccl.iteration_seconds"][ONSET:, 3] += 2.1
        slower(found, 0.94)

    assert watch(memory, tables(training(longer)))[0] == []


@pytest.mark.parametrize("step_s", [1, 11])
def test_a_port_that_has_to_send_less_since_the_task_lost_its_pace_is_the_cause(memory: Any, step_s: int) -> None:
    """Notifications alone are of other ports; since a loss of 20 %, on one port alone, they show which is slow.

    Readings each 11 s show it as well.
    """

    def held_back(found: dict[str, np.ndarray]) -> None:
        found["rdma.cnp_handled_total"] = 0.05 * step_s * np.random.default_rng(12).random((STEPS, MACHINES))
        found["rdma.cnp_handled_total"][ONSET:, 2] += 28 * step_s
        slower(found, 0.8)

    said, _ = watch(memory, tables(training(held_back), step_s=step_s))
    assert {(one.machine, one.metric) for one in said} == {("m2", "rdma.cnp_handled_total")}


def test_a_harmless_reading_does_not_hide_a_harmful_one(memory: Any) -> None:
    """A port of which packets overtake each other by thousands, a note, and that loses some for minutes, is named."""

    def loses(found: dict[str, np.ndarray]) -> None:
        for metric, rate in (("out_of_sequence_total", 7300.0), ("ack_timeouts_total", 6.0)):
            found[f"rdma.{metric}"] = np.zeros((STEPS, MACHINES))
            found[f"rdma.{metric}"][ONSET - 70 :, 4] = rate

    said, notes = watch(memory, tables(training(loses)))
    assert {(one.machine, one.metric) for one in said} == {("m4", "rdma.ack_timeouts_total")}
    assert "rdma.out_of_sequence_total" in {one.metric for one in notes}


@pytest.mark.parametrize(
    ("key", "share", "named"),
    [
        ("gpu.sm_active_ratio", 0.984, set()),
        ("gpu.sm_active_ratio", 0.966, {"m6"}),
        ("gpu.sm_active_ratio", 1.034, set()),
        ("gpu.tensor_active_ratio", 0.967, set()),
    ],
)
def test_a_gpu_at_work_a_little_less_than_its_peers_is_said_from_two_per_cent_on(
    memory: Any, key: str, share: float, named: set[str]
) -> None:
    """Its task loses 3 % of its pace as well: by the GPU that is active 3 % less, but not by one that is 1.6 % less,
    nor by one that is more, nor by one that uses its tensor cores less: an iteration uses them as much on each.
    """

    def dims(found: dict[str, np.ndarray]) -> None:
        for one in (key, "gpu.fp16_active_ratio"):
            found[one] = 0.61 * (1 + 0.001 * np.random.default_rng(15).normal(0, 1, (STEPS, MACHINES)))
            found[one][240:, 6] *= share
        slower(found, 0.97)
        found["gpu.fp16_active_ratio"][ONSET:] *= 0.97

    said, _ = watch(memory, tables(training(dims), step_s=5))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(
    ("lead_s", "restarts", "named"),
    [(7, False, {"m4"}), (1, False, set()), (STEPS, False, set()), (7, True, set())],
)
def test_of_a_task_that_ends_the_process_that_let_go_of_its_memory_first_has_crashed(
    memory: Any, lead_s: int, restarts: bool, named: set[str]
) -> None:
    """7 s before all others it crashed; 1 s before them the job was stopped; where none follows the task goes on.

    Of a GPU that is not read any more, as its agent restarts, nothing is said.
    """

    def ends(found: dict[str, np.ndarray]) -> None:
        found["gpu.memory_used_bytes"] = 58e9 + 2e7 * np.random.default_rng(16).normal(0, 1, (STEPS, MACHINES))
        found["gpu.memory_used_bytes"][ONSET : ONSET + 40, 4] = 0.6e9
        if ONSET + lead_s < STEPS:
            found["gpu.memory_used_bytes"][ONSET + lead_s : ONSET + 40] = 0.6e9
            for key, rest in (("tensor_active_ratio", 0.0), ("duty_cycle_ratio", 0.0), ("power_watts", 77.0)):
                found[f"gpu.{key}"][ONSET + lead_s : ONSET + 40] = rest

    away = {4: slice(ONSET + 2, ONSET + 60)} if restarts else None
    said, _ = watch(memory, tables(training(ends), away))
    crashed = [one for one in said if "before all others" in one.message]
    assert {one.machine for one in crashed} == named
    assert all(one.time - START <= (ONSET + lead_s + 2) * SECOND for one in crashed)


def test_a_fault_that_ends_is_no_finding(memory: Any) -> None:
    """A stray process is there from the first second; when it ends its GPU reads what its peers read: all is well."""

    def ends(found: dict[str, np.ndarray]) -> None:
        found["gpu.memory_used_bytes"] = 61e9 + 3e7 * np.random.default_rng(13).normal(0, 1, (STEPS, MACHINES))
        found["gpu.memory_used_bytes"][:ONSET, 5] += 18e9
        slower(found)

    said, notes = watch(memory, tables(training(ends)))
    assert [one for one in (*said, *notes) if one.time > START + ONSET * SECOND] == []


@pytest.mark.parametrize(
    ("metric", "more", "named"),
    [
        ("gpu.nvlink_transmit_bytes_total", 0.06, set()),
        ("gpu.nvlink_transmit_bytes_total", -0.06, set()),
        ("nccl.bytes_total", -0.06, set()),
    ],
)
def test_who_does_other_work_when_a_task_loses_pace_does_not_hold_it_up(
    memory: Any, metric: str, more: float, named: set[str]
) -> None:
    """6 % more bytes on one machine, or less, since a loss of 7 % are no cause of it: each iteration moves as many."""

    def sends(found: dict[str, np.ndarray]) -> None:
        slower(found)
        noise = 1 + 0.003 * np.random.default_rng(6).normal(0, 1, (STEPS, MACHINES))
        found[metric] = 9e9 * noise
        found[metric][ONSET:, 4] *= 1 + more

    said, _ = watch(memory, tables(training(sends)))
    assert {verdict.machine for verdict in said} == named


@pytest.mark.parametrize(("more", "named"), [(0.13, set()), (-0.13, {"m1"})])
def test_a_gpu_that_uses_more_of_its_tensor_cores_than_its_peers_does_no_harm(
    memory: Any, more: float, named: set[str]
) -> None:
    """An iteration uses as much on a slow GPU: one that reads more has another share, or a sensor that sticks."""

    def uses(found: dict[str, np.ndarray]) -> None:
        paced(found)
        slower(found)
        found["gpu.dram_active_ratio"][ONSET:] *= 0.93
        found["gpu.tensor_active_ratio"][ONSET:, 1] += more

    said, _ = watch(memory, tables(training(uses)))
    assert {verdict.machine for verdict in said} == named


def test_a_change_much_smaller_than_the_loss_of_pace_is_no_cause(memory: Any) -> None:
    """A GPU that is at work half a per cent less than its peers does not cost their task 11 %."""

    def slight(found: dict[str, np.ndarray]) -> None:
        found["gpu.sm_active_ratio"] = 0.8 + 0.0004 * np.random.default_rng(9).normal(0, 1, (STEPS, MACHINES))
        found["gpu.sm_active_ratio"][ONSET:, 4] -= 0.004
        slower(found, 0.89)

    assert watch(memory, tables(training(slight)))[0] == []


@pytest.mark.parametrize(("minutes", "named"), [(2, {"m2"}), (4, set())])
def test_a_gpu_with_less_to_do_than_all_others_for_minutes_is_what_they_wait_for(
    memory: Any, monkeypatch: pytest.MonkeyPatch, minutes: int, named: set[str]
) -> None:
    """Ranks that wait have NCCL's kernel on their GPU: 4 % of idle time on one machine alone is a late loader.

    It is not said before it has lasted for as long as is asked: here 170 s.
    """
    monkeypatch.setattr("detector.harm.effect.IDLES_NS", minutes * 60 * SECOND)

    def idles(found: dict[str, np.ndarray]) -> None:
        found["gpu.graphics_active_ratio"] = 0.96 + 0.002 * np.random.default_rng(4).normal(0, 1, (STEPS, MACHINES))
        for key in ("gpu.duty_cycle_ratio", "gpu.graphics_active_ratio"):
            found[key][ONSET + 40 :, 2] -= 0.04

    said, _ = watch(memory, tables(training(idles)))
    assert {verdict.machine for verdict in said} == named


@pytest.mark.parametrize(("gpus", "idle", "named"), [("012", 0.031, {"m5"}), ("0", 0.031, set()), ("0", 0.09, {"m5"})])
def test_a_little_less_work_of_one_gpu_alone_is_no_slow_host(
    memory: Any, gpus: str, idle: float, named: set[str]
) -> None:
    """A host that is late holds up all GPUs of its machine; one GPU is said that has 9 % less to do, not 3 %."""

    def idles(found: dict[str, np.ndarray]) -> None:
        found["gpu.duty_cycle_ratio"][ONSET:, 5] -= idle
        slower(found)

    each = []
    for gpu in "012":
        readings = tables(training(idles if gpu in gpus else slower, seed=73))
        name = pa.array([gpu] * readings["gpu"].num_rows)
        each.append(readings["gpu"].set_column(readings["gpu"].column_names.index("gpu"), "gpu", name))
    said, _ = watch(memory, readings | {"gpu": pa.concat_tables(each).sort_by("time")})
    assert {one.machine for one in said} == named


def test_what_did_no_harm_stays_a_note_when_the_time_before_it_is_forgotten(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that receives more than its peers, while its task goes on, is no fault after a quarter of an hour."""
    for module in ("pace", "judge"):
        monkeypatch.setattr(f"detector.harm.{module}.SPAN_NS", 130 * SECOND)

    def receives(found: dict[str, np.ndarray]) -> None:
        paced(found)
        found["rdma.receive_bytes_total"] = 4e9 * (1 + 0.02 * np.random.default_rng(8).normal(0, 1, (STEPS, MACHINES)))
        found["rdma.receive_bytes_total"][ONSET - 40 :, 3] *= 2.6

    said, notes = watch(memory, tables(training(receives)))
    assert said == []
    assert {(note.machine, note.metric) for note in notes} == {("m3", "rdma.receive_bytes_total")}


def test_a_gpu_of_which_one_counter_stands_at_zero_works(memory: Any) -> None:
    """A profiler that holds the counters of a GPU makes one reading 0 while its power is that of its peers."""

    def held(found: dict[str, np.ndarray]) -> None:
        paced(found)
        found["gpu.tensor_active_ratio"][ONSET:, 5] = 0.0

    assert watch(memory, tables(training(held)))[0] == []


def test_a_rank_that_writes_the_checkpoint_of_all_is_no_fault(memory: Any) -> None:
    """For 40 s the GPU of one machine idles while those of the others wait for it."""

    def writes(found: dict[str, np.ndarray]) -> None:
        pause = slice(ONSET, ONSET + 40)
        found["gpu.tensor_active_ratio"][pause] = 0.0
        found["gpu.power_watts"][pause] = 136 + np.random.default_rng(3).normal(0, 2, (40, MACHINES))
        found["gpu.duty_cycle_ratio"][pause, 1] = 0.31
        found["gpu.power_watts"][pause, 1] -= 25

    assert watch(memory, tables(training(writes)))[0] == []


@pytest.mark.parametrize(("metric", "named"), [("pfc_transmit_frames_total", {"m1"}), ("cnp_handled_total", set())])
def test_a_port_that_pauses_its_senders_is_slow_and_one_that_has_to_send_less_is_not(
    memory: Any, metric: str, named: set[str]
) -> None:
    """Minutes of thousands of pauses are a warning whatever the pace tells; notifications tell of other ports."""

    def throttled(found: dict[str, np.ndarray]) -> None:
        swings = np.random.default_rng(7).uniform(0.75, 1.25, STEPS // 30).repeat(30)[:, None]
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key] *= swings  # a loss of some per cent would not be seen
        found[f"rdma.{metric}"] = np.full((STEPS, MACHINES), 2.0)
        found[f"rdma.{metric}"][ONSET - 60 :, 1] += 6400

    said, _ = watch(memory, tables(training(throttled)))
    assert {(verdict.machine, verdict.device) for verdict in said} == {(name, "rdma:mlx5_0/1") for name in named}


@pytest.mark.parametrize(
    ("share", "received", "named"), [(0.968, 0.0, {"m1"}), (1.0, 0.0, set()), (0.967, 170.0, set())]
)
def test_a_port_that_is_held_back_for_minutes_while_its_task_loses_pace_is_slow(
    memory: Any, share: float, received: float, named: set[str]
) -> None:
    """Thousands of notifications on one port alone, and 3 % less pace since then: that port cannot send more.

    One that receives pause frames as well stands in a crowd.
    """

    def held_back(found: dict[str, np.ndarray]) -> None:
        found["rdma.cnp_handled_total"] = 0.04 * np.random.default_rng(12).random((STEPS, MACHINES))
        found["rdma.cnp_handled_total"][ONSET:, 1] += 5800
        found["rdma.pfc_receive_frames_total"] = 0.3 * np.random.default_rng(14).random((STEPS, MACHINES))
        found["rdma.pfc_receive_frames_total"][ONSET:, 1] += received
        slower(found, share)

    said, _ = watch(memory, tables(training(held_back), step_s=2))
    assert {(one.machine, one.metric) for one in said} == {(name, "rdma.cnp_handled_total") for name in named}


@pytest.mark.parametrize(
    ("metric", "rate", "lasts_s", "named"),
    [
        ("rdma.ack_timeouts_total", 4.0, 35, False),
        ("rdma.ack_timeouts_total", 4.0, STEPS, True),
        ("gpu.ecc_corrected_total", 19.0, 70, False),
        ("gpu.ecc_corrected_total", 4.3, STEPS, False),
        ("gpu.ecc_corrected_total", 17.0, STEPS, True),
    ],
)
def test_losses_are_a_warning_when_they_last(memory: Any, metric: str, rate: float, lasts_s: int, named: bool) -> None:
    """Minutes of lost acknowledgements, or of many corrected errors, are a failing part in a fast task too."""

    def loses(found: dict[str, np.ndarray]) -> None:
        found[metric] = np.zeros((STEPS, MACHINES))
        found[metric][ONSET - 60 : ONSET - 60 + lasts_s, 6] = rate

    said, _ = watch(memory, tables(training(loses)))
    assert {verdict.machine for verdict in said} == ({"m6"} if named else set())


def test_an_upload_of_two_machines_while_the_task_loses_pace_is_no_machine_s_fault(memory: Any) -> None:
    """What begins on two machines in the same seconds was planned; their GPUs do not wait more than others."""

    def uploads(found: dict[str, np.ndarray]) -> None:
        found["host.disk_write_bytes_total"][ONSET:, 2:4] += 8e8
        slower(found)

    assert watch(memory, tables(training(uploads)))[0] == []


def test_a_sensor_that_sticks_is_no_deviation(memory: Any) -> None:
    """One reading of a GPU repeats a high value for two minutes while the others of the same GPU go on."""

    def sticks(found: dict[str, np.ndarray]) -> None:
        found["gpu.tensor_active_ratio"][ONSET : ONSET + 140, 5] = 0.5108

    assert watch(memory, tables(training(sticks)))[0] == []


@pytest.mark.parametrize(("in_flight", "levels"), [(0.44, {"note"}), (0.31, {"warn"}), (None, {"note"})])
def test_a_gpu_that_always_clocks_lower_is_said_where_others_wait_for_it(
    memory: Any, in_flight: float | None, levels: set[str]
) -> None:
    """Chips differ: 12 % below its siblings is a note, unless it is in collectives for less time than they are."""
    second, machine, gpu = (index.reshape(-1) for index in np.indices((110, 4, 5)))
    slow, noise = (machine == 2) & (gpu == 1), np.random.default_rng(6).normal(0, 1, len(gpu))
    rows = {"time": START + second * SECOND, "machine": np.char.add("m", machine.astype(str)), "gpu": gpu.astype(str)}
    duty, clock = 0.95 + 0.003 * noise, np.where(slow, 1.67e9, 1.9e9)
    found = {"gpu": pa.table(rows | {"sm_clock_hertz": clock, "duty_cycle_ratio": duty})}
    if in_flight:
        rows |= {"slot": np.full(len(gpu), "0"), "comm": np.full(len(gpu), "feed"), "rank": 5.0 * machine + gpu}
        found["nccl"] = pa.table(rows | {"active_ratio": np.where(slow, in_flight, 0.43) + 0.002 * noise})
    detector = Detector()
    said = [one for one in judged(memory(found), detector, START - SECOND, LATEST) if one.level != "ok"]
    said += detector.state.incidents.take_notes()
    of_clock = [one for one in said if one.metric == "gpu.sm_clock_hertz"]
    assert {(one.machine, one.device) for one in of_clock} == {("m2", "gpu:1")}
    assert {one.level for one in of_clock} == levels


@pytest.mark.parametrize(("seconds", "more", "names"), [(41, 9e8, set()), (170, 9e8, {"m2"}), (170, -9e8, {"m2"})])
def test_a_burst_of_other_traffic_is_no_fault(memory: Any, seconds: int, more: float, names: set[str]) -> None:
    """More traffic on one port, while the task is slower, is said after a minute; less of it is said sooner."""

    def tested(found: dict[str, np.ndarray]) -> None:
        found["rdma.transmit_bytes_total"] = 2.4e9 + 1e7 * np.random.default_rng(29).normal(0, 1, (STEPS, MACHINES))
        for key in ("gpu.tensor_active_ratio", "gpu.power_watts"):
            found[key][ONSET : ONSET + seconds] *= 0.93
        found["rdma.transmit_bytes_total"][ONSET : ONSET + seconds, 2] += more

    said, _ = watch(memory, tables(training(tested)))
    assert {one.machine for one in said} == names


@pytest.mark.parametrize(("machines", "names"), [([2], {"m2"}), ([2, 4], set())])
def test_more_traffic_on_several_machines_is_that_of_the_task(
    memory: Any, machines: list[int], names: set[str]
) -> None:
    """One port that sends a third more while all lose pace carries other traffic; two of seven do as a load changes."""

    def carries(found: dict[str, np.ndarray]) -> None:
        found["rdma.transmit_bytes_total"] = 2.7e9 + 1e7 * np.random.default_rng(83).normal(0, 1, (STEPS, MACHINES))
        for at, machine in enumerate(machines):
            found["rdma.transmit_bytes_total"][ONSET:, machine] += 9e8 - 2e8 * at
        slower(found)

    detector = Detector(Config(common_cause_share=0.5))
    said = judged(memory(tables(training(carries))), detector, START - SECOND, LATEST)
    assert {one.machine for one in said if one.level != "ok"} == names


@pytest.mark.parametrize(("more", "names"), [(17.0, {"m4"}), (-17.0, set())])
def test_a_device_that_is_cooler_than_its_peers_is_none_the_worse(memory: Any, more: float, names: set[str]) -> None:
    """A temperature matters where it is high, while the task is slower since then."""

    def differs(found: dict[str, np.ndarray]) -> None:
        found["gpu.temperature_celsius"] = 53 + 0.4 * np.random.default_rng(37).normal(0, 1, (STEPS, MACHINES))
        slower(found)
        found["gpu.temperature_celsius"][ONSET:, 4] += more

    said, _ = watch(memory, tables(training(differs)))
    assert {one.machine for one in said} == names


@pytest.mark.parametrize(("clock", "named"), [(1.0, set()), (0.96, {"m6"})])
def test_throttled_time_is_said_where_the_clock_is_lower_too(memory: Any, clock: float, named: set[str]) -> None:
    """A GPU at its power limit that clocks as its peers do delays no other."""

    def limited(found: dict[str, np.ndarray]) -> None:
        found["gpu.sm_clock_hertz"] = 1.83e9 + 4e6 * np.random.default_rng(23).normal(0, 1, (STEPS, MACHINES))
        found["gpu.sm_clock_hertz"][ONSET:, 6] *= clock
        found["gpu.throttle_power_seconds_total"] = np.zeros((STEPS, MACHINES))
        found["gpu.throttle_power_seconds_total"][ONSET:, 6] = 0.29

    said, _ = watch(memory, tables(training(limited)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(
    ("metric", "more", "in_flight", "named"),
    [
        ("host.memory_pressure_ratio", 0.37, 0.44, {"m1", "m5"}),
        ("host.memory_pressure_ratio", 0.37, 0.63, {"m1"}),
        ("gpu.remapped_rows", 1.0, 0.44, {"m1"}),
    ],
)
def test_a_second_fault_is_said_where_its_ranks_come_late_too(
    memory: Any, metric: str, more: float, in_flight: float, named: set[str]
) -> None:
    """While a GPU at half its clock holds up the task, another's memory pressure costs nothing that the pace shows.

    A row of memory that was remapped is mended, and costs nothing.
    """

    def both(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(17).normal(0, 1, (3, STEPS, MACHINES))
        found["gpu.sm_clock_hertz"] = 1.75e9 + 3e6 * noise[0]
        found["nccl.active_ratio"] = 0.42 + 0.006 * noise[1]
        found["host.memory_pressure_ratio"] = np.abs(0.004 * noise[2])
        for key in ("gpu.power_watts", "gpu.tensor_active_ratio"):
            found[key][ONSET:] *= 0.7
        found["gpu.sm_clock_hertz"][ONSET:, 1] *= 0.5
        found["nccl.active_ratio"][ONSET:] += 0.21
        found["nccl.active_ratio"][ONSET:, 1] -= 0.44
        found[metric][ONSET + 9 :, 5] += more
        found["nccl.active_ratio"][ONSET + 9 :, 5] += in_flight - 0.63

    said, _ = watch(memory, tables(training(both)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("machine", "named"), [(3, {"m1", "m3"}), (1, {"m1"})])
def test_what_changes_when_a_task_with_a_fault_loses_more_of_its_pace_is_a_second_cause(
    memory: Any, machine: int, named: set[str]
) -> None:
    """Three minutes after a GPU clocks lower, a port pauses its senders, here or elsewhere, as 11 % more are lost."""

    def both(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(19).normal(0, 1, (STEPS, MACHINES))
        found["gpu.sm_clock_hertz"] = 1.76e9 + 4e6 * noise
        for key in ("gpu.power_watts", "gpu.tensor_active_ratio"):
            found[key][145:] *= 0.82
            found[key][325:] *= 0.89
        found["gpu.sm_clock_hertz"][145:, 1] *= 0.8
        found["rdma.pfc_transmit_frames_total"][325:, machine] += 43

    said, _ = watch(memory, tables(training(both)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("waits", "named"), [(0.13, {"m4"}), (0.02, set())])
def test_a_gpu_that_waits_in_one_reading_of_each_long_iteration_is_what_others_wait_for(
    memory: Any, waits: float, named: set[str]
) -> None:
    """Iterations take four readings: the one in which all wait for a moment is no error of a sensor."""

    def late(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(29).normal(0, 0.001, (STEPS, MACHINES))
        ends = (np.arange(STEPS) % 4 == 3)[:, None]
        found["gpu.duty_cycle_ratio"] = 0.986 - 0.09 * ends + noise
        found["gpu.duty_cycle_ratio"][ONSET:, 4:5] -= waits * ends[ONSET:]

    said, _ = watch(memory, tables(training(late), step_s=5))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("falls_to", "named"), [(1.6, set()), (0.3, {"m3"})])
def test_a_port_that_still_carries_more_than_its_peers_holds_up_none(
    memory: Any, falls_to: float, named: set[str]
) -> None:
    """A port that storage uses too carries 2.7 times as much, then less of that; only one that carries less is slow."""

    def stores(found: dict[str, np.ndarray]) -> None:
        del found["gpu.tensor_active_ratio"]
        noise = np.random.default_rng(43).normal(0, 1, (2, STEPS, MACHINES))
        found["rdma.transmit_bytes_total"] = 4.1e9 * (1 + 0.01 * noise[0])
        found["rdma.transmit_bytes_total"][:ONSET, 3] *= 2.7
        found["rdma.transmit_bytes_total"][ONSET:, 3] *= falls_to

    said, _ = watch(memory, tables(training(stores)))
    assert {one.machine for one in said} == named


@pytest.mark.parametrize(("metric", "times"), [("gpu.pcie_receive_bytes_total", 5.3), ("gpu.tensor_active_ratio", 1.4)])
def test_a_machine_that_does_more_work_holds_up_none(memory: Any, metric: str, times: float) -> None:
    """An evaluator reads more over PCIe, and computes more, than its peers: it is noted, if at all."""

    def evaluates(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(47).normal(0, 1, (STEPS, MACHINES))
        found["gpu.pcie_receive_bytes_total"] = 2.3e9 * (1 + 0.02 * noise)
        found[metric][ONSET:, 3] *= times

    said, _ = watch(memory, tables(training(evaluates)))
    assert said == []


@pytest.mark.parametrize(("left", "named"), [(0.84, set()), (0.07, {"m2"})])
def test_a_gpu_with_a_little_less_memory_in_use_is_not_what_a_task_waits_for(
    memory: Any, left: float, named: set[str]
) -> None:
    """The task stands: a rank that still loads has less in use than others; one without its process has none."""

    def stands(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(61).normal(0, 1, (2, STEPS, MACHINES))
        found["gpu.memory_used_bytes"] = 57e9 + 2e7 * noise[0]
        found["gpu.memory_used_bytes"][ONSET:, 2] *= left
        found["gpu.tensor_active_ratio"][ONSET:] = 0.0
        found["gpu.power_watts"][ONSET:] = 340 + 2 * noise[1][ONSET:]

    said, _ = watch(memory, tables(training(stands)))
    assert {one.machine for one in said if one.machine != one.task} == named


def test_corrected_errors_are_a_note_though_the_task_loses_pace_with_them(memory: Any) -> None:
    """Two errors a second that ECC corrects cost no time: a tenth of the pace is lost by something else."""

    def corrects(found: dict[str, np.ndarray]) -> None:
        found["gpu.ecc_corrected_total"] = np.zeros((STEPS, MACHINES))
        found["gpu.ecc_corrected_total"][ONSET:, 2] = 2.0
        paced(found)
        slower(found, 0.9)
        found["gpu.dram_active_ratio"][ONSET:] *= 0.9

    said, notes = watch(memory, tables(training(corrects)))
    assert said == []
    assert {one.metric for one in notes if one.machine == "m2"} == {"gpu.ecc_corrected_total"}


def test_a_machine_that_is_like_its_peers_after_its_fault_is_not_named_for_that(memory: Any) -> None:
    """Lanes are lost from the first reading on, and its program waits for less than all others; then as they do."""

    def recovers(found: dict[str, np.ndarray]) -> None:
        noise = np.random.default_rng(83).normal(0, 1, (STEPS, MACHINES))
        found["gpu.nvlink_links_up"] = np.full((STEPS, MACHINES), 18.0)
        found["process.cpu_wait_seconds_total"] = 0.43 + 0.004 * noise
        found["gpu.nvlink_links_up"][:ONSET, 3] = 16.0
        found["process.cpu_wait_seconds_total"][:ONSET, 3] = 0.06 + 0.004 * noise[:ONSET, 3]
        for key in ("gpu.power_watts", "gpu.tensor_active_ratio"):
            found[key][:ONSET] *= 0.7

    said = judged(memory(tables(training(recovers))), Detector(), START - SECOND, LATEST)
    assert [(one.machine, one.metric) for one in said if one.level != "ok"] == [("m3", "gpu.nvlink_links_up")]
