"""The detector over a Dask cluster: a part of the fleet for each training task, each judged by one worker at a time.

Workers only judge: what they find is written here. So a worker that dies is no loss: another takes its parts, begins
some minutes back in the store, and writes no verdict twice. https://distributed.dask.org/
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import distributed

from detector.alerts.dispatcher import AlertDispatcher
from detector.config import Config
from detector.model.verdict import RANK, Verdict
from detector.model.verdict_rows import batch_of, verdict_of
from detector.service.lease import LeaseUnconfirmedError
from detector.service.runner import Runner
from detector.timeseries.rows import rows_of
from detector.topology.maintenance import OperatorState
from detector.topology.tasks import Tasks
from store.influx.config import InfluxConfig
from store.machine_filter import MachineFilter
from store.open import open_store
from store.schema.contract import Store, StoreError
from store.schema.time import SECOND
from store.signed import Signed

log = logging.getLogger(__name__)

WAIT_S = 1.0
CONNECT_S = 10.0
_ASSIGNMENT_TABLES = {"task": None, "job": None, "nccl": ("comm",), "host": ()}
"""The tables, and of them the columns, by which it is known which machine works for which task."""
_ORDER_COLUMNS = ("device", "message", "begin", "until", "every", "times")
_runners: dict[tuple[str, str], Runner] = {}
"""In a worker: the parts that it judges, by store and task."""


@dataclass(frozen=True)
class JudgeTask:
    """What a worker is to do: judge the machines of a task, as far as `now` (Unix ns)."""

    place: str
    influx: InfluxConfig
    config: Config
    task: str
    machines: frozenset[str]
    now: int
    key: bytes = field(default=b"", repr=False)
    """By which orders and verdicts are known; it goes to the workers, so give Dask a network or TLS of its own."""
    named: bool = False
    """Whether the task is named by the machines themselves; then those that have left it are still looked at."""
    blind_s: float = 60.0
    """A machine that is not read for so long is reported."""
    at: int | None = None
    """How far the part was judged; a worker with another state starts again."""


@dataclass(frozen=True)
class JudgeResult:
    """What came of an order, and which worker keeps the part's memory."""

    at: int
    verdicts: list[Verdict]
    machines: frozenset[str]
    worker: str
    named: bool
    silent: dict[str, int]
    """Machines that are not read, and of which no verdict tells; Unix ns of the last reading."""


def judge(order: JudgeTask) -> JudgeResult:
    """Carry out an order, in a worker. Raises StoreError."""
    key = order.place, order.task
    runner = _runners.pop(key, None)
    if runner is None or runner.at != order.at:
        store: Store
        if runner and isinstance(runner.store, MachineFilter):
            store = runner.store.store
        else:
            store = open_store(order.place, False, order.influx)
            store = Signed(store, order.key) if order.key else store
        runner = Runner(MachineFilter(store, order.machines), order.config, order.now)
    assert isinstance(runner.store, MachineFilter)
    if order.named:
        # One that goes on elsewhere must be seen to do so, or it would be called silent here.
        runner.store.machines |= order.machines
        runner.detector.state.tasks.only = order.task
    else:
        runner.store.machines = order.machines
    verdicts = runner.catch_up(order.now, threading.Event())
    _runners[key] = runner
    silent = runner.blind_spots(order.now, order.blind_s)
    return JudgeResult(runner.at, verdicts, runner.machines(), distributed.get_worker().address, order.named, silent)


