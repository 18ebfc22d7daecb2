"""What it costs to count what training processes wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bpf.maps import bpf
from bpf.tracepoint import PREFIX
from emulator.libraries.build import Libraries
from tests.agent.conftest import Watch
from tests.agent.sources.test_scheduler import SOURCES, Trainer

pytestmark = [pytest.mark.bench, pytest.mark.bpf]

TURNS, BYTES = 5, 100_000
PROCESSES, THREADS, READINGS = 8, 100, 200
ENABLE_STATS = 32  # enum bpf_cmd (include/uapi/linux/bpf.h)
PING_PONG = f"""
here, there = os.pipe(), os.pipe()
begin = time.perf_counter()
if not os.fork():
    for _ in range({BYTES}):
        os.write(there[1], os.read(here[0], 1))
    os._exit(0)
for _ in range({BYTES}):
    os.write(here[1], b"x")
    os.read(there[0], 1)
said = time.perf_counter() - begin
os.wait()
[os.close(end) for end in (*here, *there)]
"""
"""Two processes on one CPU pass a byte to and fro: two switches each time."""


@pytest.fixture
def trainers(emulated: Libraries) -> Iterator[Callable[[int], Trainer]]:
    """Starts training processes; kills them in the end."""
    started: list[Trainer] = []

    def start(gpu: int) -> Trainer:
        started.append(Trainer(emulated, gpu))
        return started[-1]

    yield start
    for one in started:
        one.close()


def runs(program: int) -> tuple[int, int]:
    """Nanoseconds and times that a program ran while the kernel counted them."""
    lines = Path(f"/proc/self/fdinfo/{program}").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return int(found["run_time_ns"]), int(found["run_cnt"])


def switch_ns(one: Trainer, turns: int = TURNS) -> list[float]:
    """Nanoseconds of one switch, each turn, sorted."""
    return sorted(float(one.do(PING_PONG)) / (2 * BYTES) * 1e9 for _ in range(turns))


def test_scheduler_cost_of_a_switch(watch: Any, trainers: Callable[[int], Trainer], emulated: Libraries) -> None:
    """A switch of threads without the tracepoint, of somebody else's threads with it, and of training ones."""
    one = trainers(401)
    assert one.end() == "trains"  # before there are probes: it is not yet known to train
    one.do(f"os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})")
    bare = switch_ns(one)
    seen: Watch = watch(sources=SOURCES)
    program = seen.context.kernel.programs[PREFIX + "sched_switch"]  # type: ignore[union-attr]
    statistics = bpf(ENABLE_STATS, bytes(4))
    figures = {}
    for who in ("somebody else's", "a training process's"):
        if who != "somebody else's":
            seen.wait_attached(emulated.nccl)
            one.do("library.ncclAllReduce(None, None, ctypes.c_size_t(1), 7, 0, None, None)")
            seen.until(one.row)
        before = runs(program)
        spread = switch_ns(one)
        took, times = (after - was for after, was in zip(runs(program), before, strict=True))
        figures[who] = took / times
        print(
            f"\n{who} switch: {spread[0]:.0f} to {spread[-1]:.0f} ns, {took / times:.0f} ns of them in the program",
            end="",
        )
        assert times > BYTES
    os.close(statistics)
    print(f"\nwithout the tracepoint: {bare[0]:.0f} to {bare[-1]:.0f} ns")
    most = max(figures.values())
    print(f"at 20,000 switches a second: {most * 20_000 / 1e7:.2f} % of a core, two readings of the clock included")
    assert most < 2_000


def test_scheduler_cost_of_a_reading(watch: Any, trainers: Callable[[int], Trainer], emulated: Libraries) -> None:
    """A reading beside eight training processes, and what the same sum would cost from files under /proc."""
    keeper = trainers(400)
    assert keeper.end() == "trains"
    seen: Watch = watch(sources=SOURCES)
    seen.wait_attached(emulated.nccl)
    crowd = [trainers(410 + place) for place in range(PROCESSES)]
    for one in crowd:
        assert one.end() == "trains"
        one.do(f"import threading\nfor _ in range({THREADS}): threading.Thread(target=time.sleep, args=(999,)).start()")
        seen.until(one.row)
    (scheduler,) = [worker.source for worker in seen.reader.workers if worker.name == "scheduler"]
    living = seen.context.training.living
    spent, begin = 0.0, time.time_ns()
    for reading in range(READINGS):
        now = begin + reading * 10**9
        living(now)  # all sources share it
        since = time.thread_time()
        assert len(list(scheduler.read(now))) >= PROCESSES
        spent += time.thread_time() - since
    files = [
        path.open("rb", buffering=0) for one in crowd for path in Path(f"/proc/{one.pid}/task").glob("*/schedstat")
    ]
    since = time.thread_time()
    total = sum(int(os.pread(file.fileno(), 64, 0).split()[1]) for _ in range(10) for file in files)
    proc = (time.thread_time() - since) / 10
    for file in files:
        file.close()
    print(f"\na reading of {PROCESSES} processes: {spent / READINGS * 1e6:.0f} µs of CPU")
    print(f"the same from {len(files)} open files under /proc: {proc * 1e6:.0f} µs, and none of the time in disk waits")
    assert total > 0
    assert spent / READINGS < 0.001
