"""The faults of the emulated fleet: their kinds and sizes, and the pauses that a rank makes with a big heap."""

from __future__ import annotations

import gc
import random
import threading
import time
from typing import Final

from emulator.fabric import Fabric

# what the amount means: factor on kernel time, factor on transfer time, seconds an iteration, seconds a pause
AMOUNTS: Final = {
    "none": 0.0,
    "slow_gpu": 1.6,
    "slow_link": 10.0,
    "slow_host": 0.1,
    "rank_hang": 0.0,
    "rank_exit": 0.0,
    "wrong_collective": 0.0,
    "gc_pauses": 0.2,
}
KINDS: Final = tuple(AMOUNTS)
NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}


class FaultError(ValueError):
    """No such kind of fault; the message lists those there are."""


def order(fabric: Fabric, rank: int, kind: str, amount: float | None = None) -> None:
    """Give a rank a fault from now on ("none": heal it). Raises FaultError for an unknown kind."""
    if kind not in AMOUNTS:
        raise FaultError(f"unknown fault {kind!r}: choose one of {', '.join(KINDS)}")
    size = AMOUNTS[kind] if amount is None else amount
    compute = size if kind == "slow_gpu" else 1.0
    link = size if kind == "slow_link" else 1.0
    fabric.order(rank, NUMBERS[kind], size, compute, link)


class Pauses:
    """A rank's garbage-collection pauses: a big cyclic heap, and a full collection every second or two.

    The heap is built beside the training in slices of a millisecond, so that only the collections hold it up.
    """

    EDGES: Final = 50

    def __init__(self, seconds: float, seed: int) -> None:
        self.count = 0
        self._target = seconds
        self._random = random.Random(seed)
        self._heap: list[list[object]] = []
        self._stop = threading.Event()
        self._next = float("inf")
        self._thread = threading.Thread(target=self._build, name="gc-heap", daemon=True)
        self._thread.start()

    def _build(self) -> None:
        self._grow(40_000)
        self._next = 0.0

    def _grow(self, nodes: int) -> None:
        for _ in range(nodes // 40):
            if self._stop.is_set():
                return
            fresh: list[list[object]] = [[] for _ in range(40)]
            self._heap += fresh
            for node in fresh:
                node.extend(self._random.choices(self._heap, k=self.EDGES))
            time.sleep(0.001)

    def collect(self, now: float) -> None:
        """Pause, if it is time; then fit the heap to the wanted length. `now` in monotonic seconds."""
        if now < self._next:
            return
        start = time.monotonic()
        gc.collect()
        took = time.monotonic() - start
        self.count += 1
        self._next = now + self._random.uniform(1.0, 1.6)
        if took < 0.8 * self._target and not self._thread.is_alive():
            missing = int(len(self._heap) * min(self._target / took - 1.0, 2.0))
            self._thread = threading.Thread(target=self._grow, args=(missing,), name="gc-heap", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Give the heap back."""
        self._stop.set()
        self._thread.join()
        for node in self._heap:
            node.clear()
        self._heap.clear()
