"""A task that stands still: how its ranks stood, and where they were, those alike together and the odd ones named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from detector.explain.explanation import explain
from detector.explain.rank_snapshot import GPU, RECEIVES, RESTS, SENDS, WAITS, Place, RankSnapshot
from detector.explain.stack_groups import stack_groups
from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows, rows_of
from tests.detector.conftest import SECOND, START, Memory

WAITING, ELSEWHERE = "wait (rank.py:86)\ntrain (rank.py:202)", "read (socket.py:7)\ntrain (rank.py:191)"


def table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows as a store gives them: a column that some lack is null there."""
    names = {name for row in rows for name in row}
    return pa.table({name: [row.get(name) for row in rows] for name in sorted(names)})


def stack(number: int, text: str, form: str = "python", **values: Any) -> dict[str, Any]:
    """A row of the table `stack`."""
    row = {"time": START + number, "machine": f"m{number:02d}", "gpu": "3", "pid": 500.0 + number}
    return row | {"form": form, "stack": text, "still_seconds": 8.0 + number, **values}


def rank(number: int, **values: Any) -> dict[str, Any]:
    """A row of the table `nccl`: one rank of a communicator of six."""
    row = {"time": START, "machine": f"m{number:02d}", "gpu": "3", "slot": "0", "pid": 500.0 + number, "comm": "c1"}
    row |= {"rank": float(number), "ranks": 6.0, "operation": "AllReduce:f32:77", "operations_total": 41}
    return (
        row | {"pending": 1.0, "waits_to_send_to": -1.0, "waits_to_receive_from": -1.0, "waits_for_gpu": 0.0} | values
    )


def stacks(rows: Sequence[dict[str, Any]]) -> Rows:
    """The rows in the detector's terms."""
    return rows_of("stack", table(sorted(rows, key=lambda row: row["time"])))


def standing(rows: Sequence[dict[str, Any]]) -> RankSnapshot:
    """The ranks as the newest of these rows show them."""
    return RankSnapshot(rows_of("nccl", table(rows)))


def test_the_odd_one_is_named() -> None:
    """Equal stacks are one group; the rank with a stack that differs from all others is odd, and known by its rank."""
    rows = [stack(number, ELSEWHERE if number == 4 else WAITING) for number in range(6)]
    ranks = standing([rank(number) for number in range(6)]).ranks()
    usual, odd = stack_groups(stacks(rows), ranks, [f"m{number:02d}" for number in range(6)])
    assert (usual.odd, [place.rank for place in usual.places]) == (False, [0, 1, 2, 3, 5])
    assert (odd.odd, odd.places) == (True, (Place("m04", "3", 504, 4),))
    assert (odd.stack, odd.still_seconds, odd.time) == (ELSEWHERE, 12.0, START + 4)


@pytest.mark.parametrize(
    ("texts", "odd"),
    [
        (["a", "b"], []),
        (["a", "a", "b"], ["b"]),
        (["a"] * 4 + ["b"] * 4, []),
        (["a"] * 5 + ["b"] * 2 + ["c"], ["b", "c"]),
        (["a"] * 4 + ["b"] * 3 + ["c"], ["c"]),
        (["a"] * 3, []),
    ],
)
def test_who_is_odd(texts: list[str], odd: list[str]) -> None:
    """At most one rank in four is odd, beside a larger group; stages that stand apart in halves name no rank."""
    rows = [stack(number, text) for number, text in enumerate(texts)]
    groups = stack_groups(stacks(rows), {}, [f"m{number:02d}" for number in range(9)])
    assert sorted(group.stack for group in groups if group.odd) == odd


def test_what_does_not_count() -> None:
    """Other tasks' machines and a second hang of a process do not count; an unread rank is shown, never odd."""
    later = stack(1, ELSEWHERE) | {"time": START + 70}
    unread = stack(3, "", "none", error="it has ended")
    rows = [stack(number, WAITING) for number in range(3)] + [later, unread, stack(8, ELSEWHERE)]
    groups = stack_groups(stacks(rows), {}, ["m00", "m01", "m02", "m03"])
    assert [(group.form, len(group.places), group.odd) for group in groups] == [
        ("python", 3, False),
        ("none", 1, False),
    ]
    assert groups[1].error == "it has ended"


