"""What every method and every rule must do; a new one is tested by being registered."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.pipeline import METHODS, read_rows
from detector.evaluation.run import NAMES, OURS, methods_of
from detector.methods.contract import Method
from detector.methods.evidence.rules import RULES, Rule, in_words, state_tables
from detector.model.verdict import RANK, Finding
from detector.timeseries.rows import Rows, rows_of
from detector.topology.tasks import Tasks
from store.schema.catalogue import METRICS
from store.schema.time import NEVER, SECOND
from tests.detector.conftest import Memory

START, STEPS, MACHINES = 1_700_000_000 * SECOND, 170, 6
Make = Callable[[Config], Method]
ALL: dict[str, Make] = {method.__name__: method for method in METHODS}  # type: ignore[attr-defined]
ALL |= {name: methods_of(name)[0] for name in NAMES if name != OURS}
EACH = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def readings(order: np.ndarray, columns: tuple[str, ...] = ("power_watts", "temperature_celsius")) -> pa.Table:
    """Two metrics of a GPU a machine, the machines of each step in this order; from step 70 on `m4` is far off."""
    rng = np.random.default_rng(5)
    values = {name: 300 + rng.normal(0, 2, (STEPS, MACHINES)) for name in columns}
    for found in values.values():
        found[70:, 4] -= 120
    step, at = (index.reshape(-1) for index in np.indices((STEPS, MACHINES)))
    machine = order[at]
    table = {"time": START + step * SECOND, "machine": np.char.add("m", machine.astype(str)), "gpu": ["0"] * len(at)}
    return pa.table(table | {name: found[step, machine] for name, found in values.items()})


def steps(store: Any, skip: frozenset[int] = frozenset()) -> Iterator[tuple[int, dict[str, Rows]]]:
    """The rows of each second; those of some steps are missing."""
    for step in range(STEPS):
        now = START + step * SECOND
        yield now, read_rows(store, now - SECOND, now) if step not in skip else {}


def run(method: Method, tasks: Tasks, found: Iterator[tuple[int, dict[str, Rows]]]) -> list[tuple[int, Finding]]:
    """All findings with the time of their step."""
    out = []
    for now, rows in found:
        for new in rows.values():
            tasks.feed(new)
        tasks.turn(now)
        out += [(now, one) for one in method.annotate(method.step(now, rows, tasks))]
    return out


def fleet(memory: Any, order: Any = None, **more: pa.Table) -> Any:
    """A store with such readings of a named task."""
    names = [f"m{number}" for number in range(MACHINES)]
    task = pa.table({"time": [START] * MACHINES, "machine": names, "task": ["t7"] * MACHINES})
    order = np.arange(MACHINES) if order is None else order
    return memory({"gpu": readings(order), "task": task, **more})


@cache
def ended(make: Make) -> tuple[Method, Tasks, list[tuple[int, Finding]]]:
    """A method, the tasks and all findings at the end of a plain fleet's readings; a test that goes on copies them."""
    method, tasks = make(Config()), Tasks()
    return method, tasks, run(method, tasks, steps(fleet(Memory)))


def plain(found: list[tuple[int, Finding]]) -> list[tuple[Any, ...]]:
    """What findings say, without the last digits of their numbers."""
    return sorted((now, one.verdict.machine, one.verdict.metric, round(one.evidence, 4)) for now, one in found)


@EACH
def test_without_rows_a_method_finds_nothing(make: Make) -> None:
    """A step without a row, or with tables that have none, finds nothing and raises nothing."""
    method, tasks = make(Config()), Tasks()
    empty = rows_of("gpu", readings(np.arange(MACHINES)).slice(0, 0))
    assert [method.step(START + at * SECOND, rows, tasks) for at, rows in enumerate(({}, {"gpu": empty}))] == [[], []]


@EACH
def test_findings_are_well_formed(make: Make) -> None:
    """A finding names a machine of the task, a known level, one line of text, an onset in the past, evidence >= 0."""
    for now, one in ended(make)[2]:
        verdict = one.verdict
        assert verdict.time == now
        assert verdict.machine in {f"m{number}" for number in range(MACHINES)}
        assert (verdict.task, verdict.level in RANK, verdict.since <= now) == ("t7", True, True)
        assert np.isfinite([one.evidence, verdict.score]).all()
        assert one.evidence >= 0
        assert verdict.message.isprintable()
        assert "." in verdict.metric


