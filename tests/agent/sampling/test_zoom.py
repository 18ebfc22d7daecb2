"""Zoom: which requests are served, the most that they cost, and that other tables do not change."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest

from agent.config import AgentConfig
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Processes
from agent.sampling import loop
from agent.sampling.zoom import Zoom
from agent.sampling.zoom_bounds import APART_NS, MOST_S, PROFILE, STACKS, Budget, quick, refusal
from agent.stacks.rounds import StackRounds
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.signed import Signed, zoom_key
from store.sqlite.embedded import Embedded
from store.zoom_requests import FileZoomRequests, ZoomKey, ZoomRequest

SECOND = 10**9
CONFIG = AgentConfig(sources=("host", "gpu", "nccl", "probe"))


def order(now: int, **changed: Any) -> ZoomRequest:
    """One that is obeyed."""
    return replace(ZoomRequest(now - 3 * SECOND, "host", 19.0, now + 11 * SECOND), **changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"source": "nccl"}, "no source 'nccl' is read here that can be read faster"),
        ({"source": "stacks"}, "no source 'stacks' is read here"),
        ({"source": "rdma"}, "no source 'rdma' is read here"),
        ({"source": "../" * 99}, r"no source '\.\./"),
        ({"hertz": 1e9}, ""),  # it gets what is configured
        ({"hertz": -5.0}, "-5 readings a second are none"),
        ({"hertz": 0.0}, "0 readings a second"),
        ({"hertz": float("nan")}, "nan readings a second"),
        ({"time": 0}, r"it was given \d+ s ago"),
        ({"time": 5 * APART_NS}, "it was given -"),
        ({"until": 17}, "it is to last -"),
        ({"until": 2**62}, f"and not more than {MOST_S:g} are given"),
    ],
)
def test_what_is_obeyed(changed: dict[str, Any], said: str) -> None:
    """An order is anybody's who may write to the store: each part of it has bounds."""
    now = 2 * APART_NS
    found = refusal(order(now, **changed), CONFIG, now)
    assert re.search(said, found) if said else found == ""
    assert len(found) < 120


def test_a_budget_is_earned_back() -> None:
    """What is spent is granted again only as the hour goes on, and never more than the whole."""
    budget = Budget(90.0, 90.0, 1000.0)
    assert [budget.take(60.0, 1000.0), budget.take(60.0, 1000.0), budget.take(60.0, 1000.0)] == [60.0, 30.0, 0.0]
    assert budget.take(60.0, 1400.0) == pytest.approx(10.0)
    assert budget.take(500.0, 99_000.0) == 90.0
    assert budget.take(5.0, 98_000.0) == 0.0  # a clock that went back earns nothing


def test_rows_for_a_table_of_their_own() -> None:
    """Keys and judged readings, at their own time; no events, no other tables, no context."""
    row = {"gpu": "3", "power_watts": 371.5, "uuid": "GPU-1", "pcie_generation": 4.0}
    event = Sample("event", {"source": "gpu", "code": "xid:79"})
    (found,) = quick([Sample("gpu", row), event], "gpu", 77)
    assert (found.table, found.time) == ("gpu_zoom", 77)
    assert dict(found.values) == {"gpu": "3", "power_watts": 371.5, "pcie_generation": 4.0}


