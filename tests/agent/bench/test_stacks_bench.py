"""What the source `stacks` costs: at rest, and when stacks are taken."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.nccl.stall import StallDetectors
from agent.probes.training_processes import TrainingProcess
from agent.process.procfs import Process, Processes
from agent.sources.stacks import Stacks
from agent.stacks.py_spy import spy_path
from agent.system.child_process import ChildTask

READINGS, TIMES = 2000, 20
SPINNER = """
import threading, time
print("ready", flush=True)
end, last, worst = time.monotonic() + 3.0, time.monotonic(), 0.0
while last < end:
    now = time.monotonic()
    worst, last = max(worst, now - last), now
print(worst, flush=True)
"""


def request_for(process: Process) -> dict[str, Any]:
    """What the child is asked."""
    return {"spy": spy_path(), "processes": [astuple(process)]}


@pytest.mark.bench
def test_stacks_at_rest() -> None:
    """The source's share of each second, while eight processes train."""
    processes = np.zeros(1024, [("tgid", "<u8"), ("rest", "<u8", 13)])
    logs = np.zeros(1024, [("tgid", "<u8"), ("count", "<u8"), ("entries", "<u8", 512)])
    living = {pid: TrainingProcess(Process(pid, 7), str(pid)) for pid in range(8)}
    processes["tgid"][1:8] = logs["tgid"][1:8] = np.arange(1, 8)
    training: Any = SimpleNamespace(living=lambda now: living, last_known=living.get, uncounted={})
    maps: Any = [SimpleNamespace(rows=lambda rows=rows: rows) for rows in (processes, logs)]
    source = Stacks(StallDetectors(training, *maps), 8.0)
    begun = time.process_time()
    for now in range(READINGS):
        logs["count"] += 40
        source.read(now)
    print(f"\nstacks, at rest: {(time.process_time() - begun) / READINGS * 1e6:.0f} µs of CPU a reading of 8 processes")


def spun(taking: bool) -> tuple[float, int]:
    """The longest gap in a busy process's loop, ms, while its stacks are taken again and again; and how often."""
    child, taken = subprocess.Popen([sys.executable, "-c", SPINNER], stdout=subprocess.PIPE), 0
    assert child.stdout is not None
    child.stdout.readline()
    process, asked = Processes().find(child.pid), ChildTask("agent.stacks.worker")
    assert process is not None
    while child.poll() is None:
        if taking and asked.ready:
            asked.ask(request_for(process))
        taken += sum(answer["form"] == "python" for answer in asked.poll())
        time.sleep(0.02)
    asked.close()
    with child.stdout:
        return 1e3 * float(child.stdout.read()), taken


@pytest.mark.bench
def test_taking_stacks() -> None:
    """CPU of one taking, and what it does to a process that is busy meanwhile."""
    me = Processes().find(os.getpid())
    assert me is not None
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    for _ in range(TIMES):
        asked = ChildTask("agent.stacks.worker")
        asked.ask(request_for(me))
        while not asked.ready:
            asked.poll()
            time.sleep(0.005)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"\nstacks of one process: {used / TIMES * 1e3:.0f} ms of CPU, {(time.monotonic() - begun) / TIMES:.2f} s")
    gaps = [spun(taking) for taking in (False, True, False, True)]
    print(f"longest gap of a busy process: {gaps[0][0]:.1f} and {gaps[2][0]:.1f} ms; while its stacks were taken")
    print(f"{gaps[1][1]} and {gaps[3][1]} times: {gaps[1][0]:.1f} and {gaps[3][0]:.1f} ms")