@EACH
def test_the_order_of_machines_is_of_no_account(make: Make, memory: Any) -> None:
    """The rows of one time in another order lead to the same findings."""
    other = run(make(Config()), Tasks(), steps(fleet(memory, np.array([3, 0, 5, 4, 1, 2]))))
    assert plain(ended(make)[2]) == plain(other)


@EACH
def test_a_method_is_its_state(make: Make, memory: Any) -> None:
    """Copied in the middle, a method finds what the one without a break finds."""
    method, tasks, half = make(Config()), Tasks(), 85
    every = list(steps(fleet(memory)))
    before = run(method, tasks, iter(every[:half]))
    again, tasks_again = deepcopy((method, tasks))
    assert plain(before + run(again, tasks_again, iter(every[half:]))) == plain(ended(make)[2])


@EACH
def test_gaps_name_no_machine(make: Make, memory: Any) -> None:
    """Steps without any row, and columns and tables that are not known, name no healthy machine."""
    odd = pa.table({"time": [START + 9 * SECOND], "machine": ["m1"], "lane": ["x"], "height_metres": [7.5]})
    gaps = frozenset({20, 21, 55, 56, 57})
    found = run(make(Config()), Tasks(), steps(fleet(memory, novel=odd), gaps))
    assert {one.verdict.machine for _, one in found} <= {"m4"}


@pytest.mark.parametrize("make", METHODS)
def test_what_is_evicted_leaves_no_name(make: Make) -> None:
    """After the eviction of all that was read no machine's name is left in the state, and the next step works."""
    method, tasks, _ = deepcopy(ended(make))
    method.evict(-NEVER, tasks)
    assert b"m3" not in pickle.dumps(method)
    assert method.step(START + STEPS * SECOND, {}, tasks) == []


@EACH
def test_evidence_is_by_machine(make: Make) -> None:
    """Evidence and excursions are of machines of the fleet, finite and in multiples of the threshold."""
    method = ended(make)[0]
    assert set(method.evidence()) <= {f"m{number}" for number in range(MACHINES)}
    assert all(0 <= value < 100 for value in method.evidence().values())
    for one in method.excursions():
        assert len(one.machine) == len(one.evidence)
        assert (one.evidence >= 0).all()
        assert max([*one.machine, *one.judged], default=-1) < one.machines


def test_one_method_at_least_finds_the_fault() -> None:
    """The readings of these tests have a fault: without findings most of the tests above would show nothing."""
    found = {name for name, make in ALL.items() if ended(make)[2]}
    assert "Peers" in found


EVERY_RULE = [rule for rules in RULES.values() for rule in rules]


def states_of(rule: Rule, value: float) -> Any:
    """The states of a rule's table: two devices on each of six machines, all columns with the same value."""
    states = state_tables()[rule.table]
    key, device = {
        "gpu": ("gpu", ("0", "1")),
        "rdma": ("port", ("mlx5_0/1", "mlx5_1/1")),
        "nvswitch": ("switch", ("4", "5")),
        "source": ("source", ("gpu", "rdma")),
    }[rule.table]
    columns: Mapping[str, Any] = {name: [value] * 12 for name in states.columns}
    machines = [f"m{number // 2}" for number in range(12)]
    states.feed(rows_of(rule.table, pa.table({"time": [START] * 12, "machine": machines, key: device * 6, **columns})))
    tasks = Tasks()
    tasks.feed(rows_of("task", pa.table({"time": [START] * 12, "machine": machines, "task": ["t7"] * 12})))
    states.assign_tasks(tasks)
    return states


@pytest.mark.parametrize("rule", EVERY_RULE, ids=lambda rule: f"{rule.table}.{rule.column}-{rule.test.__name__}")
def test_every_rule(rule: Rule) -> None:
    """A rule reads a column of the catalogue, finds nothing where nothing is known or all is 0, and has its words."""
    assert f"{rule.table}.{rule.column}" in METRICS
    assert rule.assert_after_s >= 0 <= rule.clear_after_s
    assert rule.evidence > 0
    for value in (np.nan, 0.0):
        states = states_of(rule, value)
        assert not rule.test(states, rule.column, START)[: len(states.entities)].any()
    assert in_words(rule, states_of(rule, 3.0), 5, START, Counter()).startswith("m2 ")
