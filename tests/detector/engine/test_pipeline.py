"""The whole detector: it never looks ahead, can be interrupted, and takes tables as they come."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import Detector, State, judge, read_rows, replay, walk
from detector.model.verdict import Verdict
from detector.service.snapshot import dump, restore
from emulator.simulation.simulate import simulate
from tests.detector.conftest import Memory

SECOND, START, MACHINES = 10**9, 1_700_000_000 * 10**9, 6
Make = Callable[..., pa.Table]


@pytest.fixture(scope="module")
def recording() -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """Five minutes of six machines, one GPU of which grows slow."""
    tables, labels = simulate(machines=MACHINES, minutes=5, fault="slow_gpu", seed=5, gpus=2)
    return {name: pa.table(columns) for name, columns in tables.items()}, labels


@pytest.fixture(scope="module")
def whole(recording: Any) -> list[Verdict]:
    """All verdicts of that recording."""
    return list(replay(Memory(recording[0])))


def test_the_right_device_is_named_soon_and_alone(recording: Any, whole: list[Verdict]) -> None:
    """In a simulated fleet the slow GPU, and nothing else, is named soon, though its task has just begun again."""
    fault = recording[1]["faults"][0]
    said = [v for v in whole if v.level != "ok"]
    assert {(v.machine, v.device) for v in said} == {(fault["machine"], fault["device"])}
    assert fault["start"] < said[0].time < fault["start"] + 40 * SECOND
    assert {v.task for v in said} == {"pretrain"}


@pytest.mark.parametrize("fault", ["slow_link", "optics_error"])
def test_the_port_is_named_where_the_port_is_at_fault(memory: Any, fault: str) -> None:
    """Where a port slows its rank, the verdict names the port and compares the port's state with its peers'."""
    tables, labels = simulate(machines=6, minutes=5, fault=fault, seed=8, gpus=2)
    made = {name: pa.table(columns) for name, columns in tables.items()}
    first = next(replay(memory(made)))
    label = labels["faults"][0]
    assert (first.machine, first.device) == (label["machine"], label["device"])
    named = rf"port {label['device'].removeprefix('rdma:')}: [^;.]+ .+ \(median of 11 peers: "
    assert re.search(named, first.message)
    assert ".;" not in first.message


@pytest.mark.parametrize(("faults", "seed"), [("slow_gpu,memory_pressure", 12), ("gc_pauses,packet_loss", 13)])
def test_two_faults_at_once_are_both_named(memory: Any, faults: str, seed: int) -> None:
    """Two machines that fail within a minute are both named, with their devices; those that wait for them are not.

    A fault that does not slow the task further while the other's does is a note.
    """
    tables, labels = simulate(machines=6, minutes=6, fault=faults, seed=seed, gpus=2)
    detector = Detector()
    made = {name: pa.table(columns) for name, columns in tables.items()}
    said = {(v.machine, v.device) for v in judge(memory(made), detector) if v.level != "ok"}
    noted = {(note.machine, note.device) for note in detector.state.incidents.take_notes()}
    faulty = {(f["machine"], f["device"]) for f in labels["faults"]}
    assert said
    assert said <= faulty <= said | noted


def test_replay_never_looks_ahead(memory: Any, recording: Any, whole: list[Verdict]) -> None:
    """With the future cut off, the verdicts until then are the same."""
    store = memory(recording[0])
    assert whole
    for cut in {whole[0].time, whole[-1].time}:
        assert [v for v in replay(store.until(cut)) if v.time <= cut] == [v for v in whole if v.time <= cut]


def test_state_can_be_saved_and_restored(memory: Any, recording: Any) -> None:
    """A detector that goes on from a saved state says what an uninterrupted one says."""
    store = memory(recording[0])
    start, end = store.span(0)
    half = start + (end - start) // 3

    def run(detector: Detector, first: int, last: int) -> list[Verdict]:
        said = []
        for now in range(first, last, SECOND):
            said += detector.step(now, read_rows(store, now - SECOND, now))
        return said

    whole = Detector()
    before = run(whole, start, half)
    saved, _ = restore(dump(whole.state, half), whole.config)
    next_ = range(start, half, SECOND)[-1] + SECOND
    assert run(whole, next_, end) == run(Detector(state=saved), next_, end) != []
    assert before == []


def test_only_one_task_is_judged(memory: Any, recording: Any) -> None:
    """`task` and `machines` limit what is judged."""
    tables, labels = recording
    culprit = labels["faults"][0]["machine"]
    store = memory(tables)
    assert list(replay(store.until(store.span(0)[0] + 60 * SECOND), task="another")) == []
    others = [f"m{n:04d}" for n in range(MACHINES) if f"m{n:04d}" != culprit]
    said = list(replay(store, machines=others))  # some of them wait for one that is not looked at
    assert all(v.machine in others and v.level != "crit" for v in said)


def test_tasks_do_not_blame_each_other(memory: Any, fleet: Make) -> None:
    """Two tasks of different load are two groups of peers."""

    def bend(values: np.ndarray) -> None:
        values[150:, 4:] += 60

    odd = fleet("load", machines=8, bend=bend)
    rows = {"time": odd["time"][:8], "machine": odd["machine"][:8], "task": ["a"] * 4 + ["b"] * 4}
    assert list(replay(memory({"odd": odd, "task": pa.table(rows)}))) == []


def test_odd_recordings_are_survived(memory: Any) -> None:
    """Empty tables, missing columns, nulls, single rows and one machine say nothing and break nothing."""
    nothing = pa.table({"time": pa.array([], pa.int64()), "machine": pa.array([], pa.string())})
    null = pa.table({"time": [5, 6], "machine": ["a", "b"], "gpu": [None, "0"], "power_watts": [None, 3.0]})
    event = pa.table({"time": [7], "machine": ["a"], "code": ["xid:79"]})
    nccl = pa.table({"time": [8], "machine": ["a"], "comm": [None], "operations_total": [3]})
    for tables in ({}, {"host": nothing}, {"gpu": null}, {"event": event}, {"nccl": nccl}, {"gpu": null, "nccl": nccl}):
        assert list(replay(memory(tables))) == []


def test_empty_stretches_are_skipped(memory: Any, fleet: Make) -> None:
    """Clocks that are decades off, early or late, cost no time and change no verdict of the time between."""

    def slow(values: np.ndarray) -> None:
        values[150:, 2] *= 0.5

    odd = fleet(bend=slow)
    ends = pa.table({"time": [7, 2**63 - 9], "machine": ["m1", "m4"], "load": [1.0, 3.0]})
    alone, among = (list(replay(memory({"odd": table}))) for table in (odd, pa.concat_tables([ends, odd])))
    assert [(v.machine, v.metric, v.level) for v in alone] == [("m2", "odd.load", "crit")]
    assert among[:1] == alone
    assert [(v.machine, v.level) for v in among[1:]] == [("m2", "ok")]


def test_empty_years_are_skipped_though_something_stays_open(memory: Any, fleet: Make) -> None:
    """A GPU that is lost stays lost; a clock that is years ahead does not have them replayed second by second."""
    lost = {"time": [START + 40 * SECOND], "machine": ["m2"], "source": ["kernel_log"], "code": ["xid:79"]}
    event = pa.table({**lost, "device": ["gpu:1"], "severity": ["crit"], "message": ["fell off the bus"]})
    ahead = pa.table({"time": [START + 10**17], "machine": ["m4"], "load": [3.0]})
    store, detector = memory({"odd": pa.concat_tables([fleet(steps=90), ahead]), "event": event}), Detector()
    steps = [len(detector.step(now, rows)) for now, rows in walk(store, detector.state.incidents.settled)]
    assert sum(steps) == 1
    assert len(steps) < 2000


def test_nothing_grows_with_time(memory: Any, fleet: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered depends on the machines, not on how long they ran, once the last minutes are full."""
    monkeypatch.setattr("detector.harm.pace.SPAN_NS", 120 * SECOND)
    monkeypatch.setattr("detector.harm.judge.SPAN_NS", 120 * SECOND)
    monkeypatch.setattr("detector.harm.search.readings._ROWS", 8)

    def size(steps: int) -> int:
        store, detector = memory({"odd": fleet(steps=steps)}), Detector(state=State())
        start, end = store.span(0)
        for now in range(start, end, SECOND):
            detector.step(now, read_rows(store, now - SECOND, now))
        return len(dump(detector.state, end))

    assert size(400) <= size(200) + 100
