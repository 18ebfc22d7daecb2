"""What judging costs: a streaming step of fleets of growing size, and a replay beside the median and all pairs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from detector.engine.pipeline import Detector
from detector.methods.evidence.conditions import ERROR_RATES
from detector.service.snapshot import dump
from detector.timeseries.rows import Rows
from store.schema.catalogue import METRICS
from store.schema.time import SECOND

pytestmark = pytest.mark.bench
START = 1_700_000_000 * SECOND
GPUS = 8
WARM, TAKEN, FAULTY = 30, 20, 80


class Fleet:
    """Machines with a row a second each of host, GPUs and ports, judged columns alone: what the agent's rows hold."""

    def __init__(self, machines: int, tables: dict[str, int], columns: int = 20) -> None:
        self.chance = np.random.default_rng(7)
        self.names = {table: [m for m in METRICS.values() if m.table == table and m.compared] for table in tables}
        self.names = {table: names[:columns] for table, names in self.names.items()}
        self.idents = {
            table: tuple(
                (f"m{at:05d}", *([str(device)] if devices else []))
                for at in range(machines)
                for device in range(max(devices, 1))
            )
            for table, devices in tables.items()
        }
        self.sums = {table: np.zeros((len(self.idents[table]), len(names))) for table, names in self.names.items()}

    def rows(self, table: str, now: int) -> Rows:
        """One row of each entity, a moment before `now`."""
        names, idents, sums = self.names[table], self.idents[table], self.sums[table]
        values = 5 + 0.1 * self.chance.standard_normal(sums.shape)
        sums += values * [m.name not in ERROR_RATES for m in names]  # nothing errs
        values = np.where([m.kind == "counter" for m in names], sums, values)
        keys = {"gpu": ("gpu",), "rdma": ("port",)}.get(table, ())
        time_ = np.full(len(idents), now - SECOND // 3)
        return Rows(table, time_, np.arange(len(idents)), idents, keys, tuple(m.name for m in names), values, {})

    @property
    def cells(self) -> int:
        """How many readings a step brings."""
        return sum(array.size for array in self.sums.values())


def _milliseconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return 1e3 * (time.process_time() - begun)


@pytest.mark.parametrize("machines", [1_000, 3_000, 10_000])
def test_step(machines: int) -> None:
    """The bench prints CPU time of a step and memory of the process for a fleet with 8 GPUs and 8 ports a machine."""
    fleet, detector = Fleet(machines, {"host": 0, "gpu": GPUS, "rdma": GPUS}), Detector()
    spent = []
    for step in range(WARM + TAKEN):
        now = START + step * SECOND
        rows = {table: fleet.rows(table, now) for table in fleet.sums}
        spent.append(_milliseconds(lambda now=now, rows=rows: detector.step(now, rows)))
    taken = sorted(spent[WARM:])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\n{machines} machines, {fleet.cells} readings a step: median {taken[TAKEN // 2]:.1f} ms of CPU, "
        f"worst {taken[-1]:.1f} ms, {1e6 * taken[TAKEN // 2] / fleet.cells:.0f} ns a reading; process {memory:.0f} MB"
    )
    if machines == 1_000:
        print(f"saving its memory: {_milliseconds(lambda: dump(detector.state, now)):.0f} ms")
        alarmed = sorted(_with_a_fault(fleet, detector, now + step * SECOND) for step in range(1, FAULTY))[-TAKEN:]
        print(f"while 8 GPUs of one machine deviate: the slower steps take {alarmed[TAKEN // 2]:.1f} ms")


def _with_a_fault(fleet: Fleet, detector: Detector, now: int) -> float:
    """Milliseconds of a step at which all readings of one machine's GPUs are 40 % lower."""
    rows = {table: fleet.rows(table, now) for table in fleet.sums}
    values = rows["gpu"].values.copy()
    values[100 * GPUS : 101 * GPUS] *= 0.6
    rows["gpu"] = replace(rows["gpu"], values=values)
    return _milliseconds(lambda: detector.step(now, rows))


def test_replay() -> None:
    """The bench times 15 minutes of 1,000 machines with 20 readings beside numpy's median and all distances."""
    machines, steps, metrics = 1_000, 900, 20
    fleet, detector = Fleet(machines, {"gpu": 0}, metrics), Detector()
    count = len(fleet.names["gpu"])
    whole = [fleet.rows("gpu", START + step * SECOND) for step in range(steps)]
    ours = _milliseconds(lambda: [detector.step(START + at * SECOND, {"gpu": rows}) for at, rows in enumerate(whole)])
    array = np.stack([rows.values for rows in whole])
    median = _milliseconds(lambda: np.median(array, axis=1))
    # Minder sums the distances of every machine's windows of 8 steps to all others', metric by metric, at each step.
    windows = np.random.default_rng(3).standard_normal((machines, 8))
    once = _milliseconds(lambda: np.sqrt(((windows[:, None] - windows[None]) ** 2).sum(-1)).sum(-1))
    pairs = once * count * steps
    print(
        f"\n{array.size / 1e6:.0f} million readings: {ours / 1e3:.2f} s of CPU, numpy.median {median / 1e3:.2f} s "
        f"(ours is {ours / median:.1f} times that), all pairs {pairs / 1e3:.0f} s ({pairs / ours:.0f} times ours)"
    )
