"""A rank that follows orders, on the emulated libnccl or NVIDIA's: an order a line, an answer a line.

Started as `python -m tests.nccl_rank RANK RANKS FOLDER LIBRARIES [real]`; orders are JSON lists: a function below
and its arguments.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FLOAT32, SUM = 7, 0
IN_PROGRESS, SUSPEND_MEMORY = 7, 1


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
        # Stays where NCCL wrote it, as in programs: an agent may read the address there once the call has returned.
        self.world = ctypes.c_void_p()
        self.calls("ncclCommInitRank", ctypes.byref(self.world), self.ranks, self._world_id(), self.rank)
        self.comms["world"] = self.world.value or 0

    def init_unblocked(self) -> None:
        """Make the world by calls that return before it is made."""
        from emulator.training.ctypes_api import communicator_config

        self.world = ctypes.c_void_p()
        config, name = communicator_config(blocking=False), self._world_id()
        made = ctypes.byref(self.world), self.ranks, name, self.rank, config
        self._settle(self.calls.result("ncclCommInitRankConfig", *made), self.world.value or 0)
        self.comms["world"] = self.world.value or 0

    def reduce_unblocked(self, name: str, times: int, count: int) -> None:
        """Enqueue reductions, one by one, on a communicator of which calls return early."""
        order = self.buffer, self.buffer, count, FLOAT32, SUM, self.comms[name], self.stream
        for _ in range(times):
            self._settle(self.calls.result("ncclAllReduce", *order), self.comms[name])

    def _settle(self, code: int, comm: int) -> None:
        """Wait until what a call began is done: 2.23 answers success while it still connects."""
        state = ctypes.c_int(code or IN_PROGRESS)
        while state.value == IN_PROGRESS:
            self.calls("ncclCommGetAsyncError", comm, ctypes.byref(state))
            time.sleep(0.001)
        if state.value:
            raise RuntimeError(f"a call that returned early came to {state.value}")

    def suspend(self, name: str) -> None:
        """Give the memory of a communicator back."""
        self.calls("ncclCommSuspend", self.comms[name], SUSPEND_MEMORY)

    def resume(self, name: str) -> None:
        """Take it again."""
        self.calls("ncclCommResume", self.comms[name])

    def _world_id(self) -> Any:
        from emulator.training.ctypes_api import UniqueId

        if self.rank == 0:
            fresh = UniqueId()
            self.calls("ncclGetUniqueId", ctypes.byref(fresh))
            self.fabric.put_id(bytes(fresh))
        return UniqueId.from_buffer_copy(self.fabric.wait_id())

    def init_devices(self, gpus: int) -> None:
        """Make the world with a rank on each of the first GPUs of this process: gpu0, gpu1 and so on."""
        name, handles = self._world_id(), [ctypes.c_void_p() for _ in range(gpus)]
        self.calls("ncclGroupStart")
        for gpu, handle in enumerate(handles):
            self.calls("cudaSetDevice", gpu)
            rank = gpus * self.rank + gpu
            self.calls("ncclCommInitRank", ctypes.byref(handle), gpus * self.ranks, name, rank)
        self.calls("ncclGroupEnd")
        self.comms |= {f"gpu{gpu}": handle.value or 0 for gpu, handle in enumerate(handles)}
        self.streams = []
        for gpu in range(gpus):
            self.calls("cudaSetDevice", gpu)
            self.streams.append(self.calls.make("cudaStreamCreateWithFlags", 1))

    def reduce_devices(self, times: int, count: int) -> None:
        """Enqueue reductions over the world on each GPU of this process, in a group each."""
        for _ in range(times):
            self.calls("ncclGroupStart")
            for gpu, stream in enumerate(self.streams):
                self.calls("cudaSetDevice", gpu)
                comm = self.comms[f"gpu{gpu}"]
                self.calls("ncclAllReduce", self.buffer, self.buffer, count, FLOAT32, SUM, comm, stream)
            self.calls("ncclGroupEnd")

    def split(self, name: str, colour: int, key: int, share: bool = False) -> None:
        """Make a child of the world, which may use its parent's resources."""
        from emulator.training.ctypes_api import communicator_config

        made = ctypes.c_void_p()
        self.calls("ncclCommSplit", self.comms["world"], colour, key, ctypes.byref(made), communicator_config(share))
        self.comms[name] = made.value or 0

    def capture(self, name: str, times: int, count: int) -> None:
        """Capture reductions into a graph instead of running them."""
        graph = ctypes.c_void_p()
        self.calls("cudaStreamBeginCapture", self.stream, 1)
        self.reduce(name, times, count)
        self.calls("cudaStreamEndCapture", self.stream, ctypes.byref(graph))
        self.graph = self.calls.make("cudaGraphInstantiate", graph, 0)
        self.calls("cudaGraphDestroy", graph)

    def replay(self, times: int) -> None:
        """Launch the graph."""
        for _ in range(times):
            self.calls("cudaGraphLaunch", self.graph, self.stream)

    def drop_graph(self) -> None:
        """Destroy the graph."""
        self.calls("cudaGraphExecDestroy", self.graph)

    def revoke(self, name: str) -> None:
        """Revoke a communicator: what is at work in it ends."""
        self.calls("ncclCommRevoke", self.comms[name], 0)

    def lose_gpu(self) -> None:
        """The GPU works no more."""
        self.fabric.ranks[self.rank].lost = 1

    def compute(self, seconds: float) -> None:
        """Keep the GPU busy, before what is enqueued from now on."""
        from emulator.training.ctypes_api import Dim3, pointer_array

        one, length = Dim3(1, 1, 1), ctypes.c_double(seconds)
        self.calls("cudaLaunchKernel", None, one, one, pointer_array([ctypes.addressof(length)]), 0, self.stream)

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
