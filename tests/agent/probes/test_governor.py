"""Probes take no more than their share of a core of a process: what a hit costs is measured, the dearest have to go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.binaries.first_instruction import is_stepped, stepped_of
from agent.probes import governor as governing
from agent.probes.governor import ProbeGovernor, Window
from agent.probes.groups import CALLS, GRAPHS, LAUNCHES, LIFE, PYTHON, SYNCHRONIZE, group_of
from agent.probes.hit_cost import EMULATED_S, HitCost, measure
from agent.probes.library import Library
from agent.probes.sampled_counts import SampledCounts
from agent.process.procfs import Process
from emulator.libraries.build import Libraries

ROOT = Path(__file__).resolve().parents[3]
PROCESS = np.dtype([("tgid", "<u8"), ("hits", "<u8", (7,))])
SLOT = np.dtype([("tgid", "<u8"), ("queries", "<u8")])
SCRIPT = """
import ctypes, json, os, sys, threading, time
from pathlib import Path
from emulator.training.ctypes_api import Calls
node, stop = open(os.environ["EMULATED_DEVICES"] + "/nvidia0"), threading.Event()
calls = Calls(*map(Path, sys.argv[1:]))
launch, wait = calls.function("cudaGraphLaunch"), calls.function("cudaStreamSynchronize")
print("ready", flush=True)
def busy():
    while not stop.is_set():
        for _ in range(40): launch(None, None)
        wait(None)
        time.sleep(0.005)
