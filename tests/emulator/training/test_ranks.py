"""Ranks as plain processes: they train together, count exactly, suffer their faults, and end on request."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from emulator.cluster.machine import command
from emulator.libraries.build import Libraries
from tests.emulator.conftest import wait_until

Start = Callable[..., Any]
Offsets = Callable[[str], dict[str, int]]
ITERATIONS = 7


def waits(ranks: Any, count: int = 6) -> list[float]:
    """Seconds of waiting for collectives in an iteration, by rank, from now on."""
    ranks.wait_iterations(count)
    return [median(at[3] for at in ranks.fresh_report(rank)["history"][2 - count :]) for rank in range(ranks.world)]


def come_to_wait(ranks: Any, so: Callable[[list[float]], bool]) -> None:
    """Fail unless ranks come to wait so: other work on this computer may lengthen some iterations, but not all."""
    for _ in range(6):
        found = waits(ranks)
        if so(found):
            return
    raise AssertionError(found)


def come_to_stand(ranks: Any) -> None:
    """Fail unless the ranks stop, for half a second at least."""

    def stand() -> bool:
        before = ranks.iterations()
        time.sleep(0.5)
        return bool(ranks.iterations() == before)

    assert wait_until(stand)


def test_counts_are_what_the_shape_demands(start_ranks: Start) -> None:
    """After a fixed number of iterations each rank's report has exactly the calls of its place in the task."""
    ranks = start_ranks((2, 2, 2), f"--iterations={ITERATIONS}")
    assert [process.wait(30) for process in ranks.processes] == [0] * 8
    for rank in range(8):
        report = json.loads(ranks.report_path(rank).read_text())
        calls, first_stage = report["calls"], rank < 4
        assert calls["ncclReduceScatter"] == calls["ncclAllGather"] == ITERATIONS
        assert calls["ncclAllReduce"] == 3 * ITERATIONS  # two micro-batches and the norm
        assert (calls.get("ncclSend", 0), calls.get("ncclRecv", 0)) == (
            (2 * ITERATIONS, 0) if first_stage else (0, 2 * ITERATIONS)
        )
        assert calls["cudaLaunchKernel"] == 7 * ITERATIONS
        assert calls["cudaStreamSynchronize"] == (7 if first_stage else 9) * ITERATIONS
        assert calls["ncclCommInitRankConfig"] == 1
        assert calls["ncclCommSplit"] == 3
        assert calls["ncclCommDestroy"] == 4
        assert calls.get("ncclGetUniqueId", 0) == (rank == 0)
        assert (report["rank"], report["iterations"], len(report["history"])) == (rank, ITERATIONS, ITERATIONS)


@pytest.mark.parametrize(("training", "chunks"), [("1f1b", 1), ("interleaved", 2)])
def test_schedules_call_what_their_stages_demand(start_ranks: Start, training: str, chunks: int) -> None:
    """Four micro-batches on two stages: kernels both ways, a transfer for each pass that another stage needs."""
    ranks = start_ranks((1, 2, 2), f"--iterations={ITERATIONS}", f"--training={training}")
    assert [process.wait(60) for process in ranks.processes] == [0] * 4
    for rank in range(4):
        calls = json.loads(ranks.report_path(rank).read_text())["calls"]
        passes, between = 2 * 4 * chunks * ITERATIONS, 2 * chunks - 1
        assert calls["cudaLaunchKernel"] == 3 * passes + ITERATIONS
        assert calls["ncclSend"] == calls["ncclRecv"] == 4 * between * ITERATIONS
        assert calls["ncclGroupStart"] == calls["ncclGroupEnd"] <= calls["ncclSend"] + calls["ncclRecv"]
        assert calls["ncclReduceScatter"] == 3 * chunks * ITERATIONS


def test_experts_exchange_tokens_twice_a_layer(start_ranks: Start) -> None:
    """Each of two micro-batches sends tokens to the two other experts and back, in a communicator of their own."""
    ranks = start_ranks((1, 1, 3), f"--iterations={ITERATIONS}", "--training=experts")
    assert [process.wait(60) for process in ranks.processes] == [0] * 3
    for rank in range(3):
        report = json.loads(ranks.report_path(rank).read_text())
        calls = report["calls"]
        assert calls["ncclGroupStart"] == 2 * 2 * ITERATIONS
        assert calls["ncclSend"] == calls["ncclRecv"] == 2 * calls["ncclGroupStart"]
        assert report["communicators"]["expert"]["communicator"] != report["communicators"]["data"]["communicator"]


