"""What reading the progress of communicators costs."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
import pytest

from agent.nccl.iteration import TICK_NS, IterationDetector
from agent.nccl.proxy_sampler import ProxySampler
from agent.process.memory import Memory

pytestmark = pytest.mark.bench

LAYOUT = {
    "ncclComm": {"sizeof": 128, "proxyState": 48},
    "ncclProxyState": {"sizeof": 64, "progressState": 24},
    "ncclProxyProgressState": {"sizeof": 32, "active": 8},
    "ncclProxyArgs": {"sizeof": 2112, "subs": 0, "nsubs": 2048, "state": 2056, "next": 2064},
    "ncclProxyConnection": {"sizeof": 32, "send": 4},
    "ncclProxySubArgs": {
        "sizeof": 512, "connection": 0, "nsteps": 76, "peer": 96, "base": 120, "posted": 128, "received": 136,
        "transmitted": 152, "done": 160,
    },
    "ncclProxyOp": {"sizeof": 64, "peer": 8},
}  # fmt: skip
COMMUNICATORS, SUBS, WATCH_S = 64, 2, 10.0


def machine() -> list[ctypes.Array[ctypes.c_char]]:
    """Communicators with a sending and a receiving operation at work, of two channels each; all in this process."""
    memories = []
    for _ in range(COMMUNICATORS):
        comm, state, sending, receiving = (ctypes.create_string_buffer(128) for _ in range(4))
        nodes = [ctypes.create_string_buffer(2112) for _ in range(2)]
        sending[4] = 1
        for node, connection in zip(nodes, (sending, receiving), strict=True):
            node[2048:2052], node[2056:2060] = SUBS.to_bytes(4, "little"), (2).to_bytes(4, "little")
            for at in range(0, SUBS * 512, 512):
                node[at : at + 8] = ctypes.addressof(connection).to_bytes(8, "little")
                node[at + 128 : at + 136] = (8).to_bytes(8, "little")
        nodes[0][2064:2072] = ctypes.addressof(nodes[1]).to_bytes(8, "little")
        state[32:40] = ctypes.addressof(nodes[0]).to_bytes(8, "little")
        comm[48:56] = ctypes.addressof(state).to_bytes(8, "little")
        memories += [comm, state, sending, receiving, *nodes]
    return memories


@pytest.mark.parametrize("moving", [False, True], ids=["still", "moving"])
@pytest.mark.parametrize("hertz", [10.0, 20.0])
def test_sixty_four(hertz: float, moving: bool) -> None:
    """CPU time of looking at 64 communicators; moving ones have other counters at each look."""
    memories, memory, looks = machine(), Memory(os.getpid()), ProxySampler(hertz)
    for comm in memories[::6]:
        looks.watch((os.getpid(), ctypes.addressof(comm)), memory, LAYOUT)
    native = next(thread.native_id for thread in threading.enumerate() if thread.name == "looks")
    looks.pop_shares((os.getpid(), ctypes.addressof(memories[0])))
    before, began, own = _cpu(native), time.monotonic(), 0
    while time.monotonic() < began + WATCH_S:
        time.sleep(0.8 / hertz)
        own += 1
        for node in memories[4::6] if moving else ():
            node[152:160] = own.to_bytes(8, "little")
    spent, took = _cpu(native) - before, time.monotonic() - began
    shares = looks.pop_shares((os.getpid(), ctypes.addressof(memories[0])))
    looks.close()
    memory.close()
    assert shares is not None
    assert round(shares.sending) == moving
    print(f"\n{COMMUNICATORS} communicators at {hertz:g} Hz: {1000 * spent / took:.2f} ms of CPU a second", end="")


def _cpu(thread: int | None) -> float:
    with open(f"/proc/self/task/{thread}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def test_rhythm() -> None:
    """CPU time of following the operations of 64 processes with 500 operations a second each."""
    detectors, log = [IterationDetector() for _ in range(COMMUNICATORS)], np.zeros(512, np.uint64)
    spent, count = [0.0, 0.0], 0
    for second in range(120):
        for _ in range(500):
            at = count % 137
            kind = 1 if at < 100 else at
            log[count % 512] = ((count * 2_000_000 // TICK_NS) & 0xFFFFFFFF) << 32 | kind << 16
            count += 1
        began = time.thread_time()
        for detector in detectors:
            detector.add_log(count, log, second * 10**9 + 10**9)
            seconds = detector.seconds(second * 10**9 + 10**9)
        spent[second >= 60] += time.thread_time() - began
    assert seconds == pytest.approx(0.274, rel=0.01)
    first, then = (1000 * one / 60 for one in spent)
    print(f"\n{COMMUNICATORS} processes: {first:.2f} ms of CPU a second in the first minute, then {then:.2f}", end="")