threading.Thread(target=busy, daemon=True).start()
sys.stdin.readline()
"""


class Machine:
    """Process 71 with both libraries; a test makes its hits. One costs 3 µs, or 20 µs in the NCCL."""

    def __init__(self, share: float = 0.02, calls_stay: bool = False) -> None:
        user = {Process(71, 7)}
        self.cudart = Library("8:1:3", "/x/libcudart.so.12", users=set(user))
        self.cudart.functions = {SYNCHRONIZE: {64: "cudaStreamSynchronize"}, GRAPHS: {96: "cudaGraphLaunch"}}
        self.nccl = Library("8:1:2", "/x/libnccl.so.2", users=set(user), stepped=frozenset({CALLS}))
        self.nccl.functions = {CALLS: {64: "ncclAllReduce"}, LIFE: {32: "ncclCommInitRank"}}
        self.processes, self.slots = np.zeros(3, PROCESS), np.zeros(2, SLOT)
        self.processes["tgid"][1] = self.slots["tgid"][1] = 71
        attachments: Any = SimpleNamespace(libraries={one.identity: one for one in (self.cudart, self.nccl)})
        processes: Any = SimpleNamespace(rows=lambda: self.processes)
        slots: Any = SimpleNamespace(rows=lambda: self.slots)
        self.governor = ProbeGovernor(share, HitCost(3e-6, 2e-5), attachments, processes, slots, calls_stay)
        self.clock = 0.0

    def run(self, seconds: int, queries: int = 0, **rates: int) -> None:
        """Seconds in which groups are hit so often; those without probes are not."""
        for _ in range(seconds):
            for word, rate in rates.items():
                group = {"calls": CALLS, "waits": SYNCHRONIZE, "graphs": GRAPHS}[word]
                off = self.cudart.suspended | self.nccl.suspended
                self.processes["hits"][1, group] += 0 if group in off else rate
            self.slots["queries"][1] += queries
            self.clock += 1.0
            self.governor.update(self.clock)
            for one in (self.cudart, self.nccl):
                one.suspended = frozenset(one.suspend)


def test_instructions_that_the_kernel_emulates() -> None:
    """A push, a nop, a jump and a call are emulated; a move and the mark of an indirect branch are stepped over."""
    assert not any(map(is_stepped, (b"\x55\x48", b"\x41\x57", b"\x90", b"\xe9\x01", b"\x74\x05")))
    assert all(map(is_stepped, (b"\x48\x89", b"\xf3\x0f", b"\x41\x89", b"")))
    assert stepped_of(b"\x55\x90\x48\x89\xe8", [0, 2, 3, 4]) == [2, 3]


def test_every_probe_has_a_group() -> None:
    """Functions of one group come off together."""
    groups = [group_of(name) for name in ("ncclCommSplit", "ncclSend", "cudaGraphLaunch_ptsz", "cudaEventSynchronize")]
    assert groups == [LIFE, CALLS, GRAPHS, SYNCHRONIZE]
    assert group_of("cudaLaunchKernelExC") == LAUNCHES


def test_the_share_is_rate_times_cost() -> None:
    """What probes take adds up over groups, each at the cost of its library; queries of NCCL count as calls."""
    machine = Machine()
    machine.run(4, calls=70, waits=500, graphs=300, queries=30)
    assert machine.governor.of_process(71) == pytest.approx(100 * 2e-5 + 800 * 3e-6)
    assert machine.governor.of_library(machine.nccl) == pytest.approx(0.002)
    assert machine.governor.of_library(machine.cudart) == pytest.approx(0.0024)
    assert machine.governor.cost_of(machine.nccl) == 2e-5
    assert "0.44% of a core of process 71" in machine.governor.words
    assert not machine.cudart.suspend


def test_the_dearest_group_samples_alone_until_it_is_calm() -> None:
    """Only the group that takes the most is on in windows, so that on average the process loses what is allowed."""
    machine, user = Machine(), Process(71, 7)
    machine.run(4, waits=900, graphs=20_000)
    assert not machine.cudart.suspend
    machine.run(4, waits=900, graphs=20_000)
    assert set(machine.cudart.suspend) == {GRAPHS}
    words = "probes on its graph launches are sampled, on 29% of the time: they take 6.00% of a core of process 71"
    assert words in machine.cudart.words
    assert machine.governor.windows(user) == {GRAPHS: Window(False, pytest.approx(0.0173 / 0.06))}
    assert machine.governor.of_process(71) == pytest.approx(0.02)
    before = machine.processes["hits"][1, GRAPHS]
    machine.run(300, waits=900, graphs=20_000)
    taken = (int(machine.processes["hits"][1, GRAPHS] - before) / 300 + 900) * 3e-6
    assert 0.012 < taken < 0.0205
    machine.run(60, waits=900, graphs=1700)
    assert not machine.cudart.suspend
    assert not machine.governor.partial(user)
    assert not machine.governor.windows(user)


def test_windows_that_would_be_rare_stand_for_nothing() -> None:
    """A group so dear that its windows would be minutes apart is suspended, and its counts have gaps."""
    machine, user = Machine(share=0.002), Process(71, 7)
    machine.run(8, waits=100, graphs=20_000)
    assert "probes on its graph launches are suspended: they take 6.00%" in machine.cudart.words
    assert machine.governor.partial(user) == {GRAPHS}
    assert not machine.governor.windows(user)
    machine.run(60, waits=100, graphs=20_000)
    assert GRAPHS in machine.cudart.suspend


def test_counts_of_windows_stand_for_the_time_between() -> None:
    """A counter of sampled probes goes on at the rate of its windows; one that is always counted is exact."""
    sampled, user = SampledCounts(), Process(71, 7)
    raw, exact, values = 0.0, 0.0, []
    for second in range(200):
        on = second < 20 or second % 10 < 4
        raw, exact = raw + 250.0 * on * (second > 0), exact + 250.0 * (second > 0)
        values.append(sampled.value(user, "launches_total", raw, 40.0 + second, on))
        assert sampled.value(user, "copies_total", raw, 40.0 + second, True) == raw
    assert values == sorted(values)
    assert values[-1] == pytest.approx(exact, rel=0.02)
    assert raw < 0.55 * exact
    sampled.forget([])
    assert sampled.value(user, "launches_total", 7.0, 300.0, True) == 7.0


def test_calls_that_stay_make_the_next_group_go() -> None:
    """Where NCCL's calls take the most and have to stay, the dearest of the others is suspended."""
    free, fixed = Machine(), Machine(calls_stay=True)
    for machine in (free, fixed):
        machine.run(8, calls=1100, waits=400)
    assert free.governor.exceeds(71, CALLS)
    assert not free.cudart.suspend
    assert set(fixed.cudart.suspend) == {SYNCHRONIZE}


def test_collections_count_into_the_share() -> None:
    """Hits on garbage collections, counted elsewhere, take part; they go when they take the most."""
    machine = Machine()
    machine.run(2, waits=500)
    machine.governor.report(71, PYTHON, 990 * 2e-5)
    assert not machine.governor.exceeds(71, SYNCHRONIZE)
    assert machine.governor.exceeds(71, PYTHON)
    machine.governor.report(71, PYTHON, 100 * 2e-5)
    assert not machine.governor.exceeds(71, PYTHON)


