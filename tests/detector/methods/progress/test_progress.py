"""Progress: who holds up a communicator that stands still."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import replay
from detector.model.verdict import Verdict

SECOND, START = 10**9, 1_700_000_000 * 10**9
LATE, ENOUGH = 75, 100
"""Steps: from when on a rank is late, after a minute in which its peers learn what is usual, and of all."""
REDUCE, GATHER, SUM = "AllReduce:float32:512", "AllGather:float32:512", "ReduceScatter:float32:512"


def ranks(memory: Any, stops_at: int, **more: Any) -> list[Verdict]:
    """Verdicts over a communicator that stops."""
    return list(replay(memory({"nccl": calls(stops_at, **more)})))


def calls(
    stops_at: int, behind: int | None = None, differs: int | None = None, pending: bool = True, **more: Any
) -> pa.Table:
    """Rows of six machines in one communicator that moves three operations a second until `stops_at`."""
    steps, machines = more.get("steps", 60), 6
    step = np.arange(steps)[:, None] + np.zeros(machines, int)
    operations = 3 * np.minimum(step, stops_at) + more.get("counted_from", np.zeros(machines, int))
    waits = (step > stops_at) & pending
    operation = np.full(step.shape, more.get("operation", REDUCE), dtype="U40")
    if behind is not None:
        operations[stops_at + 1 :] += np.arange(machines) != behind
        waits[:, behind] = False
    if differs is not None:
        operation[stops_at + 1 :, differs] = GATHER
    hosts = more.get("hosts", [f"m{n}" for n in range(machines)])
    skew = np.random.default_rng(4).uniform(-0.4, 0.4, machines)[np.unique(hosts, return_inverse=True)[1]]
    flat = {
        "time": START + ((step + skew) * SECOND).astype(np.int64),
        "machine": np.array(hosts) + np.full(step.shape, ""),
        "operations_total": operations,
        "pending": waits.astype(float),
        "operation": operation,
        "rank": np.arange(machines) + 0.0 * step,
    }
    flat |= {name: column(step) for name, column in more.get("columns", {}).items()}
    if "unread" in more:
        flat["operations_total"] = np.where(step % more["unread"], operations, np.nan)
    table = pa.table({name: pa.array(column.reshape(-1), from_pandas=True) for name, column in flat.items()})
    if "origin" in more:
        table = table.append_column("counted_from", pa.array(more["origin"] * steps))
    table = table.append_column("comm", pa.array(more.get("comms", ["c0de"] * machines) * steps))
    table = table.append_column("gpu", pa.array(more.get("gpus", ["0"] * machines) * steps))
    for name, value in (("slot", "0"), ("ranks", more.get("ranks", 6.0))):
        table = table.append_column(name, pa.array([value] * len(table)))
    return table.drop_columns(more.get("without", []))


def first_after(table: pa.Table, memory: Any, since: int) -> float:
    """Seconds from this step to the first verdict."""
    return min(v.time - START for v in replay(memory({"nccl": table}))) / SECOND - since


def test_a_hang_of_ranks_that_have_just_begun_is_said_after_a_minute(memory: Any) -> None:
    """Ranks that load or connect look the same."""
    assert 60 < first_after(calls(1, behind=2, steps=90), memory, 1) < 70
    assert first_after(calls(5, behind=2, steps=90), memory, 5) < 15


def test_ranks_that_move_in_another_communicator_do_not_hang_yet(memory: Any) -> None:
    """A communicator stands from 30 s on; its ranks go on in another one until 52 s, or have none."""
    alone = calls(30, behind=2, steps=90)
    other = calls(52, behind=2, steps=90, comms=["beef"] * 6)
    other = other.set_column(other.schema.get_field_index("slot"), "slot", pa.array(["1"] * len(other)))
    assert first_after(alone, memory, 30) < 15
    assert 22 < first_after(pa.concat_tables([alone, other]), memory, 30) < 37


def test_a_hang_beside_ranks_that_are_not_read_is_said_after_a_minute(memory: Any) -> None:
    """They may be the cause, as while a task starts and its agents come one after the other."""
    first = {
        size: min(v.time - START for v in ranks(memory, stops_at=30, behind=2, steps=120, ranks=size)) / SECOND - 30
        for size in (6.0, 8.0)
    }
    assert first[6.0] < 15
    assert 60 < first[8.0] < 70


def test_the_rank_that_never_entered_is_named(memory: Any) -> None:
    """The rank behind all others is the root; a warning at first, since it may be writing a checkpoint for all."""
    verdict, later = ranks(memory, stops_at=20, behind=4)
    assert (verdict.kind, verdict.machine, verdict.device) == ("progress", "m4", "gpu:0")
    assert (verdict.metric, verdict.level, verdict.task) == ("nccl.operations_total", "warn", "task of m0")
    assert (later.machine, later.level, later.since) == ("m4", "crit", verdict.since)
    assert "m4 GPU 0 (rank 4) never entered AllReduce (float32 × 512): 5 ranks waiting for it" in verdict.message
    assert 8 * SECOND <= verdict.time - START - 20 * SECOND <= 15 * SECOND


def test_what_is_not_known_is_not_said(memory: Any) -> None:
    """A recording without devices and ranks gives a sentence without them."""
    verdict, _ = ranks(memory, stops_at=20, behind=1, without=["gpu", "slot", "rank"])
    assert (verdict.machine, verdict.device) == ("m1", None)
    assert verdict.message.startswith("m1 never entered AllReduce")


def test_a_count_that_is_null_is_no_motion(memory: Any) -> None:
    """Counts that could not be read at times do not hide the rank that never entered."""
    whole, gappy = (ranks(memory, stops_at=22, behind=3, **more) for more in ({}, {"unread": 7}))
    assert (
        [(v.machine, v.level) for v in gappy]
        == [(v.machine, v.level) for v in whole]
        == [("m3", "warn"), ("m3", "crit")]
    )


def test_counts_without_a_common_beginning_are_not_compared(memory: Any) -> None:
    """A rank with an agent that came late and says so is not behind, however few operations it has counted."""
    late = np.array([0, 0, -50, 0, 0, 0])
    assert ranks(memory, stops_at=30, counted_from=late, origin=["birth", "birth", "attach", *["memory"] * 3]) == []
    assert ranks(memory, stops_at=31, behind=2, counted_from=late, origin=["attach"] * 6) == []
    assert ranks(memory, stops_at=30, counted_from=late, origin=["birth"] * 6) == []  # a count below 0 began elsewhere


def test_the_wrong_collective_is_named(memory: Any) -> None:
    """The verdict names the rank that called something else at the same count, and blames no hardware."""
    (verdict,) = ranks(memory, stops_at=33, differs=2)
    assert (verdict.machine, verdict.metric) == ("m2", "nccl.operation")
    assert "called AllGather (float32 × 512), its 5 peers called AllReduce (float32 × 512)" in verdict.message
    assert "the hardware is not the cause" in verdict.message


def test_of_two_that_differ_the_one_that_departs_from_its_own_history_is_named(memory: Any) -> None:
    """Groups of two have no majority: the history of calls decides, and without it no rank is named."""
    pairs = {"comms": ["c0", "c0", "c1", "c1", "c2", "c2"], "ranks": 2.0}

    def departs(step: Any) -> Any:
        return 1.0 * ((step > 33) & (np.arange(6) == 3))

    called = [SUM, SUM, SUM, SUM, GATHER, GATHER]
    (verdict,) = ranks(memory, stops_at=33, differs=3, columns={"departs": departs}, operation=called, **pairs)
    assert (verdict.machine, verdict.metric, verdict.level) == ("m3", "nccl.operation", "crit")
    both = {"departs": lambda step: 1.0 * ((step > 33) & (np.arange(6) // 2 == 1))}
    assert ranks(memory, stops_at=33, differs=3, columns=both, operation=called, **pairs) == []


def test_no_rank_is_named_when_no_rank_waits(memory: Any) -> None:
    """No rank is named in a checkpoint, which stops all ranks without pending work, or in a task that moves."""
    assert ranks(memory, stops_at=25, pending=False) == []
    assert ranks(memory, stops_at=60) == []


def test_all_waiting_alike_names_no_rank(memory: Any) -> None:
    """No rank is behind when every rank waits at the same count."""
    assert ranks(memory, stops_at=27) == []


def test_send_and_receive_differ_by_nature(memory: Any) -> None:
    """Point-to-point operations are not compared."""
    assert ranks(memory, stops_at=28, behind=1, operation="Send:float32:64") == []
    assert ranks(memory, stops_at=28, differs=1, operation="Recv:float32:64") == []


def test_a_link_that_holds_up_all_is_named_with_both_ends(memory: Any) -> None:
    """The verdict names the rank with a chunk that does not arrive, and its peer, when all have entered."""

    def sends_to(step: Any) -> Any:
        return np.where((step > 24) & (np.arange(6) == 2), 3.0, -1.0)

    def receives_from(step: Any) -> Any:
        return np.where(step > 24, (np.arange(6) - 1.0) % 6, -1.0)

    columns = {"waits_to_send_to": sends_to, "waits_to_receive_from": receives_from}
    (verdict,) = ranks(memory, stops_at=24, columns=columns)
    assert (verdict.machine, verdict.device, verdict.metric) == ("m2", "gpu:0", "nccl.waits_to_send_to")
    assert "sent a chunk to m3 GPU 0 (rank 3) that does not arrive; 6 ranks waiting for 10 s" in verdict.message
    assert verdict.time - START - 24 * SECOND <= 15 * SECOND


def test_a_gpu_that_offers_nothing_is_named(memory: Any) -> None:
    """The one rank that lacks no data is the root when no chunk is under way."""

    def receives_from(step: Any) -> Any:
        return np.where((step > 26) & (np.arange(6) != 1), (np.arange(6) - 1.0) % 6, -1.0)

    columns = {"waits_to_send_to": lambda step: 0.0 * step - 1, "waits_to_receive_from": receives_from}
    (verdict,) = ranks(memory, stops_at=26, columns=columns)
    assert (verdict.machine, verdict.metric) == ("m1", "nccl.waits_for_gpu")
    assert "its GPU sends none" in verdict.message


def test_findings_4_4_a_gpu_that_hangs_under_cuda_graphs_is_named(memory: Any) -> None:
    """Replays call nothing, so that transfers tell progress; the verdict says what that means for the operation."""

    def receives_from(step: Any) -> Any:
        return np.where((step > 31) & (np.arange(6) != 4), (np.arange(6) - 1.0) % 6, -1.0)

    columns = {
        "operations_total": lambda step: 0.0 * step + 7,
        "replayed": lambda step: 0.0 * step + 1,
        "steps_done_total": lambda step: 53.0 * np.minimum(step, 31),
        "waits_to_send_to": lambda step: 0.0 * step - 1,
        "waits_to_receive_from": receives_from,
    }
    (verdict,) = ranks(memory, stops_at=31, columns=columns)
    assert (verdict.machine, verdict.metric) == ("m4", "nccl.waits_for_gpu")
    assert verdict.time - START - 31 * SECOND <= 15 * SECOND
    assert "CUDA graphs replay its operations: the one named is the last that the program called itself" in (
        verdict.message
    )


def test_findings_4_4_a_rank_that_hangs_under_cuda_graphs_is_named(memory: Any) -> None:
    """Counts stand for all: the one rank with nothing at work, while the others wait in a replay, never began it."""

    def active(step: Any) -> Any:
        return np.where((step > 27) & (np.arange(6) == 5), 0.0, 0.9)

    columns = {
        "operations_total": lambda step: 0.0 * step + 13,
        "replayed": lambda step: 0.0 * step + 1,
        "steps_done_total": lambda step: 71.0 * np.minimum(step, 27),
        "active_ratio": active,
        "pending": lambda step: 1.0 * ((step > 27) & (np.arange(6) != 5)),
        "waits_to_send_to": lambda step: 0.0 * step - 1,
        "waits_to_receive_from": lambda step: np.where(
            (step > 27) & (np.arange(6) != 5), (np.arange(6) - 1.0) % 6, -1.0
        ),
    }
    verdict, later = ranks(memory, stops_at=27, columns=columns)
    assert (verdict.machine, verdict.device, verdict.level, later.level) == ("m5", "gpu:0", "warn", "crit")
    assert "m5 GPU 0 (rank 5) replays no CUDA graph, and has nothing at work: 5 ranks waiting" in verdict.message
    assert verdict.time - START - 27 * SECOND <= 15 * SECOND


def test_a_wrong_collective_is_found_though_hosts_ran_ahead(memory: Any) -> None:
    """All have enqueued the same operation since; the rank that departs from its own order is named."""
    columns = {
        "departs": lambda step: np.where(step > 23, 1.0 * (np.arange(6) == 2), np.nan),
        "waits_to_send_to": lambda step: 0.0 * step - 1,
        "waits_to_receive_from": lambda step: np.where(step > 23, (np.arange(6) - 1.0) % 6, -1.0),
    }
    (verdict,) = ranks(memory, stops_at=23, columns=columns)
    assert (verdict.machine, verdict.metric, verdict.level) == ("m2", "nccl.departs", "crit")
    assert "left the order of its own calls before it and its 5 peers stalled" in verdict.message


def test_lost_calls_make_absence_less_sure(memory: Any) -> None:
    """A rank that seems to be behind stays a warning where the probes lost calls, and the verdict says why."""
    (verdict,) = ranks(memory, stops_at=19, behind=5, columns={"lost_total": lambda step: 17.0 * (step > 9)})
    assert (verdict.machine, verdict.level) == ("m5", "warn")
    assert "The probes lost 17 calls, so this is less certain" in verdict.message


def shares(late: int, sends: int, steps: int = ENOUGH, felt: bool = True) -> dict[str, Any]:
    """Two columns: from step 75 on the late rank is hardly ever at work, and the slow sender always sending.

    The others wait for them in their collectives, unless it is not `felt`.
    """
    noise = np.random.default_rng(8).normal(0, 0.02, (steps, 6))
    who = np.arange(6)

    def active(step: Any) -> Any:
        return 0.3 + noise + (step > LATE) * np.where(who == late, -0.25, 0.25 * felt)

    def sending(step: Any) -> Any:
        return 0.1 + noise / 2 + (step > LATE) * (who == sends) * 0.5

    return {"active_ratio": active, "send_pending_ratio": sending, "iteration_seconds": lambda step: 0.0 * step + 1.7}


def test_the_rank_that_comes_last_each_time_is_named(memory: Any) -> None:
    """The rank that all others wait for is a straggler and no hang, and is named within 15 s."""
    found = [v for v in ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=shares(4, -1)) if v.kind == "progress"]
    assert {(v.machine, v.metric) for v in found} == {("m4", "nccl.active_ratio")}
    assert "m4 GPU 0 is the straggler: 5 ranks wait 0.4 s per iteration for it" in found[0].message
    assert 0 < found[0].time - START - LATE * SECOND <= 15 * SECOND


def test_ranks_that_take_turns_at_the_end_of_long_iterations_are_no_stragglers(memory: Any) -> None:
    """Where no reading tells that iterations last 43 s, 9 s of waiting in each name no rank; lasting ones do."""
    noise = np.random.default_rng(17).normal(0, 0.02, (400, 6))

    def active(lasts: bool) -> Any:
        second = np.arange(400)[:, None]
        late = (
            np.arange(6) == np.where(second > 250, 2, second // 43 % 6) if lasts else np.arange(6) == second // 43 % 6
        )
        on = (second > 100) & ((second % 43 >= 34) | (lasts & (second > 250)))
        return lambda step: 0.3 + noise + on * np.where(late, -0.27, 0.26)

    columns = {"send_pending_ratio": lambda step: 0.1 + noise / 2}
    turns = ranks(memory, stops_at=400, steps=400, columns=columns | {"active_ratio": active(lasts=False)})
    assert [v for v in turns if v.kind == "progress"] == []
    lasting = ranks(memory, stops_at=400, steps=400, columns=columns | {"active_ratio": active(lasts=True)})
    assert {v.machine for v in lasting if v.kind == "progress"} == {"m2"}


def ahead(late: int, longer: float, less: float = 0.4, receiving_noise: float = 0.01) -> dict[str, Any]:
    """What NVIDIA's libnccl showed of hosts that run ahead, before and after step 75.

    Operations are always at work. Data lies unread at the late rank's GPU, and iterations take so many times as long.
    """
    noise = np.random.default_rng(13).normal(0, 0.02, (ENOUGH, 6))

    def receiving(step: Any) -> Any:
        return 0.93 + noise / 0.02 * receiving_noise - (step > LATE) * (np.arange(6) == late) * less

    return {
        "active_ratio": lambda step: 0.97 + noise / 4,
        "receive_pending_ratio": receiving,
        "iteration_seconds": lambda step: 0.21 * np.where(step > LATE, longer, 1.0) + noise / 40,
    }


def test_findings_4_1_a_late_gpu_is_named_where_hosts_run_ahead(memory: Any) -> None:
    """The GPU that leaves its data lying is late where hosts post all operations early."""
    found = [v for v in ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=ahead(3, 1.42)) if v.kind == "progress"]
    assert {v.machine for v in found} == {"m3"}
    assert "m3 GPU 0 is the straggler: 5 ranks wait 0.1 s per iteration for it" in found[0].message
    assert 0 < found[0].time - START - LATE * SECOND <= 12 * SECOND


@pytest.mark.parametrize(("noise", "names"), [(0.02, {"m3"}), (0.14, set())])
def test_a_small_excess_counts_where_readings_are_quiet(memory: Any, noise: float, names: set[str]) -> None:
    """A GPU that leaves its data lying for a seventh of the time is named within 20 s if readings are quiet."""
    found = [
        v
        for v in ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=ahead(3, 1.19, 0.15, noise))
        if v.kind == "progress"
    ]
    assert {v.machine for v in found} == names


def test_what_a_task_does_as_it_begins_makes_no_straggler(memory: Any) -> None:
    """A rank that awaits less, and iterations 7 % longer, from step 18 on: baselines had only just been made."""
    columns = ahead(2, 1.0)
    noise = np.random.default_rng(21).normal(0, 0.01, (ENOUGH, 6))
    columns["receive_pending_ratio"] = lambda step: 0.92 + noise - 0.18 * (step >= 18) * (np.arange(6) == 2)
    columns["iteration_seconds"] = lambda step: 0.23 * np.where(step >= 18, 1.07, 1.0) + noise / 40
    assert ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=columns) == []


def replayed(late: int, longer: float) -> dict[str, Any]:
    """The same of hosts that replay a CUDA graph from step 18 on: no call, no time of an iteration, fewer steps."""
    of_calls = ahead(late, longer)

    def steps(step: Any) -> Any:
        return 960.0 * np.minimum(step, LATE) + 960.0 / longer * np.maximum(step - LATE, 0)

    def iterations(step: Any) -> Any:
        return np.where(step < 18, of_calls["iteration_seconds"](step), np.nan)

    return of_calls | {
        "operations_total": lambda step: 17.0 * np.minimum(step, 18),
        "pending": lambda step: 0.0 * step,
        "replayed": lambda step: 1.0 * (step > 28) * (np.abs(step - 41) > 4),  # a call for a checkpoint in between
        "steps_done_total": steps,
        "iteration_seconds": iterations,
    }


def test_findings_4_4_a_late_gpu_is_named_under_cuda_graphs(memory: Any) -> None:
    """Where replays give no time of an iteration, fewer steps a second tell that others wait for the late GPU."""
    found = [v for v in ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=replayed(1, 1.42)) if v.kind == "progress"]
    assert {v.machine for v in found} == {"m1"}
    assert "m1 GPU 0 is the straggler: 5 ranks wait" in found[0].message
    assert "CUDA graphs replay its operations" in found[0].message
    assert 0 < found[0].time - START - LATE * SECOND <= 20 * SECOND


def test_replays_that_go_on_as_fast_name_no_rank(memory: Any) -> None:
    """A rank that takes its data later while replays make as many steps a second is no straggler."""
    assert ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=replayed(4, 1.0)) == []


def test_data_that_lies_unread_and_delays_no_rank_names_no_rank(memory: Any) -> None:
    """A rank that takes its data later without making any iteration longer is no straggler."""
    assert ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=ahead(2, 1.0)) == []


@pytest.mark.parametrize(("further", "device"), [(1.0, "gpu:3"), (900.0, "gpu:5"), (-1.0, "gpu:5")])
def test_of_two_that_come_late_together_the_one_with_missing_steps_is_named(
    memory: Any, further: float, device: str
) -> None:
    """A rank that waits for its neighbour comes late with it, but the neighbour is behind within their operations.

    Counts that are far apart are of different operations, and tell nothing.
    """

    def active(step: Any) -> Any:
        noise = np.random.default_rng(12).normal(0, 0.02, step.shape)
        return 0.3 + noise + (step > LATE) * np.array([0.25, 0.25, 0.25, 0.25, -0.22, -0.25])

    def at(step: Any) -> Any:
        return 64.0 * step + (step > LATE) * further * (np.arange(6) != 4)

    hosts, gpus = [f"m{n // 2}" for n in range(6)], ["2", "7", "1", "6", "3", "5"]
    columns = {"active_ratio": active, "step": at, "iteration_seconds": lambda step: 0.0 * step + 1.1}
    found = ranks(memory, stops_at=ENOUGH, steps=ENOUGH, hosts=hosts, gpus=gpus, columns=columns)
    assert {(v.machine, v.device) for v in found if v.kind == "progress"} == {("m2", device)}


def test_the_rank_that_sends_slowly_each_time_is_named(memory: Any) -> None:
    """The rank with chunks that are longer under way than its peers' has the slow link."""
    found = [v for v in ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=shares(-1, 3)) if v.kind == "progress"]
    assert {(v.machine, v.metric) for v in found} == {("m3", "nccl.send_pending_ratio")}


