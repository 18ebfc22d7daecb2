"""Eviction: machines that are gone are forgotten, and no other is judged otherwise for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.eviction import GONE_NS
from detector.engine.pipeline import Detector
from detector.methods.peers.method import Peers
from detector.model.verdict import Verdict
from detector.service.snapshot import dump, restore
from detector.timeseries.rows import Rows, rows_of
from detector.topology.tasks import Tasks

SECOND, START = 10**9, 1_700_000_000 * 10**9


def read(at: int, machines: Iterable[str], comm: str, odd: str = "") -> dict[str, list[dict[str, Any]]]:
    """One reading of everything on these machines, which share a communicator; the clock of one GPU is low."""
    chance = np.random.default_rng(at // SECOND)
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in ("host", "gpu", "rdma", "nccl", "task")}
    for rank, machine in enumerate(machines):
        who = {"time": at, "machine": machine}
        tables["task"].append({**who, "task": comm[:4]})
        tables["host"].append({**who, "cpu_utilization_ratio": chance.uniform(0.4, 0.41), "context_switches_total": at})
        for gpu in range(2):
            clock = 1.9e9 * (0.7 if machine == odd and gpu else 1) + chance.normal(0, 3e6)
            tables["gpu"].append({**who, "gpu": str(gpu), "sm_clock_hertz": clock, "duty_cycle_ratio": 0.93})
        tables["rdma"].append({**who, "port": "mlx5_0/1", "link_up": 1, "transmit_bytes_total": at // 7})
        shown = {"comm": comm, "rank": float(rank), "ranks": 4.0, "operation": "Send:bf16:5", "active_ratio": 0.37}
        tables["nccl"].append({**who, "gpu": "1", "slot": "0", **shown, "operations_total": at // SECOND})
    return tables


def rows(*parts: dict[str, list[dict[str, Any]]]) -> dict[str, Rows]:
    """What several groups of machines read, as one."""
    whole = {name: [row for part in parts for row in part[name]] for name in parts[0]}
    return {name: rows_of(name, pa.Table.from_pylist(found)) for name, found in whole.items()}


def run(leavers: bool) -> Iterator[tuple[Detector, list[Verdict]]]:
    """Five machines of which m4 has a slow GPU from 190 s on; before, until 100 s, four others trained beside them."""
    detector = Detector()
    for second in range(1, 260):
        at = START + second * SECOND
        parts = [read(at, [f"m{n}" for n in range(5)], "stay", odd="m4" if second > 190 else "")]
        if leavers and second < 100:
            parts.insert(0, read(at, [f"leaver{n}" for n in range(4)], "left"))
        yield detector, detector.step(at, rows(*parts))


def test_who_is_forgotten_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once others are forgotten, amid growing evidence, everything is as if they had never been there."""
    monkeypatch.setattr("detector.engine.eviction.GONE_NS", 100 * SECOND)
    monkeypatch.setattr("detector.engine.pipeline.SWEEP_NS", 40 * SECOND)
    said, saved = [], []
    for leavers in (True, False):
        *_, (detector, _) = steps = list(run(leavers))
        said.append([verdict for _, verdicts in steps for verdict in verdicts if "leaver" not in verdict.machine])
        saved.append(dump(detector.state, START))
    assert [(verdict.machine, verdict.device) for verdict in said[0]] == [("m4", "gpu:1")]
    assert said[0] == said[1]
    assert b"leaver" not in saved[0]
    assert len(saved[0]) < len(saved[1]) + 100


def test_memory_is_bounded_for_months() -> None:
    """Machines, devices and communicators that come and go for sixty days take no more than those of three days."""
    detector, sizes = Detector(), []
    for hours in range(0, 60 * 24, 12):
        at = START + hours * 3600 * SECOND
        lasting = read(at, [f"m{n}" for n in range(4)], f"stay{hours}")
        passing = read(at, [f"x{hours}-{n}" for n in range(3)], f"pass{hours}")
        detector.step(at, rows(lasting, passing))
        if hours % (25 * 24) == 8 * 24:
            sizes.append(len(dump(detector.state, at)))
            state, _ = restore(dump(detector.state, at), Config())
            detector = Detector(state=state)
    assert len(sizes) == 3
    assert max(sizes) < 1.02 * min(sizes)


def test_a_silent_machine_is_given_up_in_the_end() -> None:
    """The verdict on a machine that fell silent stands for three days; then it says that the machine was removed."""
    detector, said = Detector(), []
    for minute in (*range(30), *range(30, 4 * 24 * 60, 60)):
        at = START + minute * 60 * SECOND
        there = [f"m{n}" for n in range(5) if n != 2 or minute < 20]
        said += detector.step(at, rows(read(at, there, "stay")))
    silent = [verdict for verdict in said if verdict.machine == "m2"]
    assert silent[0].metric == "event.silent"
    assert silent[-1].message == "m2 was removed: it sent no readings for days (event.silent)"
    last = START + 19 * 60 * SECOND
    assert GONE_NS < silent[-1].time - last < GONE_NS + 2 * 3600 * SECOND


def test_what_was_read_once_only_may_change_its_task() -> None:
    """A table of one reading, which has no step yet, is regrouped at each sweep though nothing in it was judged."""
    peers, tasks = Peers(Config()), Tasks()
    for number, name in enumerate(("left", "stay")):
        once = rows(read(START, [f"m{n}" for n in range(5)], name))
        tasks.feed(once["task"])
        peers.step(START, once if not number else {}, tasks)
        peers.evict(0, tasks)
        assert {panel.tasks[panel.task_index[0]] for panel in peers.panels.values()} == {name}
