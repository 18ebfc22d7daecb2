"""A rank that follows orders, on the emulated libnccl or NVIDIA's: an order a line, an answer a line.

Started as `python -m tests.nccl_rank RANK RANKS FOLDER LIBRARIES [real]`; orders are JSON lists: a function below
and its arguments.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

FLOAT32, SUM = 7, 0


class Rank:
    """Its communicators, by name, and one stream."""

    def __init__(self, rank: int, ranks: int, folder: Path, libraries: Path, real: bool) -> None:
        os.environ |= {"PEERWATCH_FABRIC": str(folder / "fabric"), "PEERWATCH_RANK": str(rank)}
        from emulator.libraries.nvidia import prepare, take_over
        from emulator.shared.fabric import Fabric
        from emulator.training.ctypes_api import Calls

        self.rank, self.ranks, self.fabric = rank, ranks, Fabric(folder / "fabric")
        if real:
            prepare(rank, libraries)
        self.calls = Calls(libraries / "libcudart.so.12", libraries / "libnccl.so.2")
        if real:
            take_over(libraries)
        self.calls("cudaSetDevice", 0)
        self.stream = self.calls.make("cudaStreamCreateWithFlags", 1)
        self.buffer = self.calls.make("cudaMalloc", 1 << 16)
        self.comms: dict[str, int] = {}

    def init(self) -> None:
        """Make the world."""
        from emulator.training.ctypes_api import UniqueId

        if self.rank == 0:
            fresh = UniqueId()
            self.calls("ncclGetUniqueId", ctypes.byref(fresh))
            self.fabric.put_id(bytes(fresh))
        name = UniqueId.from_buffer_copy(self.fabric.wait_id())
        self.comms["world"] = self.calls.make("ncclCommInitRank", self.ranks, name, self.rank)

    def split(self, name: str, colour: int, key: int) -> None:
        """Make a child of the world."""
        made = ctypes.c_void_p()
        self.calls("ncclCommSplit", self.comms["world"], colour, key, ctypes.byref(made), None)
        self.comms[name] = made.value or 0

    def reduce(self, name: str, times: int, count: int) -> None:
        """Enqueue reductions, one by one."""
        for _ in range(times):
            self.calls("ncclAllReduce", self.buffer, self.buffer, count, FLOAT32, SUM, self.comms[name], self.stream)

    def every(self, name: str, count: int) -> None:
        """Enqueue one of each collective."""
        comm, a, stream = self.comms[name], self.buffer, self.stream
        self.calls("ncclReduceScatter", a, a, count, FLOAT32, SUM, comm, stream)
        self.calls("ncclAllGather", a, a, count, FLOAT32, comm, stream)
        for root in range(self.ranks):
            self.calls("ncclBroadcast", a, a, count, FLOAT32, root, comm, stream)
            self.calls("ncclReduce", a, a, count, FLOAT32, SUM, root, comm, stream)

    def group(self, name: str, times: int, count: int) -> None:
        """Enqueue reductions in one group."""
        self.calls("ncclGroupStart")
        self.reduce(name, times, count)
        self.calls("ncclGroupEnd")

    def exchange(self, name: str, count: int) -> None:
        """Send to every other rank and receive from it, as an all-to-all does."""
        self.calls("ncclGroupStart")
        for peer in (peer for peer in range(self.ranks) if peer != self.rank):
            self.calls("ncclSend", self.buffer, count, FLOAT32, peer, self.comms[name], self.stream)
            self.calls("ncclRecv", self.buffer, count, FLOAT32, peer, self.comms[name], self.stream)
        self.calls("ncclGroupEnd")

    def synchronize(self) -> None:
        """Wait for all that was enqueued."""
        self.calls("cudaStreamSynchronize", self.stream)

    def destroy(self, name: str) -> None:
        """End a communicator."""
        self.calls("ncclCommDestroy", self.comms.pop(name))

    def abort(self, name: str) -> None:
        """End a communicator whatever it is at."""
        self.calls("ncclCommAbort", self.comms.pop(name))


def main() -> None:
    """Obey until there are no more orders."""
    number, ranks, folder, libraries, *real = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NCCL prints its version on standard output
    rank = Rank(int(number), int(ranks), Path(folder), Path(libraries), bool(real))
    print(json.dumps({"pid": os.getpid()}), file=answers, flush=True)
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        getattr(rank, order)(*arguments)
        answer: dict[str, Any] = {"calls": rank.calls.totals()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