def test_a_slow_sender_without_waiting_ranks_is_not_named(memory: Any) -> None:
    """Congestion that slows no collective is no fault of progress."""
    assert ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=shares(-1, 2, felt=False)) == []


def test_equal_shares_name_no_rank(memory: Any) -> None:
    """A task in which all wait alike has no straggler."""
    assert ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=shares(-1, -1)) == []


def test_a_partner_that_recovers_leaves_no_rank_late(memory: Any) -> None:
    """A partner that waits less because a late rank has recovered is not late."""

    def active(step: Any) -> Any:
        noise = np.random.default_rng(9).normal(0, 0.01, step.shape)
        return 0.2 + noise + (step <= 31) * np.where(np.arange(6) == 3, 0.5, 0.0)

    pairs = ["ab", "ab", "cd", "cd", "ef", "ef"]
    found = ranks(memory, stops_at=60, comms=pairs, columns={"active_ratio": active})
    assert [v for v in found if v.kind == "progress"] == []


def test_who_is_heard_before_the_others_is_not_late_when_they_come(memory: Any) -> None:
    """The detector learns the usual again once it hears the rest of a communicator."""

    def active(step: Any) -> Any:
        noise = np.random.default_rng(10).normal(0, 0.01, step.shape)
        first = np.where(np.arange(6) == 1, 0.8, np.where(np.arange(6) == 5, 0.3, np.nan))
        return noise + np.where(step < 13, first, 0.4)

    found = ranks(memory, stops_at=60, columns={"active_ratio": active})
    assert [v for v in found if v.kind == "progress"] == []


