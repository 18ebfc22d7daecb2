"""A rank that trains as programs on PyTorch do: the host enqueues a whole iteration and waits once in it.

A loader prefetches batches. Kernels, collectives and transfers depend on each other by events alone. Gradients of each
layer are reduced while the layers before it are still computed; parameters are gathered while the host begins the next
iteration. The one wait is that of `.item()`, for the loss.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from emulator.training.ctypes_api import BFLOAT16, FLOAT32, SUM
from emulator.training.rank import BYTES_OF, LAYERS, TENSOR_BYTES, Rank
from emulator.training.task import Group

PREFETCHED = 2
Transfer = tuple[int, int]
"""A rank of a group, and bytes."""
LOSS_BYTES = 4
TO_HOST = 2


class RunAheadRank(Rank):
    """The same task and the same faults; only what waits for what differs."""

    def prepare(self) -> None:
        """Also begin to load batches."""
        super().prepare()
        self.between = self.calls.make("cudaEventCreateWithFlags", 2)
        self.batches: queue.Queue[None] = queue.Queue(PREFETCHED)
        self.spent = (0.0, 0.0)
        threading.Thread(target=self._load, name="loader", daemon=True).start()

    def _load(self) -> None:
        while not self.stopping.is_set():
            time.sleep(self.options.load)
            self.batches.put(None)

    def wait_for_batch(self) -> None:
        """Take a batch that was loaded before; a host that is late is late for it."""
        self.batches.get()
        time.sleep(self.late)

    def order(self, stream: str, behind: str) -> None:
        """Let one stream wait for what another one was given so far; the host goes on."""
        self.calls("cudaEventRecord", self.between, self.streams[behind])
        self.calls("cudaStreamWaitEvent", self.streams[stream], self.between, 0)

    def collective(self, name: str, group: Group, count: int, datatype: int = BFLOAT16) -> None:
        """Enqueue a collective behind what was enqueued for the GPU to compute."""
        self.check_stop()
        name = self.suffer_before_collective(name)
        reducing = (SUM,) if name in ("ncclAllReduce", "ncclReduceScatter") else ()
        self.order("comm", behind="compute")
        buffer, stream = self.buffer, self.streams["comm"]
        self.calls(name, buffer, buffer, count, datatype, *reducing, group.communicator, stream)
        share = group.ranks if name != "ncclAllReduce" else 2
        self.wire_bytes += BYTES_OF[datatype] * count * share * (group.ranks - 1) / group.ranks
        self.watch(group, "comm")

    def exchange(self, stream: str, group: Group, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Enqueue transfers with peers in one group, behind what was enqueued to be computed; computing waits."""
        self.check_stop()
        self.order(stream, behind="compute")
        self.calls("ncclGroupStart")
        for name, transfers in (("ncclSend", sends), ("ncclRecv", receives)):
            for peer, length in transfers:
                count = length // BYTES_OF[BFLOAT16]
                self.calls(name, self.buffer, count, BFLOAT16, peer, group.communicator, self.streams[stream])
        self.calls("ncclGroupEnd")
        self.wire_bytes += sum(length for _, length in sends)
        self.watch(group, stream)
        self.order("compute", behind=stream)

    def compute_layer(self, seconds: float) -> None:
        """One layer's kernels."""
        self.launch(seconds)

    def enter_late(self) -> None:
        """A host that is ahead comes late only where it first waits for its GPU, as by a print of some tensor."""
        if self.layer == LAYERS - 1:
            self.wait("compute", "compute")
            super().enter_late()

    def micro_batch(self, share: float = 1.0, last: bool = False) -> None:
        """Enqueue one pass; in the last one of an iteration the gradients of each layer go out as they are there."""
        pipeline, tensor, data = (self.groups.get(name) for name in ("pipeline", "tensor", "data"))
        if pipeline and pipeline.rank > 0:
            self.pair("ncclRecv", pipeline, pipeline.rank - 1)
            self.order("compute", behind="pipe")
        for self.layer in range(LAYERS):
            self.compute_layer(share * self.options.compute / self.options.micro_batches / LAYERS)
            if last and data:
                count = self.options.gradient_bytes // 2 // data.ranks // LAYERS
                self.collective("ncclReduceScatter", data, count)
        if tensor:
            self.collective("ncclAllReduce", tensor, TENSOR_BYTES // 2)
            self.order("compute", behind="comm")
        if pipeline and pipeline.rank < pipeline.ranks - 1:
            self.order("pipe", behind="compute")
            self.pair("ncclSend", pipeline, pipeline.rank + 1)

    def reduce_gradients(self) -> None:
        """The optimizer's step behind all gradients, and the parameters behind it; the next pass waits for those."""
        data, world = self.groups.get("data"), self.groups.get("world")
        if world and data is not world:
            self.collective("ncclAllReduce", world, 1, FLOAT32)
        self.order("compute", behind="comm")
        self.launch(self.options.optimizer)
        if data:
            self.collective("ncclAllGather", data, self.options.gradient_bytes // 2 // data.ranks)

    def item(self) -> None:
        """Wait for a number out of the GPU, as `.item()` does."""
        self.calls("cudaMemcpyAsync", self.batch, self.buffer, LOSS_BYTES, TO_HOST, self.streams["compute"])
        self.wait("compute", "compute")

    def checkpoint(self) -> None:
        """All ranks pause together, and go on together."""
        super().checkpoint()
        self.wait("comm", "collective")

    def evaluate(self) -> None:
        """Forward passes alone, with a loss of each batch."""
        super().evaluate()
        self.item()

    def enqueue(self) -> None:
        """All kernels, transfers and collectives of an iteration."""
        for left in reversed(range(self.options.micro_batches)):
            self.micro_batch(last=not left)
        self.reduce_gradients()

    def iterate(self, number: int) -> None:
        """Enqueue one training iteration and wait for its loss."""
        start = time.monotonic()
        self.load_data()
        self.enqueue()
        self.item()
        self.order("compute", behind="comm")
        self.pause(number)
        took = time.monotonic() - start
        spent = self.block.kernel_seconds, self.block.nccl_seconds
        compute, collective = (now - before for now, before in zip(spent, self.spent, strict=True))
        self.spent = spent
        self.blocked = {"compute": min(compute, took), "collective": min(collective, max(took - compute, 0.0))}
        self.finish(number, took)
