"""Liveness on rows: the usual period, the habit of silence, who is silent and how far, and the laws of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.config import Config
from detector.methods.evidence.heartbeats import SHARED, missed_heartbeats
from detector.methods.evidence.liveness import Liveness
from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import SECOND

START, MACHINES = 1_700_000_000 * SECOND, 7
CONFIG = Config()
NAMES = tuple(f"m{number}" for number in range(MACHINES))
TASKS = Tasks(said=dict.fromkeys(NAMES, "run"), seen=set(NAMES))


def rows(second: float, machines: list[int], start: int = START) -> Rows:
    """One row of `host` for each of these machines."""
    idents = tuple((NAMES[machine],) for machine in machines)
    time = np.full(len(machines), start + int(second * SECOND))
    return Rows("host", time, np.arange(len(machines)), idents, (), ("load",), np.ones((len(machines), 1)), {})


def read(
    seconds: int,
    gone: dict[int, tuple[int, int]] | None = None,
    step_s: int = 1,
    order: list[int] | None = None,
    start: int = START,
) -> Liveness:
    """All machines are read every `step_s`, in this order; machine -> the seconds in which it is not."""
    liveness = Liveness()
    for second in range(0, seconds, step_s):
        there = [
            machine
            for machine in order or range(MACHINES)
            if not (gone and machine in gone and gone[machine][0] <= second < gone[machine][1])
        ]
        liveness.feed(rows(second, there, start), CONFIG.silent_seconds)
    return liveness


def silent(liveness: Liveness, second: float, start: int = START) -> list[Verdict]:
    """What is said at that second."""
    return missed_heartbeats(liveness, start + int(second * SECOND), TASKS, CONFIG)


@pytest.mark.parametrize("step_s", [1, 3, 11])
def test_the_period_is_that_of_the_rows(step_s: int) -> None:
    """Rows at a fixed step have that period, and no machine has a habit of silence."""
    liveness = read(200, step_s=step_s)
    assert liveness.period[:MACHINES] == pytest.approx(np.full(MACHINES, float(step_s)))
    assert liveness.habit() == 0


@pytest.mark.parametrize(
    ("quiet_s", "level"), [(9.0, None), (11.0, "note"), (31.0, "warn"), (59.0, "warn"), (61.0, "crit")]
)
def test_the_score_is_the_silence_in_limits(quiet_s: float, level: str | None) -> None:
    """A silence is a note from 10 s on, a warning above the limit of 30 s and critical at twice it: a score of 2."""
    last = 99
    liveness = read(200, gone={4: (last + 1, 900)})
    for machine in range(MACHINES):
        if machine != 4:
            liveness.acknowledge(NAMES[machine], START + int((last + quiet_s) * SECOND))
    found = silent(liveness, last + quiet_s)
    assert [(one.machine, one.level, one.score) for one in found] == (
        [("m4", level, pytest.approx(quiet_s / CONFIG.silent_seconds))] if level else []
    )
    assert all(one.since == START + last * SECOND for one in found)


def test_a_habit_of_silence_is_halved_each_hour() -> None:
    """A fleet that was silent for 80 s has this habit afterwards, and half of it an hour later."""
    everyone = dict.fromkeys(range(MACHINES), (100, 180))
    liveness = read(185, gone=everyone)
    assert liveness.habit() == pytest.approx(81, rel=0.01)
    liveness.feed(rows(184 + 3600, [0]), CONFIG.silent_seconds)
    assert liveness.habit() == pytest.approx(81 / 2, rel=0.01)


@pytest.mark.parametrize(("many", "said"), [(1, "crit"), (2, "note"), (3, "note"), (4, None)])
def test_of_many_that_are_silent_none_is_named(many: int, said: str | None) -> None:
    """One of seven is named; two or three are a rack or its network, and noted; four are the store's."""
    gone = dict.fromkeys(range(2, 2 + many), (100, 900))
    found = silent(read(170, gone), 170)
    assert {(one.machine, one.level) for one in found} == {(f"m{at}", said) for at in gone if said}
    assert all((one.score == SHARED) == (one.level == "note") for one in found)


@pytest.mark.parametrize(("moved", "said"), [(107, ["m3"]), (93, [])])
def test_a_machine_that_a_scheduler_took_out_after_it_died_is_missed(moved: int, said: list[str]) -> None:
    """Taken out 7 s after its last reading it is missed in the task it had; before it, it was released."""
    tasks = Tasks(seen=set(NAMES))
    for second, machines, task in ((0, NAMES, "run"), (moved, NAMES[3:4], "idle")):
        idents = tuple((machine,) for machine in machines)
        count, names = len(machines), {"task": (np.zeros(len(machines), np.int64), [task])}
        time = np.full(count, START + second * SECOND)
        tasks.feed(Rows("task", time, np.arange(count), idents, (), (), np.zeros((count, 0)), names))
    found = missed_heartbeats(read(150, {3: (101, 900)}), START + 150 * SECOND, tasks, CONFIG)
    assert [(one.machine, one.task) for one in found] == [(machine, "run") for machine in said]