def test_a_slow_start_is_no_measure(memory: Any) -> None:
    """A rank that waits for the others while the task comes up is not late when it does so no more."""

    def active(step: Any) -> Any:
        noise = np.random.default_rng(11).normal(0, 0.01, step.shape)
        return 0.4 + noise + (step < 12) * np.where(np.arange(6) == 2, 0.45, -0.25)

    found = ranks(memory, stops_at=60, columns={"active_ratio": active})
    assert [v for v in found if v.kind == "progress"] == []


def delayed(late: int | None = None) -> dict[str, Any]:
    """Columns of ranks where rank 2 has chunks ready that nothing moves, as rank `late` may be the reason for."""

    def receiving(step: Any) -> Any:
        noise = np.random.default_rng(15).normal(0, 0.01, step.shape)
        return 0.95 + noise - (step > LATE) * (np.arange(6) == (-1 if late is None else late)) * 0.4

    return {
        "active_ratio": lambda step: 1.0 + 0.0 * step,
        "receive_pending_ratio": receiving,
        "send_pending_ratio": lambda step: 0.04 + 0.0 * step,
        "unsent_ratio": lambda step: 0.33 * (step > LATE) * (np.arange(6) == 2),
        "iteration_seconds": lambda step: 0.21 * np.where(step > LATE, 1.6, 1.0),
    }


def test_a_proxy_that_does_not_send_what_is_ready_is_named(memory: Any) -> None:
    """Chunks that are ready, awaited and not sent name the rank that has them: its proxy thread is delayed."""
    found = [v for v in ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=delayed()) if v.kind == "progress"]
    assert {(v.machine, v.metric) for v in found} == {("m2", "nccl.send_pending_ratio")}
    assert 0 < found[0].time - START - LATE * SECOND <= 20 * SECOND


def test_chunks_that_the_receiver_refuses_are_no_fault_of_the_sender(memory: Any) -> None:
    """Where a receiver's GPU does not take what it has, its sender holds chunks too; the receiver is named."""
    found = [v for v in ranks(memory, stops_at=ENOUGH, steps=ENOUGH, columns=delayed(late=3)) if v.kind == "progress"]
    assert {(v.machine, v.metric) for v in found} == {("m3", "nccl.active_ratio")}
