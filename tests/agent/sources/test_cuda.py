"""CUDA calls, from what the kernel has counted."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from agent.config import AgentConfig
from agent.probes.governor import Window
from agent.probes.groups import LAUNCHES, SYNCHRONIZE
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process
from agent.sources.cuda import Cuda

ENTRY = np.dtype([(name, "<u8") for name in ("tgid", "synchronize_calls", "synchronize_ns", "synchronize_since")])
COUNTED = np.dtype([*ENTRY.descr, ("launches", "<u8")])


def carrying(living: dict[int, TrainingProcess], *without: int) -> Any:
    """Attachments with probes on all that these processes call, but for some groups."""
    return SimpleNamespace(
        carrying=lambda group: set() if group in without else {one.process for one in living.values()}
    )


def test_findings_4_5_calls_without_probes_are_null() -> None:
    """A process with a runtime that carries no probes, linked in or the driver alone, is not said never to wait."""
    entries, living = np.zeros(1, COUNTED), {71: TrainingProcess(Process(71, 5), "2")}
    training = SimpleNamespace(living=lambda _: living, uncounted=frozenset())
    config = AgentConfig(cuda_calls=("launches",))
    context: Any = SimpleNamespace(config=config, training=training, governor=None)
    table: Any = SimpleNamespace(rows=lambda: entries)
    entries[0] = (71, 13, 10**9, 0, 29)
    (row,) = Cuda(context, table, carrying(living, SYNCHRONIZE)).read(3)
    assert row.values == {"gpu": "2", "pid": 71, "launches_total": 29}
    assert Cuda(context, table, carrying(living, SYNCHRONIZE, LAUNCHES)).read(3) == []


def test_waits_of_two_threads_never_fall() -> None:
    """While one thread waits for long, others come and go: the total of both grows, or stands still."""
    entries = np.zeros(3, ENTRY)
    living = {71: TrainingProcess(Process(71, 5), "2")}
    context: Any = SimpleNamespace(
        config=AgentConfig(), training=SimpleNamespace(living=lambda _: living, uncounted=frozenset()), governor=None
    )
    table: Any = SimpleNamespace(rows=lambda: entries)
    source, clock, second = Cuda(context, table, carrying(living)), time.clock_gettime_ns(time.CLOCK_MONOTONIC), 10**9
    values = []
    for calls, waited, since in ((4, 0, clock - 30 * second), (5, 0, clock), (6, second, 0), (7, 33 * second, 0)):
        entries[1] = (71, calls, waited, since)
        (sample,) = source.read(calls)
        values.append(float(sample.values["synchronize_seconds_total"] or 0.0))
    assert values == sorted(values)
    assert values[-1] == 33.0
    entries[1], living[71] = (71, 1, second, 0), TrainingProcess(Process(71, 900), "2")
    (sample,) = source.read(99)
    assert sample.values["synchronize_seconds_total"] == 1.0


def test_sampled_probes_are_estimated() -> None:
    """Between windows a column grows at the rate of the windows, and the row says how much of the time is counted."""
    entries, living = np.zeros(1, ENTRY), {71: TrainingProcess(Process(71, 5), "2")}
    windows: dict[int, Window] = {}
    governor = SimpleNamespace(windows=lambda _: windows, partial=lambda _: frozenset(windows))
    training = SimpleNamespace(living=lambda _: living, uncounted=frozenset())
    context: Any = SimpleNamespace(config=AgentConfig(), training=training, governor=governor)
    table: Any = SimpleNamespace(rows=lambda: entries)
    source = Cuda(context, table, carrying(living))
    found = []
    for calls, window in ((100, None), (150, None), (150, False), (150, False)):
        entries[0] = (71, calls, 10**9, 0)
        windows.update({SYNCHRONIZE: Window(False, 0.4)} if window is False else {})
        time.sleep(0.1)
        (sample,) = source.read(7)
        found.append((float(sample.values["synchronize_calls_total"] or 0), sample.values.get("sampled_ratio")))
    counts = [count for count, _ in found]
    assert counts[:2] == [100, 150]
    assert 150 < counts[2] < counts[3]
    assert [ratio for _, ratio in found] == [None, None, 0.4, 0.4]