def test_groups_hold_neighbours_in_tensor_order(start_ranks: Start) -> None:
    """Rank 5 of 2 x 2 x 2 is second in its tensor and pipeline groups and first in its data group."""
    ranks = start_ranks((2, 2, 2))
    ranks.wait_iterations(2)
    groups = ranks.fresh_report(5)["communicators"]
    assert {name: (group["rank"], group["ranks"]) for name, group in groups.items()} == {
        "world": (5, 8),
        "tensor": (1, 2),
        "pipeline": (1, 2),
        "data": (0, 2),
    }
    assert ranks.end() == [0] * 8


def test_watchdog_polls_under_its_known_name(start_ranks: Start) -> None:
    """A thread named as PyTorch's asks for asynchronous errors while work is unfinished."""
    ranks = start_ranks((1, 1, 2))
    ranks.wait_iterations(3)
    ranks.order(1, "rank_hang")
    time.sleep(0.5)
    before, begin = ranks.fresh_report(0)["calls"]["ncclCommGetAsyncError"], time.monotonic()
    time.sleep(0.55)
    polls = ranks.fresh_report(0)["calls"]["ncclCommGetAsyncError"] - before
    assert 3 <= polls <= 13 * (time.monotonic() - begin)
    names = [path.read_text().strip() for path in Path(f"/proc/{ranks.processes[0].pid}/task").glob("*/comm")]
    assert "pt_nccl_watchdg" in names


@pytest.mark.parametrize("kind", ["slow_gpu", "slow_host", "late_enter"])
def test_culprit_waits_least(start_ranks: Start, kind: str) -> None:
    """A rank that computes slowly or comes late waits no longer than before; its peers wait for it."""
    ranks = start_ranks((1, 1, 4))
    healthy = waits(ranks)
    ranks.order(2, kind, {"slow_gpu": 4.0, "slow_host": 0.09, "late_enter": 0.11}[kind])
    peers = (0, 1, 3)

    def wait_for_it(ill: list[float]) -> bool:
        longer = all(ill[rank] - healthy[rank] > 0.05 for rank in peers)
        return longer and ill[2] < min(ill[rank] for rank in peers) - 0.05

    come_to_wait(ranks, wait_for_it)
    ranks.order(2, "none")
    come_to_wait(ranks, lambda found: max(found) < 0.05 + max(healthy))


def test_slow_link_holds_up_everybody(start_ranks: Start) -> None:
    """One slow sender throttles the whole ring: all ranks wait alike, several times as long."""
    ranks = start_ranks((1, 1, 4))
    healthy = waits(ranks)
    ranks.order(3, "slow_link", 40.0)  # far above what a busy machine adds to a healthy wait
    come_to_wait(ranks, lambda ill: min(ill) > 4 * max(healthy) and max(ill) < 1.5 * min(ill))


def in_flight(ranks: Any, rank: int, offsets: Offsets, looks: int = 150) -> float:
    """Share of looks, from outside, at which a step handed to the network was not yet through."""
    address = ranks.fresh_report(rank)["communicators"]["world"]["communicator"]
    layout = {name: offsets(name) for name in ("ncclComm", "ncclProxyState", "ncclProxyArgs")}
    sub = offsets("ncclProxySubArgs")
    active = layout["ncclProxyState"]["progressState"] + offsets("ncclProxyProgressState")["active"]
    found = 0
    with open(f"/proc/{ranks.processes[rank].pid}/mem", "rb", buffering=0) as memory:

        def word(at: int) -> int:
            return int.from_bytes(os.pread(memory.fileno(), 8, at), "little")

        for _ in range(looks):
            time.sleep(0.005)
            args = word(word(address + layout["ncclComm"]["proxyState"]) + active)
            if args:
                first = args + layout["ncclProxyArgs"]["subs"]
                found += word(first + sub["transmitted"]) > word(first + sub["done"])
    return found / looks


def test_slow_link_shows_in_the_proxy(start_ranks: Start, offsets: Offsets) -> None:
    """Read from outside, the rank with the slow link is the one that has steps in flight most of the time."""
    ranks = start_ranks((1, 1, 4))
    ranks.wait_iterations(3)
    ranks.order(1, "slow_link")
    ranks.wait_iterations(1)
    shares = [in_flight(ranks, rank, offsets) for rank in range(4)]
    assert shares[1] > 0.2
    assert shares[1] > 2 * max(shares[0], *shares[2:])