class Coordinator:
    """Divides the fleet by tasks, submits the parts to workers, and writes their verdicts."""

    def __init__(self, client: Any, store: Store, order: JudgeTask) -> None:
        self.client, self.store, self.order = client, store, order
        self.tasks = Tasks()
        self.reports: dict[str, JudgeResult] = {}
        """By task, the last report."""
        self.unwritten: list[Verdict] = []
        self.orders = OperatorState()
        self._ordered = 0
        self._asked = order.now - round(order.config.history_seconds * SECOND)

    def step(self, now: int) -> list[Verdict]:
        """Judge as far as `now` (Unix ns) and keep the new verdicts; a part that fails is judged at the next step."""
        parts = self._parts(now)
        self._read_orders(now)
        over = {task: frozenset[str]() for task in self.reports if task not in parts}  # what is open there is cleared
        futures = {task: self._submit(task, machines, now) for task, machines in (parts | over).items()}
        for task, future in futures.items():
            try:
                self.reports[task] = future.result()
                self.unwritten += self.reports[task].verdicts
            except (StoreError, distributed.KilledWorker, distributed.CancelledError) as error:
                log.error("task %s is judged at the next step: %s", task, " ".join(str(error).split())[:300])
                self.reports.pop(task, None)
        for task in over:
            if task in self.reports and not self.reports[task].machines:
                del self.reports[task]
        self.store.write([batch_of(verdict) for verdict in self.unwritten])
        said, self.unwritten = self.unwritten, []
        return said

    def machines(self) -> frozenset[str]:
        """All machines that are judged."""
        return frozenset().union(*(report.machines for report in self.reports.values()))

    def acknowledged(self, verdict: Verdict) -> bool:
        """Whether the operator has acknowledged it."""
        return self.orders.acknowledged(verdict.machine, verdict.device, verdict.time) is not None

    @property
    def silent(self) -> dict[str, int]:
        """Machines that are not read, and when each was last."""
        return {machine: at for report in self.reports.values() for machine, at in report.silent.items()}

    def _submit(self, task: str, machines: frozenset[str], now: int) -> Any:
        last = self.reports.get(task)
        named = task in self.tasks.said.values() or (last is not None and last.named)
        at = last.at if last else None
        order = replace(self.order, task=task, machines=machines, now=now, named=named, at=at)
        home = {"workers": [last.worker], "allow_other_workers": True} if last else {}
        # A scheduler answers a key that it knows with the result that it has: each order needs one of its own.
        return self.client.submit(judge, order, key=f"{task}-{uuid.uuid4().hex}", pure=False, **home)

    def _read_orders(self, now: int) -> None:
        """Take in what the operator has ordered; rows come late, so the last seconds are read again."""
        found = self.store.read("event", self._ordered, now, _ORDER_COLUMNS)
        if found.num_rows:
            self.orders.feed(rows_of("event", found))
        self.orders.turn(now)
        self._ordered = max(self._ordered, now - round(self.order.config.reread_seconds * SECOND))

    def _parts(self, now: int) -> dict[str, frozenset[str]]:
        """Machines by task, after all that the store tells by now."""
        for table, columns in _ASSIGNMENT_TABLES.items():
            found = self.store.read(table, self._asked, now, columns)
            if found.num_rows:
                self.tasks.feed(rows_of(table, found))
        self._asked = now
        parts = defaultdict(set)
        for machine in self.tasks.seen:
            if (task := self.tasks.task_of(machine)) is not None:
                parts[task].add(machine)
        return {task: frozenset(machines) for task, machines in sorted(parts.items())}


def run(
    address: str,
    store: Store,
    order: JudgeTask,
    dispatcher: AlertDispatcher,
    stop: threading.Event,
    alive: Callable[[str], None] = lambda status: None,
) -> None:
    """Run until `stop` is set, by the workers of the scheduler at this address. Raises OSError: there is none.

    `alive` is called at each turn, with the state in a few words.
    """
    lag = round(order.config.judging_delay_seconds * SECOND)
    history = [verdict_of(row) for row in store.read("verdict").to_pylist() if row.get("level") in RANK]
    with distributed.Client(address, timeout=CONNECT_S, set_as_default=False) as client:
        dispatcher.begin(history)
        coordinator = Coordinator(client, store, replace(order, blind_s=dispatcher.blind_s))
        dispatcher.acknowledged = coordinator.acknowledged
        while not stop.is_set():
            now = time.time_ns() - lag
            try:
                verdicts = coordinator.step(now)
                dispatcher.publish(verdicts, coordinator.machines(), now + lag, coordinator.silent)
            except StoreError as error:
                dispatcher.fail(error, coordinator.machines(), now + lag)
            except LeaseUnconfirmedError:
                log.debug("nothing is said until the lease is confirmed")
            alive(f"judging {len(coordinator.machines())} machines")
            stop.wait(WAIT_S)