def test_rounds_of_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading begins a round of all training processes, five at most, and returns the one before."""
    process = Processes().find(os.getpid())
    assert process is not None
    living = {process.pid: TrainingProcess(process, "6")}
    training = SimpleNamespace(living=lambda now: living)
    source = StackRounds(training)  # type: ignore[arg-type]
    rows: list[Sample] = []
    deadline = time.monotonic() + 60
    while sum(row.values["round"] == 2.0 for row in rows) < 1:
        assert time.monotonic() < deadline
        rows += source.read(time.time_ns())
        time.sleep(0.05)
    source.close()
    assert [row.values["round"] for row in rows] == [1.0, 2.0]
    assert {(row.table, row.values["gpu"], row.values["pid"]) for row in rows} == {("stack", "6", process.pid)}
    assert [*quick(rows, STACKS, 7)] == rows
    monkeypatch.setattr("agent.stacks.rounds.MOST", 0)
    idle = StackRounds(training)  # type: ignore[arg-type]
    assert [idle.read(at) for at in (1, 2)] == [[], []]
    assert not idle._child.under_way


def test_an_order_for_stacks_lasts_longer() -> None:
    """Five rounds take longer than a zoom may, and are bounded all the same."""
    config, now = AgentConfig(), 2 * APART_NS
    for seconds, obeyed in ((75, True), (95, False)):
        one = order(now, source="stacks", hertz=0.1, until=now + seconds * SECOND)
        assert (refusal(one, config, now) == "") == obeyed
    assert "not more than 60 are given" in refusal(order(now, until=now + 75 * SECOND), config, now)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"begin": 0}, r"its window begins in -\d+ s"),
        ({"begin": 2**62}, r"its window begins in \d+ s"),
        ({"until": 17}, "its window is to last -"),
        ({"until": 2**62}, "1 to 60 are possible"),
        ({"hertz": 0.5}, "0.5 samples a second are too few"),
        ({"time": 3}, r"it was given \d+ s ago"),
    ],
)
def test_what_profile_is_obeyed(changed: dict[str, Any], said: str) -> None:
    """A window begins soon, lasts a minute at most, and is given only where the machine allows profiles."""
    now = 2 * APART_NS
    window = {"source": PROFILE, "hertz": 50.0, "begin": now + 9 * SECOND, "until": now + 29 * SECOND}
    one, config = order(now, **{**window, **changed}), AgentConfig(profile_seconds_per_hour=40.0)
    found = refusal(one, config, now)
    assert re.search(said, found) if said else found == ""
    assert "set agent.profile_seconds_per_hour" in refusal(one, AgentConfig(), now)


def test_a_window_has_all_its_seconds_or_none() -> None:
    """A budget that has less than a window leaves it whole for a shorter one."""
    budget = Budget(40.0, 40.0, 500.0)
    assert not budget.has(41.0, 500.0)
    assert [budget.take(30.0, 500.0), budget.has(11.0, 500.0), budget.has(10.0, 500.0)] == [30.0, False, True]


@dataclass
class Given:
    """Orders as they are put in, each given once; or a store that fails."""

    orders: list[ZoomRequest] = field(default_factory=list)
    error: str = ""
    every_s: float = 0.01
    key: Any = field(default_factory=lambda: SimpleNamespace(signed=lambda order: True))
    asked: threading.Event = field(default_factory=threading.Event)

    def read(self, after: int) -> list[ZoomRequest]:
        """What is later than `after`."""
        self.asked.set()
        if self.error:
            raise StoreError(self.error)
        found, self.orders = [one for one in self.orders if one.time > after], []
        return found

    def close(self) -> None:
        """Nothing to let go of."""


class Counter:
    """A source that counts its readings, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.times: list[int] = []
        self.error = error
        self.closed = threading.Event()

    def read(self, now: int) -> Iterable[Sample]:
        """One row a reading."""
        if self.error:
            raise self.error
        self.times.append(now)
        return [Sample("host", {"processes_running": float(len(self.times)), "cpu_utilization_ratio": 0.25})]

    def close(self) -> None:
        """Note it."""
        self.closed.set()


def looked(given: Given, source: Counter, until: Callable[[list[Sample]], bool], config: AgentConfig = CONFIG) -> Any:
    """All rows that a zoom gave until this holds of them."""
    opened: list[str] = []

    def open_source(name: str) -> Counter:
        opened.append(name)
        return source

    zoom, rows, deadline = Zoom(config, given, open_source), list[Sample](), time.monotonic() + 60
    try:
        while not until(rows):
            assert time.monotonic() < deadline, rows
            given.asked.wait(0.02)
            rows += zoom.take()
    finally:
        zoom.close()
    return rows, opened


def health(rows: list[Sample]) -> list[dict[str, Any]]:
    """What is said of the zoom itself."""
    return [dict(row.values) for row in rows if row.table == "source"]


