"""Hangs on arrays of counts: who is missing and who differs, beside what the definition says, and its laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detector.config import Config
from detector.methods.progress.hang import Hang
from detector.methods.progress.hang_text import HangText
from detector.methods.progress.rank_progress import RankProgress, rank_progress
from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows
from detector.topology.rank_table import RankTable
from store.schema.time import SECOND

RANKS, START, STOP = 8, 1_700_000_000 * SECOND, 30
METRICS = ("operations_total", "pending", "rank", "ranks")
CONFIG = Config()


def stopped(
    lag: list[int],
    calls: list[str] | None = None,
    order: list[int] | None = None,
    base: int = 0,
    stands_s: int = 15,
    missing: frozenset[tuple[int, int]] = frozenset(),
) -> tuple[RankTable, RankProgress, int]:
    """Ranks of one communicator that enqueue five operations a second, and stop after 30 s, each so many behind.

    `calls` is what each enqueued last, `order` that of the rows, `base` where the counts begin, `missing` (second,
    rank) rows that did not come.
    """
    order = order or list(range(RANKS))
    ranks, now = RankTable(), START
    idents = tuple((f"m{rank}", "2", "0") for rank in order)
    for second in range(STOP + stands_s):
        now = START + second * SECOND
        over = second >= STOP
        count = base + 5.0 * min(second, STOP) - over * np.array(lag)
        pending = 1.0 * over * (np.array(lag) == 0)
        names = calls if over and calls else ["AllReduce:bf16:9"] * RANKS
        values = np.stack(np.broadcast_arrays(count, pending, np.arange(RANKS) + 0.0, float(RANKS)), 1)[order]
        there = np.array([at for at, rank in enumerate(order) if (second, rank) not in missing])
        words = [names[order[at]] for at in there]
        texts = {
            "comm": (np.zeros(len(there), np.int64), ["c0de"]),
            "operation": (np.arange(len(there)), words),
        }
        time = np.full(len(there), now)
        ranks.update(Rows("nccl", time, there, idents, ("gpu", "slot"), METRICS, values[there], texts))
        progress = rank_progress(now, ranks, CONFIG)
        assert progress is not None
        ranks.note_idle(now, progress.series[progress.idle])
    return ranks, progress, now


def hang(state: tuple[RankTable, RankProgress, int]) -> Hang:
    """The hang at the end."""
    ranks, progress, now = state
    return Hang(now, ranks, progress, HangText(ranks, list(ranks.number)), CONFIG.missing_rank_seconds)


def plain(verdicts: list[Verdict]) -> list[tuple[str, str, float, int]]:
    """Machine, metric, score and onset of each verdict."""
    return sorted((one.machine, one.metric, one.score, one.since) for one in verdicts)


def behind(rank: int, by: int = 1) -> list[int]:
    """Only this rank is behind."""
    return [by * (other == rank) for other in range(RANKS)]


def test_a_communicator_stalls_after_the_least_time_without_progress() -> None:
    """It stalls 8 s and one period after its last progress, not at that time, and only while a rank waits."""
    least = int(CONFIG.min_stall_seconds) + 1
    for stands_s, stalls in ((least + 1, False), (least + 2, True)):
        assert stopped(behind(3), stands_s=stands_s)[1].stalled.all() == stalls
    assert not stopped([1] * RANKS, stands_s=40)[1].stalled.any()


def test_the_rank_that_is_behind_is_missing_by_its_lag() -> None:
    """The one rank with fewer operations that does not wait is missing; its score is by how many it is behind."""
    since = START + STOP * SECOND
    assert plain(hang(stopped(behind(5, 3))).missing_ranks()) == [("m5", "nccl.operations_total", 3.0, since)]
    assert hang(stopped([0] * RANKS)).missing_ranks() == []


@pytest.mark.parametrize(("count", "named"), [(2, 2), (3, 0)])
def test_more_than_a_quarter_behind_are_no_missing_ranks(count: int, named: int) -> None:
    """Of eight ranks two may be missing; where three are behind the counts were not counted alike."""
    lag = [1 * (rank < count) for rank in range(RANKS)]
    assert len(hang(stopped(lag)).missing_ranks()) == named


def test_each_communicator_is_judged_by_its_own_ranks() -> None:
    """One of four ranks that is behind is missing; beside it, two of four are not: they were not counted alike."""
    ranks, progress, now = stopped([0, 1, 0, 0, 0, 1, 1, 0])
    two = replace(progress, comm=np.arange(RANKS) // 4)
    assert [one.machine for one in hang((ranks, two, now)).missing_ranks()] == ["m1"]


def test_the_minority_called_the_wrong_operation() -> None:
    """At equal counts the one rank with another call is named; four against four have no majority."""
    calls = ["AllReduce:bf16:9"] * RANKS
    calls[6] = "AllGather:bf16:9"
    (verdict,) = hang(stopped([0] * RANKS, calls)).mismatched_collectives()
    assert (verdict.machine, verdict.metric, verdict.score) == ("m6", "nccl.operation", 1.0)
    calls[:3] = ["AllGather:bf16:9"] * 3
    assert hang(stopped([0] * RANKS, calls)).mismatched_collectives() == []


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(RANKS)), st.integers(0, RANKS - 1), st.integers(1, 9))
def test_the_order_of_arrival_does_not_matter(order: list[int], rank: int, by: int) -> None:
    """Rows of one time in another order lead to the same verdict."""
    assert plain(hang(stopped(behind(rank, by), order=order)).missing_ranks()) == plain(
        hang(stopped(behind(rank, by))).missing_ranks()
    )


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**7))
def test_where_the_counts_begin_does_not_matter(base: int) -> None:
    """Counts that all are higher by the same number show the same lag."""
    assert plain(hang(stopped(behind(2), base=base)).missing_ranks()) == plain(hang(stopped(behind(2))).missing_ranks())


@settings(max_examples=10, deadline=None)
@given(st.sets(st.tuples(st.sampled_from([9, 17, 33, 38, 41]), st.integers(0, RANKS - 1)), max_size=12))
def test_missing_rows_hide_no_missing_rank(missing: set[tuple[int, int]]) -> None:
    """Rows that did not come here and there change neither who is named nor by how much it is behind."""
    found = hang(stopped(behind(4, 2), missing=frozenset(missing))).missing_ranks()
    assert [(one.machine, one.score) for one in found] == [("m4", 2.0)]
