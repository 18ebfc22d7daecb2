"""Ranks with counts that begin elsewhere, with readings that end or come seldom: no false alarm, no missed hang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.engine.eviction import GONE_NS
from detector.methods.progress.method import Progress
from detector.model.verdict import Verdict
from detector.timeseries.rows import rows_of
from detector.topology.tasks import Tasks
from store.schema.time import SECOND

START = 1_700_000_000 * SECOND
REDUCE, GATHER, BROADCAST = "AllReduce:f32:7", "AllGather:f32:7", "Broadcast:f32:7"
Columns = dict[str, Any]


def table(now: int, machines: Sequence[str], columns: Columns) -> pa.Table:
    """A row of `nccl` for each machine; a single value is that of all, NaN and None are null."""
    columns = {"time": now, "machine": list(machines), "gpu": "0", "slot": "0", "comm": "c0de"} | columns
    machines = columns["machine"]
    alike = {name: [v] * len(machines) if np.ndim(v) == 0 else list(v) for name, v in columns.items() if v is not None}
    return pa.table({name: pa.array(column, from_pandas=True) for name, column in alike.items()})


def judged(
    columns: Callable[[int], Columns], steps: Iterable[int], machines: Sequence[str], tick: int = 1
) -> list[Verdict]:
    """What the method says of a task of these machines, judged every `tick` seconds, with the columns of each."""
    progress, tasks = Progress(Config()), Tasks(said=dict.fromkeys(machines, "run"), seen=set(machines))
    said, rows, due = [], {}, set(steps)
    for second in range(0, max(due), tick):
        now = START + second * SECOND
        rows = {"nccl": rows_of("nccl", table(now, machines, columns(second)))} if second in due else {}
        said += [finding.verdict for finding in progress.step(now, rows, tasks)]
    return said


SIX = [f"m{n}" for n in range(6)]


def named(said: list[Verdict]) -> set[str]:
    """Machines of the verdicts."""
    return {verdict.machine for verdict in said}


@pytest.mark.parametrize("known_from", [0, 30])
@pytest.mark.parametrize("null", [0, 11])
def test_a_count_since_attach_does_not_compare(known_from: int, null: int) -> None:
    """A count since attach does not compare after a null, nor after a restart of an agent with a comparable count.

    The root of a broadcast is through and does not wait while another rank hangs.
    """

    def columns(second: int) -> Columns:
        at = min(second, 60)
        total = 100_000.0 + 3 * at + np.zeros(6)
        unknown, compares = known_from <= second < known_from + null, second < known_from
        total[2] = np.nan if unknown else total[2] if compares else 3.0 * at
        origin = ["memory"] * 6
        origin[2] = "memory" if compares else None if unknown else "attach"
        waits = np.where(np.arange(6) == 2, 0.0, float(second > 60))
        return {"operation": BROADCAST, "operations_total": total, "pending": waits, "counted_from": origin}

    assert judged(columns, range(120), SIX) == []


def test_a_count_that_comes_to_compare_is_taken_as_it_is() -> None:
    """The correction for a late beginning is dropped when a restarted agent learns the whole count."""

    def columns(second: int) -> Columns:
        at, late = np.clip(second, 0, 10) + np.clip(second - 20, 0, 40), second < 30  # at rest from 10 s to 20 s
        total = 1000.0 + 3 * at + (second > 60) * (np.arange(6) != 2)
        origin = ["memory"] * 6
        if late:
            total[2], origin[2] = total[2] - 1000, "attach"
        waits = np.where(np.arange(6) == 2, 0.0, float(second > 60))
        return {"operation": REDUCE, "operations_total": total, "pending": waits, "counted_from": origin}

    assert named(judged(columns, range(120), SIX)) == {"m2"}


@pytest.mark.parametrize("comm", ["c0de", "beef"])
@pytest.mark.parametrize(("missed", "names"), [(0, {"m5"}), (70, set())])
def test_counts_that_are_in_step_after_a_pause_of_the_readings_compare(comm: str, missed: int, names: set[str]) -> None:
    """The rank that called another collective is named after a pause of all readings; one that missed calls is not.

    In the pause the job may have begun again, with new communicators.
    """

    def columns(second: int) -> Columns:
        first, now = (200.0, "c0de") if comm == "c0de" or second < 20 else (-40.0, comm)
        total = first + 3 * min(second, 60) + (second > 60) - missed * (second > 20) * (np.arange(6) == 5)
        odd = [REDUCE] * 5 + [GATHER if second > 60 else REDUCE]
        return {"operation": odd, "operations_total": total, "pending": float(second > 60), "comm": now}

    steps = [second for second in range(100) if not 15 < second < 45]
    assert named(judged(columns, steps, SIX)) == names


@pytest.mark.parametrize(("silent", "within_s"), [((), 20), ((5,), 80)])
def test_a_rank_of_which_the_agent_restarted_is_missing_after_a_minute(silent: tuple[int, ...], within_s: int) -> None:
    """After its rows were missing its count may be an operation off: a stall at once after that proves nothing yet."""

    def columns(second: int) -> Columns:
        there = [n for n in range(6) if not (n in silent and 22 < second < 57)]
        total = 200.0 + 3 * min(second, 60) + (second > 60) * (np.arange(6) != 5)
        waits = (second > 60) & (np.arange(6) != 5)
        machines = [SIX[n] for n in there]
        return {
            "operation": REDUCE,
            "operations_total": total[there],
            "pending": waits[there] * 1.0,
            "machine": machines,
        }

    said = judged(columns, range(170), SIX)
    assert named(said) == {"m5"}
    first = (min(verdict.time for verdict in said) - START) / SECOND - 60
    assert within_s - 25 < first < within_s


@pytest.mark.parametrize(("falls", "names"), [([2], set()), (range(6), {"m2"})])
def test_a_count_that_falls_begins_again_whatever_its_rows_say(falls: Sequence[int], names: set[str]) -> None:
    """A rank that alone counts from 0 again is not missing in a pause; where all do, the one that lacks a call is."""

    def columns(second: int) -> Columns:
        total = 500.0 + 3 * min(second, 60) + (second > 60) * (np.arange(6) != 2) * (len(falls) > 1)
        total[list(falls)] -= 560 * (second >= 20)
        waits = np.where(np.arange(6) == 2, 0.0, float(second > 60))
        return {"operation": REDUCE, "operations_total": total, "pending": waits, "counted_from": "birth"}

    steps = [second for second in range(100) if not 15 < second < 23]
    assert named(judged(columns, steps, SIX)) == names


def test_a_count_that_is_null_at_rest_is_compared_later() -> None:
    """A rank that had not been read while all rested is found missing all the same."""

    def columns(second: int) -> Columns:
        total = 3.0 * np.clip(second - 20, 0, 40) + (second > 60) * (np.arange(6) != 4)
        total = np.where((np.arange(6) == 4) & (second < 22), np.nan, total)
        return {
            "operation": REDUCE,
            "operations_total": total,
            "pending": np.where(np.arange(6) == 4, 0.0, float(second > 60)),
        }

    assert named(judged(columns, range(90), SIX)) == {"m4"}


@pytest.mark.parametrize("every", [1, 15, 30, 60])
def test_rows_that_come_seldom_are_no_hang(every: int) -> None:
    """A rank that is read a moment before the others is not missing, however old its row gets."""

    def columns(second: int) -> Columns:
        total = 1000.0 * second + (np.arange(6) != 4)
        return {"operation": REDUCE, "operations_total": total, "pending": (np.arange(6) != 4).astype(float)}

    assert judged(columns, range(0, 400, every), SIX) == []


@pytest.mark.parametrize("unknown", [{"ranks": None}, {"operation": [REDUCE, GATHER, *[None] * 10]}])
def test_who_is_not_known_has_no_vote(unknown: Columns) -> None:
    """Two ranks that disagree cannot outvote each other, nor can ranks of which operation or size is not known."""

    def columns(second: int) -> Columns:
        odd = GATHER if second > 15 else REDUCE
        known = {"operation": [REDUCE, odd] * 6, "ranks": 2.0} | (unknown if second > 15 else {})
        pairs = [f"pair{n // 2}" for n in range(12)]
        return known | {"operations_total": 3.0 * min(second, 15), "pending": float(second > 15), "comm": pairs}

    assert judged(columns, range(40), [f"m{n}" for n in range(12)]) == []


@pytest.mark.parametrize("gone", ["silent", "null", "flickering"])
def test_a_rank_that_falls_silent_makes_no_rank_late(gone: str) -> None:
    """The detector learns the mean again from the ranks that are left: the mean of all is no measure of theirs."""
    noise = np.random.default_rng(6).normal(0, 0.01, (200, 3))
    progress, tasks = Progress(Config()), Tasks(said=dict.fromkeys(SIX[:3], "run"), seen=set(SIX[:3]))
    for second in range(200):
        active = np.array([0.2, 0.8, 0.5]) + noise[second]
        there = slice(1 if gone == "silent" and second > 60 else 0, 3)
        if (gone == "null" and second > 60) or (gone == "flickering" and second % 4 == 1):
            active[0] = np.nan
        shared = {"operation": REDUCE, "operations_total": 3.0 * second, "active_ratio": active[there], "pending": 0.0}
        now = START + second * SECOND
        rows = rows_of("nccl", table(now, SIX[:3][there], shared | {"send_pending_ratio": 0.1}))
        assert progress.step(now, {"nccl": rows}, tasks) == []


@pytest.mark.parametrize("every", [1, 60, 300])
@pytest.mark.parametrize("flickers", [False, True])
def test_a_straggler_is_named_at_any_period(every: int, flickers: bool) -> None:
    """A straggler is named also where one reading lasts as long as a norm, and where a machine is read now and then."""
    noise = np.random.default_rng(7).normal(0, 0.02, (90, 6))

    def columns(second: int) -> Columns:
        active = 0.3 + noise[second // every] + (second >= 60 * every) * np.where(np.arange(6) == 4, -0.25, 0.25)
        active[1] = np.nan if flickers and second // every % 5 == 2 else active[1]
        shared = {"operations_total": 3.0 * second, "active_ratio": active, "send_pending_ratio": 0.1}
        return shared | {"operation": REDUCE, "pending": 0.0, "iteration_seconds": 1.3}

    assert named(judged(columns, range(0, 90 * every, every), SIX, max(1, every // 20))) == {"m4"}


def test_steps_are_compared_with_what_is_usual() -> None:
    """A rank that is always a step behind its neighbour is not the one that comes late when both do."""
    noise = np.random.default_rng(8).normal(0, 0.01, (140, 6))
    names = ["m0", "m0", "m1", "m1", "m2", "m2"]

    def columns(second: int) -> Columns:
        late = np.array([0.25, 0.25, 0.25, 0.25, -0.23, -0.25])
        active = 0.3 + noise[second] + (second >= 100) * late
        shared = {"operations_total": 3.0 * second, "active_ratio": active, "send_pending_ratio": 0.1, "pending": 0.0}
        shared["iteration_seconds"] = 1.9
        return shared | {"operation": REDUCE, "gpu": ["5", "3"] * 3, "step": 640.0 - np.array([0, 0, 0, 0, 1, 0])}

    said = judged(columns, range(140), names)
    assert {(verdict.machine, verdict.device) for verdict in said} == {("m2", "gpu:3")}


def test_a_norm_begun_amid_trouble_is_one() -> None:
    """An agent that is restarted while iterations are longer, and numbers communicators again, raises no alarm."""
    noise = np.random.default_rng(9).normal(0, 0.002, (160, 2, 8))
    machines = [f"m{n // 2}" for n in range(8)]

    def columns(second: int) -> Columns:
        comm = ["world", "a", "world", "a", "world", "b", "world", "b"]
        if second > 100:
            comm[2:4] = ["a", "world"]
        seconds = 0.5 * (1.2 if second > 60 else 1.0) + noise[second, 0]
        active = np.array([0.04 if name == "world" else 0.2 for name in comm]) + noise[second, 1]
        ranks = [4.0 if name == "world" else 2.0 for name in comm]
        counts = {"operations_total": 3.0 * second, "steps_done_total": 9.0 * second, "ranks": ranks}
        shared = counts | {"active_ratio": active, "iteration_seconds": seconds, "send_pending_ratio": 0.1}
        return shared | {"operation": REDUCE, "pending": 0.0, "slot": ["0", "1"] * 4, "comm": comm}

    assert judged(columns, range(160), machines) == []


def test_slots_without_gpus_are_no_gpus() -> None:
    """A recording that lacks the column of GPUs: a victim that waits elsewhere is still seen to."""
    machines = [f"m{n // 2}" for n in range(24)]
    which, world = np.arange(24) // 2, np.arange(24) % 2 == 0
    missing = (which == 4) | ((which == 5) & world)

    def columns(second: int) -> Columns:
        comm = ["world" if n % 2 == 0 else f"pair{n // 4}" for n in range(24)]
        waits = ~missing & (world | (which == 5))
        total = 3.0 * min(second, 15) + (second > 15) * ~missing
        shared = {"operations_total": total, "pending": (waits & (second > 15)).astype(float)}
        return shared | {"operation": REDUCE, "comm": comm, "slot": ["0", "1"] * 12, "gpu": None}

    said = judged(columns, range(40), machines)
    assert {(verdict.machine, verdict.device) for verdict in said} == {("m4", None)}


def test_communicators_of_the_past_are_forgotten() -> None:
    """A task that makes its communicators again every hour, for months, takes no more room for them."""
    progress, tasks = Progress(Config()), Tasks()
    for hour in range(500):
        now = START + hour * 3600 * SECOND
        progress.ranks.update(rows_of("nccl", table(now, SIX[:2], {"comm": f"{hour:016x}", "operations_total": 1.0})))
        progress.evict(now - GONE_NS, tasks)
    assert len(progress.ranks._comms) < 9


def test_communicators_of_one_name_differ_by_their_ranks() -> None:
    """Ranks of a communicator of two are no ranks of one of six that has the same name, however far these have come."""
    eight = [*SIX, "m6", "m7"]

    def columns(second: int) -> Columns:
        at = 7 * min(second, 60)
        return {
            "rank": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0],
            "ranks": [6.0] * 6 + [2.0] * 2,
            "operation": REDUCE,
            "operations_total": [9_000.0 + at] * 6 + [8_100.0 + at] * 2,
            "pending": [float(second > 60)] * 6 + [0.0] * 2,
            "counted_from": "birth",
        }

    assert judged(columns, range(120), eight) == []


def test_an_agent_that_begins_to_count_again_makes_no_progress_of_a_hang() -> None:
    """While m2 is missing the agents of two others restart in turn: it is named as soon as if they had not.

    Nor do the 45 s that the agent of m0 did not read before that tell how long ranks wait for each other.
    """

    def columns(second: int) -> Columns:
        at, again = min(second, 90), np.array([101, 999, 999, 123, 999, 999])
        total = 700.0 + 4 * at + (second > 90) * (np.arange(6) != 2)
        there = [n for n in range(6) if not (15 <= second < 60 and n == 0) and not again[n] - 6 <= second < again[n]]
        total[0] = 4.0 * (at - 60) if second >= 60 else total[0]
        total, waits = np.where(second >= again, 0.0, total), (second <= 90) | (np.arange(6) != 2)
        return {
            "machine": [SIX[n] for n in there],
            "operation": REDUCE,
            "counted_from": "birth",
            "operations_total": total[there],
            "pending": waits[there].astype(float),
        }

    said = judged(columns, range(170), SIX)
    assert named(said) == {"m2"}
    assert 60 <= (min(one.time for one in said) - START) / SECOND - 90 <= 65


@pytest.mark.parametrize(("called", "machines"), [(False, {"m4"}), (True, set())])
def test_a_count_that_sticks_while_calls_are_made_is_no_hang(called: bool, machines: set[str]) -> None:
    """All ranks made their last call within a second, say their agents: then the counts that stay are wrong."""

    def columns(second: int) -> Columns:
        at = min(second, 70)
        total = 300.0 + 6 * at + (second > 70) * (np.arange(6) != 4)
        idle = 0.3 if called else max(second - 70, 0) + 0.3
        waits = ((second > 70) & (np.arange(6) != 4)).astype(float)
        return {"operation": REDUCE, "operations_total": total, "pending": waits, "idle_seconds": idle}

    assert named(judged(columns, range(120), SIX)) == machines
