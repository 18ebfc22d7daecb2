"""Iterations found in sequences of operations, regular and not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from agent.nccl.iteration import TICK_NS, IterationDetector

RING = 512
Operation = tuple[int, int]
"""Kind on its communicator, and count."""


class Process:
    """A process that asks for operations, its log, and an agent that reads it once a second."""

    def __init__(self, begin: float = 4000.0) -> None:
        self.detector, self.clock = IterationDetector(), begin
        self.ring, self.count, self.read_at = np.zeros(RING, np.uint64), 0, begin
        self.seen: list[float | None] = []
        self.late_ns = 0

    def iteration(self, operations: Iterable[Operation], seconds: float) -> None:
        """The operations at even intervals in the first nine tenths, then a pause."""
        listed = list(operations)
        for kind, count in listed:
            self.ask(kind, count)
            self.pause(0.9 * seconds / len(listed))
        self.pause(0.1 * seconds)

    def ask(self, kind: int, count: int) -> None:
        """One operation."""
        ticks = int(self.clock * 1e9) // TICK_NS & 0xFFFFFFFF
        self.ring[self.count % RING] = ticks << 32 | kind << 16 | (count * 40503 & 0xFFFF)
        self.count += 1

    def pause(self, seconds: float) -> None:
        """Time goes by."""
        self.clock += seconds
        while self.clock >= self.read_at + 1:
            self.read_at += 1
            now = int(self.read_at * 1e9)
            self.detector.add_log(self.count, self.ring, now - self.late_ns)
            self.seen.append(self.detector.seconds(now))


LAYERS, BUCKETS, PIPES = [(1, 8192)] * 24, [(2, 700 + k) for k in range(5)], [(3, 4096), (4, 4096)] * 6
FULL = [*LAYERS, *PIPES, *LAYERS, *BUCKETS, (5, 1)]
SHAPES: dict[str, Callable[[random.Random, int], list[Operation]]] = {
    "layers, stages, buckets and a norm": lambda _, k: FULL,
    "buckets alone": lambda _, k: BUCKETS,
    "sharded": lambda _, k: [*((6, 100 + i) for i in range(9)), *((7, 100 + i) for i in range(9)), (8, 2)],
    "layers and a norm": lambda _, k: [*LAYERS, (5, 1), (5, 2)],
    "sizes that change": lambda rng, k: [*((9, rng.randrange(1, 65536)) for _ in range(10)), *BUCKETS, (5, 1)],
    "more or fewer micro-batches": lambda rng, k: [*PIPES[: rng.choice((8, 10, 12))], *BUCKETS, (5, 1)],
    "checkpoints": lambda _, k: [*FULL, (5, 77), (5, 78)] if k % 10 == 9 else FULL,
    "evaluations": lambda _, k: [(1, 33), (5, 34)] * 7 if k % 20 == 19 else [*BUCKETS, (5, 1)],
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seconds", [0.23, 0.9, 3.7])
def test_iterations_are_found(shape: str, seconds: float) -> None:
    """Whatever the sequence, nine readings in ten say how long an iteration takes, to five in a hundred."""
    rng, process = random.Random(7), Process()
    for number in range(150):
        process.iteration(SHAPES[shape](rng, number), seconds)
    late = process.seen[len(process.seen) // 2 :]
    right = [found is not None and abs(found / seconds - 1) < 0.05 for found in late]
    assert np.mean(right) > 0.9


def test_one_long_iteration_is_seen() -> None:
    """An iteration that takes longer is reported, and the ones after it as they are."""
    process = Process()
    for number in range(60):
        process.iteration(FULL, 5.3 if number == 50 else 1.9)
    seconds = [one for one in process.seen[40:] if one is not None]
    assert max(seconds) > 4.0  # an iteration lasts from one anchor to the next, wherever that lies in it
    assert seconds[-1] == pytest.approx(1.9, rel=0.02)


@pytest.mark.parametrize("alike", [2, 3, 4, 5, 7])
def test_findings_4_1_hosts_that_run_ahead_ask_in_bursts(alike: int) -> None:
    """Some reductions and a gathering at one moment of each iteration: it is as long as from one burst to the next."""
    process = Process()
    for _ in range(300):
        for kind in (*[1] * alike, 2):
            process.ask(kind, 8192)
            process.pause(0.001)
        process.pause(0.2)
    anchor = process.detector._anchor
    assert anchor is not None
    assert anchor.length == alike + 1
    seconds = [one for one in process.seen[20:] if one is not None]
    assert seconds == pytest.approx([0.201 + alike / 1000] * len(seconds), rel=0.02)


def test_findings_4_1_pauses_in_some_iterations_count() -> None:
    """Where one iteration in four pauses, as for garbage collection, that is seen, but for the longest one of many."""
    process = Process()
    for number in range(400):
        process.iteration(FULL, 0.2 + (0.36 if number > 200 and number % 4 == 0 else 0.0))
    seconds = [one for one in process.seen if one is not None]
    assert np.mean(seconds[20:38]) == pytest.approx(0.2, rel=0.02)
    assert 0.26 < np.mean(seconds[50:]) < 0.3


def test_another_task_of_the_process() -> None:
    """When the sequence becomes another one, its iterations are found in their turn."""
    process = Process()
    for _ in range(40):
        process.iteration(FULL, 1.1)
    for _ in range(60):
        process.iteration([(11, 5), *[(12, 64)] * 8, (13, 9)], 2.3)
    assert process.seen[40] == pytest.approx(1.1, rel=0.02)
    assert process.seen[-1] == pytest.approx(2.3, rel=0.02)


def test_more_operations_than_the_log_holds() -> None:
    """What fell out of the log between two readings leaves what is seen in order, and does not lie."""
    process = Process()
    for _ in range(40):
        process.iteration([*[(1, 16)] * 90, (2, 3), (2, 4)], 0.1)
    assert process.count > RING * len(process.seen)
    seconds = [one for one in process.seen if one is not None]
    assert seconds == pytest.approx([0.1] * len(seconds), rel=0.05)
    assert seconds


def test_nothing_is_said_of_no_rhythm() -> None:
    """Operations without order, one operation for ever, and silence say nothing of iterations."""
    rng, process = random.Random(11), Process()
    for _ in range(300):
        process.ask(rng.randrange(40), rng.randrange(500))
        process.pause(rng.random() / 5)
    assert not any(process.seen)


def test_a_task_that_stands_still() -> None:
    """Three iterations after the last one nothing is said any more."""
    process = Process()
    for _ in range(40):
        process.iteration(FULL, 1.7)
    assert process.seen[-1] == pytest.approx(1.7, rel=0.02)
    process.pause(9.0)
    assert process.seen[-1] is None


def test_time_goes_round() -> None:
    """A log's 32 bits of time come round every 73 minutes, also amid an iteration."""
    process = Process(begin=(TICK_NS << 32) / 1e9 - 20.4)
    for _ in range(60):
        process.iteration(FULL, 1.3)
    assert all(seconds == pytest.approx(1.3, rel=0.02) for seconds in process.seen[15:])


def test_operations_amid_a_reading() -> None:
    """What was asked for while the agent read lies a moment ahead of the time that it took for the reading's."""
    process = Process()
    process.late_ns = 2_000_000_000
    for _ in range(60):
        process.iteration(FULL, 1.3)
    assert all(seconds == pytest.approx(1.3, rel=0.02) for seconds in process.seen[15:])