def test_hanging_rank_stops_all_and_goes_on(start_ranks: Start) -> None:
    """While one rank hangs before a collective no rank goes on; when it is healed all do."""
    ranks = start_ranks((1, 1, 3))
    ranks.wait_iterations(2)
    ranks.order(1, "rank_hang")
    come_to_stand(ranks)
    ranks.order(1, "none")
    ranks.wait_iterations(3)


def test_dead_rank_leaves_its_counts_and_stops_all(start_ranks: Start) -> None:
    """A rank that dies by SIGKILL destroys nothing, and the others stay pending until they are asked to end."""
    ranks = start_ranks((1, 1, 3))
    ranks.wait_iterations(2)
    ranks.order(0, "rank_exit")
    assert ranks.processes[0].wait(10) == -9
    come_to_stand(ranks)
    assert "ncclCommDestroy" not in json.loads(ranks.report_path(0).read_text())["calls"]
    assert ranks.end() == [-9, 0, 0]


def test_wrong_collective_happens_once_and_hangs(start_ranks: Start) -> None:
    """One rank calls another collective a single time; all hang, and still end within a second of the request."""
    ranks = start_ranks((1, 1, 2))
    ranks.wait_iterations(2)
    ranks.order(0, "wrong_collective")
    come_to_stand(ranks)
    names = ("ncclReduceScatter", "ncclAllGather", "ncclAllReduce")
    wrong, right = ([ranks.fresh_report(rank)["calls"].get(name, 0) for name in names] for rank in range(2))
    assert sum(wrong) == sum(right)
    assert sorted(a - b for a, b in zip(wrong, right, strict=True)) == [-1, 0, 1]
    start = time.monotonic()
    assert ranks.end() == [0, 0]
    assert time.monotonic() - start < 10


def test_garbage_collection_pauses_come_and_go(start_ranks: Start) -> None:
    """Pauses lengthen some iterations of the ordered rank by about their size, and stop when healed."""
    ranks = start_ranks((1, 1, 2))
    ranks.wait_iterations(3)
    ranks.order(1, "gc_pauses", 0.15)
    limit = time.monotonic() + 30
    while (report := ranks.fresh_report(1))["gc_pauses"] < 3 and time.monotonic() < limit:
        time.sleep(0.2)
    usual = median(at[1] for at in report["history"])
    assert report["gc_pauses"] >= 3
    assert sum(at[1] > usual + 0.07 for at in report["history"]) >= 2
    ranks.order(1, "none")
    ranks.wait_iterations(3)
    assert ranks.fresh_report(1)["gc_pauses"] == 0


def test_checkpoint_pauses_all_together(start_ranks: Start) -> None:
    """Every so many iterations all ranks are longer by the checkpoint, and rank 0 leaves a file."""
    ranks = start_ranks((1, 1, 2), "--checkpoint-every=4", "--checkpoint-seconds=0.2", "--iterations=9")
    assert [process.wait(30) for process in ranks.processes] == [0, 0]
    for rank in range(2):
        history = json.loads(ranks.report_path(rank).read_text())["history"]
        assert [i + 1 for i, at in enumerate(history) if at[1] > 0.2] == [4, 8]
    assert ranks.report_path(0).with_suffix(".checkpoint").stat().st_size == 4 << 20


def test_evaluation_reduces_no_gradients(start_ranks: Start) -> None:
    """Every so many iterations come forward passes alone: more kernels and batches, no more reductions of gradients."""
    ranks = start_ranks((1, 1, 2), "--evaluation-every=3", "--iterations=7")
    assert [process.wait(30) for process in ranks.processes] == [0, 0]
    for rank in range(2):
        report = json.loads(ranks.report_path(rank).read_text())
        assert report["calls"]["ncclReduceScatter"] == 7
        assert report["calls"]["cudaMemcpyAsync"] == 7 + 2 * 12


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--rank=0", "--world=6", "--data=4"), 2, "world must be tensor x pipeline x data"),
        (("--rank=0", "--world=1"), 1, "can't map the fabric"),
    ],
)
def test_bad_options_are_one_line(
    options: tuple[str, ...], code: int, words: str, libraries: Libraries, tmp_path: Any
) -> None:
    """A wrong shape or a missing fabric ends the rank with one clear line and no traceback."""
    rest = (f"--report={tmp_path / 'r.json'}", f"--fabric={tmp_path / 'none'}", f"--library-folder={libraries.folder}")
    done = subprocess.run(
        command("training.main", (*options, *rest)), capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == code
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
