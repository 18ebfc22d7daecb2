"""What one emulated rank does, iteration by iteration, and how it suffers its faults.

An iteration: load data; per micro-batch receive, compute, wait as `.item()` does, all-reduce among the tensor ranks,
send on; then reduce-scatter and all-gather among the data ranks; optimize. Computing and communicating are waited
for separately, so a rank that computes slowly waits less for its peers and they wait more for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from dataclasses import asdict

from emulator.shared.fabric import Fabric, RankBlock
from emulator.shared.faults import KINDS, LATE, Pauses
from emulator.training.ctypes_api import BFLOAT16, FLOAT32, SUM, Calls, Dim3, pointer_array
from emulator.training.task import Group, Options, connect
from emulator.training.watchdog import Watchdog

HISTORY = 600
LAYERS = 3  # kernels of one micro-batch
EVALUATION = 6  # batches without a step of the optimizer
TENSOR_BYTES, PIPELINE_BYTES, BATCH_BYTES = 60_000_000, 30_000_000, 1 << 20
TO_DEVICE = 1
BYTES_OF = {BFLOAT16: 2, FLOAT32: 4}


class Stopped(Exception):  # noqa: N818 - it says that the rank is asked to end, which is no error
    """The rank is to end."""


class Rank:
    """The state of one rank: its streams, its communicators and its fault."""

    def __init__(self, options: Options, calls: Calls, fabric: Fabric) -> None:
        self.options, self.calls, self.fabric = options, calls, fabric
        self.block: RankBlock = fabric.ranks[options.rank]
        self.watchdog = Watchdog(calls)
        self.stopping = threading.Event()
        self.groups: dict[str, Group] = {}
        self.history: deque[tuple[int, float, float, float]] = deque(maxlen=HISTORY)
        self.blocked = {"compute": 0.0, "collective": 0.0}
        self.pauses: Pauses | None = None
        self.wrong_at = 0
        self.wire_bytes = 0.0
        self._arguments: dict[float, tuple[ctypes.c_double, ctypes.Array[ctypes.c_void_p]]] = {}

    def prepare(self) -> None:
        """Take the GPU, make streams and a buffer, connect with the other ranks."""
        self.calls("cudaSetDevice", self.options.gpu)
        self.streams = {name: self.calls.make("cudaStreamCreateWithFlags", 1) for name in ("compute", "comm", "pipe")}
        self.ready = self.calls.make("cudaEventCreateWithFlags", 2)
        self.buffer = self.calls.make("cudaMalloc", BATCH_BYTES)
        self.batch = ctypes.create_string_buffer(BATCH_BYTES)
        self.groups = connect(self.options, self.calls, self.fabric)

    def launch(self, seconds: float) -> None:
        """Put a kernel of that length on the compute stream."""
        if seconds not in self._arguments:
            length = ctypes.c_double(seconds)
            self._arguments[seconds] = (length, pointer_array([ctypes.addressof(length)]))
        one = Dim3(1, 1, 1)
        self.calls("cudaLaunchKernel", None, one, one, self._arguments[seconds][1], 0, self.streams["compute"])

    def wait(self, stream: str, kind: str) -> None:
        """Block on a stream and account for the time."""
        start = time.monotonic()
        self.calls("cudaStreamSynchronize", self.streams[stream])
        self.blocked[kind] += time.monotonic() - start
        self.check_stop()

    def check_stop(self) -> None:
        """End the iteration when the rank is to end. Raises Stopped."""
        if self.stopping.is_set():
            raise Stopped

    @property
    def fault(self) -> str:
        """The fault ordered for this rank at the moment."""
        return KINDS[self.block.fault]

    def collective(self, name: str, group: Group, count: int, datatype: int = BFLOAT16) -> None:
        """Enqueue a collective behind what was computed, wait for it, and leave it to the watchdog."""
        self.check_stop()
        name = self.suffer_before_collective(name)
        stream, buffer = self.streams["comm"], self.buffer
        reducing = (SUM,) if name in ("ncclAllReduce", "ncclReduceScatter") else ()
        self.calls("cudaEventRecord", self.ready, self.streams["compute"])
        self.calls("cudaStreamWaitEvent", stream, self.ready, 0)
        self.calls(name, buffer, buffer, count, datatype, *reducing, group.communicator, stream)
        share = group.ranks if name != "ncclAllReduce" else 2  # of the ring that each rank sends on, in counts
        self.wire_bytes += BYTES_OF[datatype] * count * share * (group.ranks - 1) / group.ranks
        self.watch(group, "comm")
        self.wait("comm", "collective")

    def watch(self, group: Group, stream: str) -> None:
        """Record an event behind the last work of a stream and let the watchdog, if there is one, ask after it."""
        if not self.options.watchdog:
            return
        event = self.watchdog.take_event()
        self.calls("cudaEventRecord", event, self.streams[stream])
        self.watchdog.watch(group.communicator, event)

    def suffer_before_collective(self, name: str) -> str:
        """Hang, die, come late, or answer the wrong collective, once; the name to call."""
        while self.fault == "rank_hang":
            time.sleep(0.05)
            self.check_stop()
        if self.fault == "rank_exit":
            self.write_report()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "xid_79":
            self.write_report()
            print("RuntimeError: CUDA error: unspecified launch failure", file=sys.stderr, flush=True)
            os._exit(1)
        if self.fault == "late_enter" and name == "ncclReduceScatter":
            self.enter_late()
        if self.fault == "wrong_collective" and self.wrong_at != self.block.epoch:
            self.wrong_at = self.block.epoch
            return "ncclAllReduce" if name == "ncclAllGather" else "ncclAllGather"
        return name

    def enter_late(self) -> None:
        """Come later to a reduction of gradients."""
        time.sleep(self.block.amount)

    def pair(self, name: str, group: Group, peer: int) -> None:
        """Enqueue a transfer with a neighbour in the pipeline."""
        self.check_stop()
        self.calls(name, self.buffer, PIPELINE_BYTES // 2, BFLOAT16, peer, group.communicator, self.streams["pipe"])
        self.watch(group, "pipe")

    @property
    def late(self) -> float:
        """Seconds by which a fault lengthens the host's own work at the moment."""
        return self.block.amount if self.fault in LATE else 0.0

    def wait_for_batch(self) -> None:
        """The host's own work: it loads the batch itself."""
        time.sleep(self.options.load + self.late)

    def load_data(self) -> None:
        """Take a batch, make the pauses that are ordered, and send the batch to the GPU."""
        self.wait_for_batch()
        if self.fault == "gc_pauses":
            self.pauses = self.pauses or Pauses(self.block.amount, self.options.seed)
            self.pauses.collect(time.monotonic())
        elif self.pauses:
            self.pauses.close()
            self.pauses = None
        self.calls("cudaMemcpyAsync", self.buffer, self.batch, BATCH_BYTES, TO_DEVICE, self.streams["compute"])

    def micro_batch(self, share: float = 1.0) -> None:
        """One pass through this rank's layers, or a share of the kernels that it takes."""
        pipeline, tensor = self.groups.get("pipeline"), self.groups.get("tensor")
        if pipeline and pipeline.rank > 0:
            self.pair("ncclRecv", pipeline, pipeline.rank - 1)
            self.wait("pipe", "collective")
        for _ in range(LAYERS):
            self.launch(share * self.options.compute / self.options.micro_batches / LAYERS)
        self.wait("compute", "compute")
        if tensor:
            self.collective("ncclAllReduce", tensor, TENSOR_BYTES // 2)
        if pipeline and pipeline.rank < pipeline.ranks - 1:
            self.pair("ncclSend", pipeline, pipeline.rank + 1)

    def reduce_gradients(self) -> None:
        """Reduce-scatter and all-gather among the data ranks; the norm over all when the model is spread."""
        data = self.groups.get("data")
        if data:
            share = self.options.gradient_bytes // 2 // data.ranks
            self.collective("ncclReduceScatter", data, share)
            self.collective("ncclAllGather", data, share)
        if data is not self.groups.get("world"):
            self.collective("ncclAllReduce", self.groups["world"], 1, FLOAT32)

    def checkpoint(self) -> None:
        """All ranks pause together, ten times as long where the disk is slow; rank 0 writes the file."""
        if self.options.rank == 0:
            self.options.report.with_suffix(".checkpoint").write_bytes(bytes(4 << 20))
        time.sleep(self.options.checkpoint_seconds * (10 if self.fault == "slow_disk" else 1))
        if "world" in self.groups:
            self.collective("ncclAllReduce", self.groups["world"], 1, FLOAT32)

    def evaluate(self) -> None:
        """Forward passes alone: half the kernels, and no gradients to be reduced."""
        for _ in range(EVALUATION * self.options.micro_batches):
            self.load_data()
            self.micro_batch(0.5)

    def iterate(self, number: int) -> None:
        """One training iteration, and what it took."""
        start = time.monotonic()
        self.blocked = {"compute": 0.0, "collective": 0.0}
        self.load_data()
        for _ in range(self.options.micro_batches):
            self.micro_batch()
        self.reduce_gradients()
        self.launch(self.options.optimizer)
        self.pause(number)
        self.finish(number, time.monotonic() - start)

    def pause(self, number: int) -> None:
        """What comes between two iterations now and then: a checkpoint, an evaluation."""
        if self.options.checkpoint_every and number % self.options.checkpoint_every == 0:
            self.checkpoint()
        if self.options.evaluation_every and number % self.options.evaluation_every == 0:
            self.evaluate()

    def finish(self, number: int, took: float) -> None:
        """Say of an iteration how long it took, and how long the GPU computed and communicated; seconds."""
        block, (compute, collective) = self.block, self.blocked.values()
        block.iteration_seconds, block.iterations = took, number
        block.compute_seconds, block.collective_seconds = compute, collective
        block.wire_bytes = self.wire_bytes
        self.history.append((time.time_ns(), took, compute, collective))

    def train(self) -> None:
        """Connect and iterate until the wanted number or a stop."""
        try:
            self.prepare()
            if self.options.watchdog:
                self.watchdog.start()
            number = 0
            while not self.options.iterations or number < self.options.iterations:
                self.check_stop()
                number += 1
                self.iterate(number)
        except Stopped:
            return
        self.watchdog.stop()
        for handle in {group.communicator for group in self.groups.values()}:
            self.calls("ncclCommDestroy", handle)

    def abort(self) -> None:
        """Abort every communicator, so that threads that wait for one return; none may be queried afterwards."""
        self.watchdog.stop()
        for handle in {group.communicator for group in self.groups.values()}:
            self.calls.result("ncclCommAbort", handle)

    def write_report(self) -> None:
        """Write counts and history to the report's path, in one move."""
        options = self.options
        report = {
            "rank": options.rank,
            "pid": os.getpid(),
            "machine": socket.gethostname(),
            "calls": self.calls.totals(),
            "iterations": self.block.iterations,
            "communicators": {name: asdict(group) for name, group in self.groups.items()},
            "gc_pauses": self.pauses.count if self.pauses else 0,
            "history": list(self.history),
        }
        fresh = options.report.with_suffix(f".{threading.get_ident()}")
        fresh.write_text(json.dumps(report))
        fresh.rename(options.report)