def test_an_order_is_obeyed() -> None:
    """The source is opened again, its rows come in order of time, and the time is counted."""
    source = Counter()
    given = Given([order(time.time_ns() + SECOND, time=time.time_ns() + SECOND // 2)])
    rows, opened = looked(given, source, lambda rows: sum(row.table == "host_zoom" for row in rows) >= 5)
    closer = [row for row in rows if row.table == "host_zoom"]
    assert opened == ["host"]
    assert [row.time for row in closer] == source.times[: len(closer)]
    assert "cpu_utilization_ratio" in closer[0].values
    assert health(rows)[-1]["zoomed_seconds_total"] > 0
    assert source.closed.wait(10)


def test_a_spent_budget_is_said() -> None:
    """Then an order is refused and counted, and nothing is read."""
    config = AgentConfig(zoom_seconds_per_hour=0.0)
    source, given = Counter(), Given([order(time.time_ns(), time=time.time_ns() + SECOND)])
    rows, opened = looked(given, source, health_values, config)
    (values,) = health(rows)
    assert (opened, source.times, values["refused_total"], values["success"]) == ([], [], 1, 0.0)
    assert "the budget of 0 s an hour is spent" in values["error"]


def health_values(rows: list[Sample]) -> bool:
    """Whether anything was said of the zoom."""
    return bool(health(rows))


@pytest.mark.parametrize("broken", ["store", "source"])
def test_what_fails_harms_nothing(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    """A store that cannot be asked and a source that breaks are said and counted; the thread goes on."""
    caplog.set_level(logging.WARNING)
    source = Counter(OSError("gone") if broken == "source" else None)
    given = Given([order(time.time_ns(), time=time.time_ns() + SECOND)], "no answer" if broken == "store" else "")
    rows, _ = looked(given, source, health_values)
    values = health(rows)[0]
    assert values["failures_total"] >= 1
    assert {"store": "no answer", "source": "host: OSError: gone"}[broken] in values["error"]
    assert source.closed.is_set() == (broken == "source")
    assert sum("zoom: " in line and " times a second for " not in line for line in caplog.messages) == 1


def test_an_order_of_tomorrow_hides_none_of_today() -> None:
    """A time far ahead is refused, and what is ordered after it is still heard."""
    given, source = Given(), Counter()
    now = time.time_ns()
    given.orders = [order(now, time=now + 10**16), order(now, time=now + SECOND)]
    rows, opened = looked(given, source, lambda rows: any(row.table == "host_zoom" for row in rows))
    assert (opened, health(rows)[-1]["refused_total"]) == (["host"], 1)


@pytest.mark.parametrize("key", ["", "9" * 64])
def test_what_is_not_signed_is_refused_once(tmp_path: Path, key: str) -> None:
    """Requests that the detector has not signed, and all where no key is here, are counted and open no source."""
    given, now = Given(key=ZoomKey("m1", str(tmp_path / "key") if key else "")), time.time_ns()
    (tmp_path / "key").write_text(key)
    forged, polls = order(now, time=now + SECOND), iter(range(10**6))
    given.read = lambda after: [forged] if next(polls) >= 0 and forged.time > after else []  # type: ignore[method-assign]
    rows, opened = looked(given, Counter(), lambda rows: health_values(rows) and next(polls) > 4)
    assert (opened, [one["refused_total"] for one in health(rows)]) == ([], [1])
    words = "has not signed it" if key else "there is no key to check it with: give this machine what `peerwatch config"
    assert words in health(rows)[0]["error"]


def test_forged_requests_hide_none_that_is_signed() -> None:
    """A forged request later than a signed one does not make the agent pass over that."""
    now = time.time_ns()
    forged, signed = order(now, time=now + SECOND, source="gpu"), order(now, time=now + SECOND // 2)
    polls = iter([[forged], [forged, signed]])
    given = Given(key=SimpleNamespace(signed=lambda one: one is signed))
    given.read = lambda after: [one for one in next(polls, []) if one.time > after]  # type: ignore[method-assign]
    rows, opened = looked(given, Counter(), lambda rows: any(row.table == "host_zoom" for row in rows))
    assert (opened, health(rows)[-1]["refused_total"]) == (["host"], 1)


def refusals(store: Embedded) -> list[int]:
    """How many requests were refused, as the rows of `source` say one after another."""
    rows = store.read("source")
    said = rows.filter(pc.equal(rows["source"], "zoom")) if rows.num_rows else rows
    return said.sort_by("time").column("refused_total").to_pylist() if said.num_rows else []


def test_from_the_store_to_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running agent serves the signed one of two requests in the file that it writes to, and says so there."""
    monkeypatch.setattr(FileZoomRequests, "every_s", 0.05)
    config, store = AgentConfig(machine="m1", sources=("host",), period_seconds=0.25), Embedded(tmp_path / "s.db")
    stop = threading.Event()
    (tmp_path / "zoom.key").write_bytes(zoom_key(b"4" * 40, "m1"))
    requests = FileZoomRequests(tmp_path / "s.db", ZoomKey("m1", str(tmp_path / "zoom.key")))
    words = (config, store, stop, None, requests)
    agent = threading.Thread(target=loop.run, args=words)
    agent.start()
    try:
        deadline, given = time.monotonic() + 60, False
        while store.read("host_zoom").num_rows < 20 or not refusals(store).count(1):
            assert time.monotonic() < deadline
            if not given and (given := store.read("host").num_rows > 1):
                now = time.time_ns()
                request = ZoomRequest(now, "host", 20.0, now + 9 * SECOND)
                Signed(store, b"4" * 40).write([Batch("m1", now, (request.sample(),))])
                store.write([Batch("m1", now, (replace(request, time=now + 1).sample(),))])
            stop.wait(0.05)
    finally:
        stop.set()
        agent.join(30)
    closer = store.read("host_zoom").column("time").to_pylist()
    assert len(set(closer)) == len(closer)
    assert set(store.read("host_zoom").column("machine").to_pylist()) == {"m1"}
    assert refusals(store)[-1] == 1
    store.close()