def test_how_ranks_stood() -> None:
    """Ranks that are equally far and in the same state are together; a single one has its peer."""
    rows = [rank(number, waits_to_receive_from=float(number - 1)) for number in (2, 3, 5)]
    rows += [
        rank(0, waits_to_send_to=1.0, waits_to_receive_from=5.0),
        rank(1, waits_for_gpu=1.0),
        rank(4, operations_total=40, operation="Broadcast:f16:9", pending=0.0),
        rank(7, comm="other"),
    ]
    found = standing(rows).members("m04", "gpu:3")
    given = [(one.state, [place.rank for place in one.places], one.peer) for one in found]
    assert sorted(given) == [(GPU, [1], None), (RECEIVES, [2, 3, 5], None), (RESTS, [4], None), (SENDS, [0], 1)]
    assert (found[-1].operations, found[-1].operation, found[-1].ranks) == (40, "Broadcast:f16:9", 6)


def test_what_is_not_known() -> None:
    """The share of looks decides where no peer can be read, else the watchdog; an older row does not count."""
    blind = {"waits_to_send_to": None, "waits_to_receive_from": None}
    rows = [rank(0, **blind, receive_pending_ratio=0.97), rank(1, **blind, operations_total=None)]
    rows += [rank(2, time=START - SECOND, waits_to_send_to=1.0), rank(2, pending=0.0)]
    found = {one.state: one for one in standing(sorted(rows, key=lambda row: row["time"])).members("m00", None)}
    assert {state: [place.rank for place in one.places] for state, one in found.items()} == {
        RECEIVES: [0],
        WAITS: [1],
        RESTS: [2],
    }
    assert (found[RECEIVES].peer, found[WAITS].operations) == (None, None)


def test_rank_of_the_largest() -> None:
    """A process of several communicators is known by its rank in the largest."""
    rows = [rank(5), rank(5, slot="1", comm="c2", rank=1.0, ranks=2.0), rank(4, rank=None, ranks=None)]
    assert standing(rows).ranks() == {("m05", "3", 505): 5}


def test_what_the_odd_ones_share() -> None:
    """Several odd ranks are known by the smallest communicator that joins them, if it is not the task's largest."""
    rows = [rank(number) for number in range(6)]
    rows += [rank(number, slot="1", comm=f"pair{number // 2}", ranks=2.0) for number in range(6)]
    stood, (first, second, third) = standing(rows), (("m02", "3", 502), ("m03", "3", 503), ("m04", "3", 504))
    assert stood.shared({first, second}) == "pair1"
    assert stood.shared({second, third}) == ""
    assert stood.shared({first}) == ""


def test_with_the_verdict() -> None:
    """The stacks of a verdict are found by its time, and only for methods that find hangs."""
    late = START + 30 * SECOND
    rows = [rank(number, time=late - SECOND) for number in range(6)]
    taken = [stack(number, WAITING) | {"time": START + 9 * SECOND + number} for number in range(6)]
    old = [stack(2, ELSEWHERE) | {"time": START - 9 * SECOND}]
    store = Memory({"nccl": table(rows), "stack": table(old + taken)})
    given = {"metric": "nccl.operations_total", "score": 1.0, "since": START, "level": "crit", "message": "it hangs"}
    hang = explain(store, Verdict(late, "all", "m03", "gpu:3", "progress", **given))  # type: ignore[arg-type]
    assert [len(group.places) for group in hang.hang.stacks] == [6]
    assert [len(one.places) for one in hang.hang.members] == [6]
    assert not hang.events
    slow = explain(store, Verdict(late, "all", "m03", "gpu:3", "peer", **given))  # type: ignore[arg-type]
    assert (slow.hang.stacks, slow.hang.members) == ((), ())


def test_what_nccl_says_of_it() -> None:
    """The time line has NCCL's status of the task's own communicators, or why there is none, and no others'."""
    late = START + 30 * SECOND
    rows = [rank(number, time=late - SECOND) for number in range(6)]
    asked = {"time": START + 21 * SECOND, "machine": "m00", "ranks": 6.0, "answered": 5.0}
    said = [
        asked | {"slot": "0", "comm": "c1", "missing": "rank 2 does not answer", "behind": "rank 3 launched less"},
        asked | {"slot": "1", "comm": "another's", "missing": "rank 9 does not answer"},
        asked | {"slot": "2", "time": START + 29 * SECOND, "error": "not asked"},
        asked | {"slot": "3", "time": START + 30 * SECOND, "comm": "c1", "answered": 6.0},
    ]
    store = Memory({"nccl": table(rows), "ras": table(said)})
    given = {"metric": "nccl.operations_total", "score": 1.0, "since": START, "level": "crit", "message": "it hangs"}
    found = explain(store, Verdict(late, "all", "m03", "gpu:3", "progress", **given))  # type: ignore[arg-type]
    assert [one.message for one in found.events] == [
        "NCCL's status of communicator c1, 5 of 6 ranks: rank 2 does not answer; rank 3 launched less",
        "NCCL gave no status: not asked",
        "NCCL's status of communicator c1, 6 of 6 ranks: all launched the same, none failed",
    ]
