"""What-if from logs of communication: the slow rank is found without clocks that agree, stages or passes."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from analysis.traces.operations import Collector, Operations
from analysis.traces.reading import read_logs
from analysis.whatif.meta_file import JobMeta
from analysis.whatif.slowdown import Slowdown, analyse
from analysis.whatif.timeline import OWN, timeline

RANKS, STEPS = 5, 7
PUBLISHED = next(
    (place for up in Path(__file__).parents[4:6] if (place := up / "shared" / "data" / "kineto").is_dir()), Path("none")
)
"""Traces of HolisticTraceAnalysis, where they lie beside the checkout."""


def job(slow: int = -1, factor: float = 1.0, apart: float = 0.0) -> Operations:
    """Each step: 30 ms of computing, a gather of 4 ms, 50 ms of computing, a reduction of 9 ms; all ranks wait."""
    table, chance, begin = Collector(), np.random.default_rng(11), np.zeros(RANKS)
    for step in range(STEPS):
        for kind, own, took in (("AllGather", 0.03, 0.004), ("ReduceScatter", 0.05, 0.009)):
            entry = begin + own * chance.uniform(0.99, 1.01, RANKS)
            entry[slow] += (factor - 1) * own * (slow >= 0)
            begin = np.full(RANKS, entry.max() + took)
            for rank in range(RANKS):
                times = {"start": entry[rank] + apart * rank, "seconds": begin[rank] - entry[rank]}
                table.add(table.rank(f"rank {rank}"), "world", kind, step=step + 40, **times)
    return table.table()


def measured(table: Operations) -> Slowdown:
    """The measures of a table."""
    return analyse(timeline(table), JobMeta())


def test_a_slow_rank_explains_the_loss() -> None:
    """One rank that computes half as long again costs what arithmetic says and is named; clocks may differ."""
    found = measured(job(slow=3, factor=1.5, apart=5000.0))
    ideal = 0.08 * (1 + 0.5 / RANKS) + 0.013  # the mean over ranks is a fifth of the slow one's extra
    assert found.slowdown == pytest.approx((0.12 + 0.013) / ideal, rel=0.01)
    assert found.slowest == (3,)
    assert found.worker_share == pytest.approx(1.0, abs=0.05)
    assert max(found.by_type, key=lambda name: found.by_type[name]) == OWN
    assert found.delay == pytest.approx(1.0, abs=0.002)
    assert found.steps.tolist() == list(range(41, 40 + STEPS))


def test_a_healthy_job_loses_next_to_nothing() -> None:
    """Ranks that differ by 1 % lose 1 %, and no rank is said to explain it."""
    assert 1.0 <= measured(job()).slowdown < 1.012


def test_windows_of_a_recording_are_laid_out() -> None:
    """Where a log has seconds in flight only, the rank that waits least is the one that the others wait for."""
    table, ranks = Collector(), 4
    for step in range(3):
        for rank in range(ranks):
            for name, wait in (("small", 0.01), ("world", 0.02 if rank == 2 else 0.08)):
                group = f"{name} {rank // 2}" if name == "small" else name
                table.add(table.rank(f"rank {rank}", "m7"), group, "AllReduce", step=step, seconds=wait)
    found = measured(table.table(step_seconds=[0.25] * 3))
    assert found.slowest == (2,)
    assert found.replayed == pytest.approx(0.25)
    own = np.array([0.16, 0.16, 0.22, 0.16])
    assert found.ideal == pytest.approx(own.mean() + 0.01 + 0.02)


def test_what_cannot_be_replayed_is_said() -> None:
    """One rank alone, a log without steps, and operations of one rank only are named in words."""
    table = job()
    with pytest.raises(ValueError, match="at least two ranks"):
        timeline(_only(table, table.rank == 1))
    with pytest.raises(ValueError, match="no operation has a step"):
        timeline(_only(table, table.step < 0))
    apart = Collector()
    for step in range(3):
        for rank in range(2):
            times = {"start": step + rank / 2, "seconds": 0.3}
            apart.add(apart.rank(f"rank {rank}"), f"stream 7 of rank {rank}", "SendRecv", step=step, **times)
    with pytest.raises(ValueError, match="no operation of one rank"):
        timeline(apart.table())


def test_operations_without_a_group_are_matched_by_their_end() -> None:
    """Where a profiler names no groups, kernels that end at the same instant are one, and the slow rank is found."""
    table = job(slow=1, factor=1.4)
    names = tuple(f"stream 84 of rank {rank}" for rank in range(RANKS))
    found = measured(replace(table, communicator=table.rank, communicators=names))
    assert found.slowdown == pytest.approx(measured(job(slow=1, factor=1.4)).slowdown)
    assert found.slowest == (1,)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published traces are not here")
def test_published_traces_of_two_ranks() -> None:
    """Of two ranks of a real job of 128 the collectives that both are in are found, and replayed as recorded."""
    table = read_logs(sorted(PUBLISHED.glob("sampled_rank*_of_128.json.gz"))).operations
    model = timeline(table)
    found = analyse(model, JobMeta())
    shared = np.bincount(model.graph.group)
    assert (shared == 2).sum() >= 2
    assert found.delay == pytest.approx(1.0, abs=0.01)
    assert 1.0 < found.slowdown < 1.3


def _only(table: Operations, chosen: np.ndarray) -> Operations:
    """The chosen rows of a table."""
    columns = {one.name: getattr(table, one.name) for one in fields(table)}
    return replace(table, **{
        name: column[chosen] for name, column in columns.items() if isinstance(column, np.ndarray) and len(column)
    })  # fmt: skip