@pytest.mark.bpf
def test_cost_is_measured_where_it_can_be(watch: Any) -> None:
    """The start measures both costs by hits on code of its own, which nothing counts; else it says what is assumed."""
    seen = watch(sources=("probe", "nccl"))
    cost = seen.context.cost
    assert not cost.unmeasured
    assert 1e-7 < cost.emulated <= cost.stepped < 1e-3
    assert cost.emulated not in (EMULATED_S, cost.stepped)
    assert os.getpid() not in seen.context.kernel.maps["processes"].rows()["tgid"]
    no_program = os.open("/dev/null", os.O_RDONLY)
    assumed = measure(no_program)
    os.close(no_program)
    assert assumed.emulated == EMULATED_S
    assert "assumed, not measured: " in assumed.words
    rows = seen.until(lambda rows: [row for row in rows.get("probe", ()) if row["library"] == "probes: cost"])
    assert rows[0]["hit_seconds"] == cost.emulated
    assert "measured at the start" in rows[0]["reason"]


@contextmanager
def busy(cudart: Path, nccl: Path) -> Iterator[Any]:
    """A process that launches graphs thousands of times a second, and waits for each fortieth."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    order = [sys.executable, "-c", SCRIPT, str(cudart), str(nccl)]
    with subprocess.Popen(order, cwd=ROOT, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.bpf
def test_cuda_probes_let_go_of_a_busy_process(watch: Any, emulated: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph launches that take too much lose their probes and their column; synchronize calls are counted on."""
    monkeypatch.setattr(governing, "FAST_S", 0.5)
    monkeypatch.setattr(governing, "SPARSE_S", 0.0)
    with busy(emulated.cudart, emulated.nccl) as process:
        seen = watch(sources=("probe", "cuda"), cuda_calls=("graphs",), probe_share=0.0005)
        attachments = seen.context.attachments

        def cudart() -> list[Library]:
            return [one for one in attachments.libraries.values() if one.path == str(emulated.cudart)]

        seen.until(lambda rows: [row for row in rows.get("cuda", ()) if row.get("graph_launches_total")])
        seen.until(lambda rows: any(row.get("suspended") == 1 for row in rows.get("probe", ())))
        (library,) = cudart()
        assert GRAPHS in library.suspended
        assert not library.functions[GRAPHS].keys() & library.probes.keys()
        assert "probes on its graph launches are suspended" in library.words
        rows = seen.until(lambda rows: [row for row in rows.get("cuda", ()) if row["pid"] == process.pid])
        assert "graph_launches_total" not in rows[0]
        before = rows[0]["synchronize_calls_total"]
        seen.until(lambda rows: any(row["synchronize_calls_total"] > before + 20 for row in rows.get("cuda", ())))
        seen.until(lambda _: 0 < seen.context.governor.of_process(process.pid) < 0.0005)


@pytest.mark.bpf
def test_cuda_probes_sample_a_busy_process(watch: Any, emulated: Libraries, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graph launches that take too much are counted in windows, and go on growing between them."""
    monkeypatch.setattr(governing, "FAST_S", 0.5)
    monkeypatch.setattr(governing, "SPARSE_S", 600.0)
    with busy(emulated.cudart, emulated.nccl):
        seen = watch(sources=("probe", "cuda"), cuda_calls=("graphs",), probe_share=0.0005)
        attachments = seen.context.attachments

        def suspended() -> list[Library]:
            return [one for one in attachments.libraries.values() if GRAPHS in one.suspended]

        seen.until(lambda _: suspended())
        rows = seen.until(lambda rows: [row for row in rows.get("cuda", ()) if row.get("sampled_ratio")])
        assert 0 < rows[0]["sampled_ratio"] < 0.7
        (library,) = seen.until(lambda _: suspended())
        assert "are sampled, on " in library.words
        before = rows[0]["graph_launches_total"]
        grown = seen.until(
            lambda rows: [row for row in rows.get("cuda", ()) if row["graph_launches_total"] > before + 500]
        )
        assert grown
        assert seen.until(lambda _: suspended())
