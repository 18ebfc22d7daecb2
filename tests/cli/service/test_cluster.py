"""The detector over a real Dask cluster: two processes, two tasks, and a worker that is killed."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

distributed = pytest.importorskip("distributed", reason="no Dask here: make install EXTRAS=cluster")

from detector.alerts.open import open_dispatcher  # noqa: E402
from detector.alerts.registry import AlertsConfig  # noqa: E402
from detector.config import Config  # noqa: E402
from detector.service import dask_cluster as cluster_module  # noqa: E402
from detector.service.dask_cluster import Coordinator, JudgeTask  # noqa: E402 - not without Dask
from store.influx.config import InfluxConfig  # noqa: E402
from store.schema.sample import Batch, Sample  # noqa: E402
from store.schema.time import SECOND  # noqa: E402
from store.sqlite.embedded import Embedded  # noqa: E402

START = 1_700_000_000 * SECOND
SLOW = {"b3": "blue", "g5": "green"}
MACHINES = {f"{task[0]}{n}": task for task in ("blue", "green") for n in range(8)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Embedded]:
    """Six minutes of two tasks of eight machines; after four the clock of one machine of each falls by a third."""
    generator = np.random.default_rng(29)
    place = Embedded(tmp_path / "s.db")
    for second in range(1, 361):
        clocks = dict(zip(MACHINES, 1.7e9 + generator.normal(0, 4e6, len(MACHINES)), strict=True))
        slow = {machine for machine in SLOW if second > 240}
        clocks |= {machine: clocks[machine] * 0.66 for machine in slow}
        at = START + second * SECOND
        place.write([Batch(machine, at, _samples(task, clocks[machine])) for machine, task in MACHINES.items()])
    yield place
    place.close()


def _samples(task: str, clock: float) -> tuple[Sample, ...]:
    return Sample("gpu", {"gpu": "0", "sm_clock_hertz": clock}), Sample("task", {"task": task})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers, a process each."""
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",  # any free port: another cluster may run on this machine
        worker_dashboard_address=None,
        silence_logs=logging.CRITICAL,
    ) as made:
        yield made


def test_a_worker_dies(store: Embedded, cluster: Any) -> None:
    """The detector names both slow machines once and no other, although the worker of one was killed."""
    order = JudgeTask(str(store.path), InfluxConfig(), Config(), "", frozenset(), START + 230 * SECOND)
    with distributed.Client(cluster, set_as_default=False) as client:
        coordinator = Coordinator(client, store, order)
        assert coordinator.step(START + 235 * SECOND) == []
        assert coordinator.machines() == frozenset(MACHINES)
        homes = {task: report.worker for task, report in coordinator.reports.items()}
        coordinator.step(START + 238 * SECOND)
        assert {
            task: report.worker for task, report in coordinator.reports.items()
        } == homes  # memories stay in their place
        os.kill(client.run(os.getpid)[homes["blue"]], signal.SIGKILL)
        named = coordinator.step(START + 355 * SECOND)
        assert {(one.task, one.machine, one.metric) for one in named} == {
            (task, machine, "gpu.sm_clock_hertz") for machine, task in SLOW.items()
        }
        assert coordinator.reports["blue"].worker != homes["blue"]
        again = Coordinator(client, store, order)  # a new coordinator says nothing twice
        assert again.step(START + 355 * SECOND) == []
    written = [(row["task"], row["machine"]) for row in store.read("verdict").to_pylist()]
    assert written == [(one.task, one.machine) for one in named]


def test_machines_move_on(tmp_path: Path, cluster: Any) -> None:
    """Machines that leave for another task are not called silent; a task that all have left is forgotten."""
    store = Embedded(tmp_path / "s.db")
    for second in range(1, 241):
        moved = set(MACHINES) if second > 200 else {"b2", "b6"} if second > 100 else set()
        at = START + second * SECOND
        tasks = {machine: "green" if machine in moved else task for machine, task in MACHINES.items()}
        store.write([Batch(machine, at, _samples(task, 1.7e9)) for machine, task in tasks.items()])
    order = JudgeTask(str(store.path), InfluxConfig(), Config(), "", frozenset(), START + 80 * SECOND)
    with distributed.Client(cluster, set_as_default=False) as client:
        coordinator = Coordinator(client, store, order)
        verdicts = [coordinator.step(START + second * SECOND) for second in (90, 190)]
        assert {task: len(report.machines) for task, report in coordinator.reports.items()} == {"blue": 6, "green": 10}
        verdicts += [coordinator.step(START + second * SECOND) for second in (210, 240)]
        assert {task: len(report.machines) for task, report in coordinator.reports.items()} == {"green": 16}
    assert verdicts == [[], [], [], []]
    store.close()


def test_a_store_that_is_gone(store: Embedded, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that cannot open the store judges its task as soon as it can."""
    order = JudgeTask(f"{store.path}.absent.db", InfluxConfig(), Config(), "", frozenset(), START + 230 * SECOND)
    with distributed.Client(cluster, set_as_default=False) as client:
        coordinator = Coordinator(client, store, order)
        assert coordinator.step(START + 235 * SECOND) == []
        assert "task blue is judged at the next step" in caplog.text
        assert coordinator.machines() == frozenset()
        coordinator.order = JudgeTask(str(store.path), InfluxConfig(), Config(), "", frozenset(), order.now)
        assert {one.machine for one in coordinator.step(START + 355 * SECOND)} == set(SLOW)


def test_an_acknowledgement_is_known(store: Embedded, cluster: Any) -> None:
    """A detector that is spread over a cluster does not repeat what the operator has acknowledged; all else it does."""
    order = JudgeTask(str(store.path), InfluxConfig(), Config(), "", frozenset(), START + 230 * SECOND)
    with distributed.Client(cluster, set_as_default=False) as client:
        coordinator = Coordinator(client, store, order)
        first, *others = coordinator.step(START + 355 * SECOND)
        assert not coordinator.acknowledged(first)
        ack: dict[str, str | int | float | None] = {"source": "operator", "code": "ack", "severity": "info"}
        store.write([Batch(first.machine, START + 356 * SECOND, (Sample("event", {**ack, "message": "seen"}),))])
        coordinator.step(START + 358 * SECOND)
        assert coordinator.acknowledged(first)
        assert [coordinator.acknowledged(other) for other in others] == [False] * len(others)


def test_no_scheduler(store: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address without a scheduler is an OSError that names the address."""
    monkeypatch.setattr(cluster_module, "CONNECT_S", 0.3)
    order = JudgeTask(str(store.path), InfluxConfig(), Config(), "", frozenset(), START)
    dispatcher = open_dispatcher(AlertsConfig(), str(store.path), InfluxConfig())
    with closing(dispatcher), pytest.raises(OSError, match=r"tcp://127\.0\.0\.1:9"):
        cluster_module.run("tcp://127.0.0.1:9", store, order, dispatcher, threading.Event())
