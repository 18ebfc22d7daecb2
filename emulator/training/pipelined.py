"""A rank that runs ahead through a pipeline schedule, forward and backward, as Megatron-LM's trainers do."""

from __future__ import annotations

from typing import ClassVar

from emulator.training.rank import LAYERS, PIPELINE_BYTES, TENSOR_BYTES
from emulator.training.run_ahead import RunAheadRank
from emulator.training.schedules import CHUNKS, Pass, Slot, plan

FORWARD = 1 / 3
"""Of a micro-batch's computing time: the backward pass computes two gradients."""


class PipelinedRank(RunAheadRank):
    """One forward, one backward; as many micro-batches as options say for each stage."""

    schedule: ClassVar[str] = "1f1b"

    def prepare(self) -> None:
        """Also lay out the iteration."""
        super().prepare()
        pipeline = self.groups["pipeline"]
        self.micro_batches, self.chunks = self.options.micro_batches * pipeline.ranks, CHUNKS[self.schedule]
        self.slots = plan(pipeline.ranks, self.micro_batches, self.chunks)[pipeline.rank]

    def enqueue(self) -> None:
        """The slots of an iteration one after another, then the optimizer."""
        for slot in self.slots:
            if slot.work:
                self.work(slot.work)
            if slot.send_to or slot.receive_from:
                self.transfer(slot)
        self.reduce_gradients()

    def work(self, one: Pass) -> None:
        """A micro-batch through a chunk; the last one on its way back sends the gradients of each layer out."""
        tensor, data = self.groups.get("tensor"), self.groups.get("data")
        share = (1 - FORWARD if one.backward else FORWARD) / self.micro_batches / self.chunks / LAYERS
        for self.layer in range(LAYERS):
            self.compute_layer(share * self.options.compute)
            if data and one.backward and one.batch == self.micro_batches - 1:
                count = self.options.gradient_bytes // 2 // data.ranks // LAYERS // self.chunks
                self.collective("ncclReduceScatter", data, count)
        if tensor:
            self.collective("ncclAllReduce", tensor, TENSOR_BYTES // self.micro_batches // self.chunks)
            self.order("compute", behind="comm")

    def transfer(self, slot: Slot) -> None:
        """Send what was computed and receive what comes next."""
        length = 2 * PIPELINE_BYTES // self.micro_batches  # as much in an iteration as two whole batches have
        sends = [(stage, length) for stage in slot.send_to]
        receives = [(stage, length) for stage in slot.receive_from]
        self.exchange("pipe", self.groups["pipeline"], sends, receives)


class InterleavedRank(PipelinedRank):
    """Two chunks of the model on each stage: a shorter bubble, twice the transfers."""

    schedule = "interleaved"
