"""The faults of the emulated fleet: their kinds and sizes, and the pauses that a rank makes with a big heap."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Iterator
from typing import Final

from emulator.shared.fabric import Fabric

# What the amount means: C, T, P a factor on kernel, transfer and copy time; L seconds that each iteration comes later;
# otherwise as said.
AMOUNTS: Final = {
    "none": 0.0,
    "slow_gpu": 1.6,  # C
    "slow_link": 10.0,  # T
    "slow_host": 0.1,  # L
    "rank_hang": 0.0,
    "rank_exit": 0.0,
    "wrong_collective": 0.0,
    "gc_pauses": 0.35,  # seconds a pause
    "power_cap": 1.6,  # C: the clock is divided by it
    "thermal_throttle": 1.7,  # C, while the GPU is too hot
    "pcie_downgrade": 8.0,  # P: half of the speed is lost to the generation, the rest to lanes
    "nic_downgrade": 4.0,  # T: the rate is divided by it
    "link_flap": 1.5,  # seconds that the link is down each time
    "gpu_lost": 0.0,
    "xid_79": 0.0,
    "memory_pressure": 0.12,  # L
    "slow_disk": 0.15,  # L
    "nic_down": 0.0,
    "background_compute": 1.6,  # C: another program's kernels share the GPU
    "background_traffic": 8.0,  # T: another program's traffic shares the port
    "nccl_delay": 1.0,  # seconds that NCCL's proxy thread sleeps, at random, every other second or so
    "late_enter": 0.15,  # seconds that it enters each reduction of gradients later
}
KINDS: Final = tuple(AMOUNTS)
NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
SLOWER_KERNELS: Final = ("slow_gpu", "power_cap", "background_compute")
SLOWER_LINK: Final = ("slow_link", "nic_downgrade", "background_traffic")
SLOWER_COPIES: Final = ("pcie_downgrade",)
LATE: Final = ("slow_host", "memory_pressure", "slow_disk")
# after these a task can't go on: healing restarts its ranks
FATAL: Final = ("rank_exit", "wrong_collective", "xid_79")


class FaultError(ValueError):
    """No such kind of fault; the message lists those there are."""


def order(fabric: Fabric, rank: int, kind: str, amount: float | None = None) -> None:
    """Give a rank a fault from now on ("none": heal it). Raises FaultError for an unknown kind."""
    if kind not in AMOUNTS:
        raise FaultError(f"unknown fault {kind!r}: choose one of {', '.join(KINDS)}")
    size = AMOUNTS[kind] if amount is None else amount
    compute, link, copy = (size if kind in kinds else 1.0 for kinds in (SLOWER_KERNELS, SLOWER_LINK, SLOWER_COPIES))
    fabric.ranks[rank].proxy_sleep_ms = int(1000 * size) if kind == "nccl_delay" else 0
    fabric.order(rank, NUMBERS[kind], size, (compute, link, copy))


class Pauses:
    """A rank's garbage-collection pauses: a big cyclic heap, and a full collection every second or two.

    The heap is built beside the training in slices of about a millisecond, so that only the collections hold it up.
    A collection visits every edge between its nodes, in an order that defeats the caches; the number of edges is
    fitted to the wanted length of a pause.
    """

    NODES: Final = 200_000
    EDGES: Final = (16, 400)  # a node's least and most: 70 MB to 700 MB in all

    def __init__(self, seconds: float, seed: int) -> None:
        self.count = 0
        self._target = seconds
        self._random = random.Random(seed)
        self._heap: list[list[object]] = []
        self._edges = 64
        self._stop = threading.Event()
        self._next = 0.0
        self._thread = self._start()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._link, name="gc-heap", daemon=True)
        thread.start()
        return thread

    def _slices(self) -> Iterator[int]:
        for start in range(0, self.NODES, 500):
            if self._stop.wait(0.001):
                return
            yield start

    def _link(self) -> None:
        if not self._heap:
            for _ in self._slices():
                self._heap += [[] for _ in range(500)]
            self._random.shuffle(self._heap)
        for start in self._slices():
            for node in self._heap[start : start + 500]:
                at = self._random.randrange(self.NODES - self._edges)
                node[:] = self._heap[at : at + self._edges]

    def collect(self, now: float) -> None:
        """Pause, if it is time and the heap is ready. `now` in monotonic seconds."""
        if now < self._next or self._thread.is_alive():
            return
        start = time.monotonic()
        gc.collect()
        took = time.monotonic() - start
        self.count += 1
        self._next = now + self._random.uniform(1.0, 1.6)
        if not 0.8 < took / self._target < 1.3:
            least, most = self.EDGES
            self._edges = int(min(max(self._edges * self._target / took, least), most))
            self._thread = self._start()

    def close(self) -> None:
        """Give the heap back."""
        self._stop.set()
        self._thread.join()
        for node in self._heap:
            node.clear()
        self._heap.clear()