@pytest.mark.parametrize(
    ("fleet", "second", "said"),
    [(MACHINES, 287, [("m4", "crit")]), (MACHINES, 273, [("m4", "note")]), (3, 287, [])],
)
def test_other_machines_witness_the_silence_of_one_that_trains_alone(
    fleet: int, second: int, said: list[tuple[str, str]]
) -> None:
    """Each machine has a task of its own: that six others are read for three minutes shows that one is silent."""
    there = list(range(MACHINES - fleet, MACHINES))
    tasks = Tasks(said={NAMES[at]: f"run-{at}" for at in there}, seen={NAMES[at] for at in there})
    found = missed_heartbeats(read(second, {4: (101, 900)}, order=there), START + second * SECOND, tasks, CONFIG)
    assert [(one.machine, one.level, one.task) for one in found] == [(*one, "run-4") for one in said]


def gpus(second: int, there: list[int], start: int = START) -> Rows:
    """One row of `gpu` for each of these GPUs of m0 to m4, eight of each."""
    idents = tuple((NAMES[at // 8], str(at % 8)) for at in there)
    time = np.full(len(there), start + second * SECOND)
    return Rows("gpu", time, np.arange(len(there)), idents, ("gpu",), ("load",), np.ones((len(there), 1)), {})


@pytest.mark.parametrize(("ended", "alone"), [(False, False), (True, False), (False, True)])
def test_a_driver_that_stalls_is_no_fault_of_each_gpu(ended: bool, alone: bool) -> None:
    """All GPUs of m2 are silent for 50 s, and come back one by one: a clue, also on one that trains alone."""
    liveness = Liveness()
    for second in range(251):
        liveness.feed(rows(second, list(range(MACHINES))), CONFIG.silent_seconds)
        gone = set(range(16, 24)) if second >= 200 else set()
        gone -= set(range(16, 22)) if ended and second == 250 else set()
        liveness.feed(gpus(second, [at for at in range(40) if at not in gone]), CONFIG.silent_seconds)
    tasks = Tasks(said={name: f"run-{name}" if alone else "run" for name in NAMES}, seen=set(NAMES))
    found = missed_heartbeats(liveness, START + 250 * SECOND, tasks, CONFIG)
    assert {(one.machine, one.level) for one in found} == {("m2", "note")}
    assert {one.device for one in found} == {f"gpu:{at}" for at in range(6 if ended else 0, 8)}


@pytest.mark.parametrize(("restarted", "quiet_s", "said"), [(2, 43, True), (3, 43, False), (3, 91, True)])
def test_while_agents_restart_one_after_another_a_silence_has_to_be_longer(
    restarted: int, quiet_s: int, said: bool
) -> None:
    """Three agents were away for 83 s each: a fourth may be as long. Of two nothing is learned."""
    gone = {at: (30 + 90 * at, 113 + 90 * at) for at in range(restarted)} | {5: (400, 900)}
    assert bool(silent(read(400 + quiet_s, gone), 399 + quiet_s)) == said


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(MACHINES)), st.integers(0, MACHINES - 1), st.integers(-(10**6), 10**6))
def test_neither_order_nor_date_matters(order: list[int], machine: int, later_s: int) -> None:
    """Rows of one time in another order, on another day, name the same machine with the same score."""
    gone, start = {machine: (80, 900)}, START + later_s * SECOND
    (plain,), (other,) = silent(read(150, gone), 150), silent(read(150, gone, order=order, start=start), 150, start)
    assert (other.machine, other.level, other.score) == (plain.machine, plain.level, plain.score)
    assert other.since - plain.since == later_s * SECOND


@settings(max_examples=15, deadline=None)
@given(st.sets(st.tuples(st.integers(5, 140), st.integers(0, MACHINES - 1)), max_size=40))
def test_rows_that_are_missing_here_and_there_are_no_silence(missing: set[tuple[int, int]]) -> None:
    """Single rows that did not come name no machine."""
    liveness = Liveness()
    for second in range(150):
        there = [machine for machine in range(MACHINES) if (second, machine) not in missing]
        if there:
            liveness.feed(rows(second, there), CONFIG.silent_seconds)
    assert [one for one in silent(liveness, 149) if one.level != "note"] == []
