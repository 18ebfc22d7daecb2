"""A rank that captures an iteration into a CUDA graph and replays it: from then on it hardly calls NCCL."""

from __future__ import annotations

import ctypes

from emulator.training.run_ahead import RunAheadRank
from emulator.training.task import Group

EAGER = 50
"""Iterations before the capture: about ten seconds, so that an agent that starts with the task meets its calls."""
THREAD_LOCAL = 1


class ReplayingRank(RunAheadRank):
    """As the rank that runs ahead, on one stream while it captures; works of a graph are watched by no watchdog."""

    capturing = False
    graph: int | None = None
    eager = 0
    replayed_bytes = 0.0

    def watch(self, group: Group, stream: str) -> None:
        """Leave work to the watchdog, unless a graph will do it."""
        if not self.capturing:
            super().watch(group, stream)

    def enqueue(self) -> None:
        """An iteration, from the graph once there is one."""
        if self.eager < EAGER:
            self.eager += 1
            super().enqueue()
            return
        if self.graph is None:
            self.graph = self._capture()
        self.suffer_before_collective("cudaGraphLaunch")
        self.calls("cudaGraphLaunch", self.graph, self.streams["compute"])
        self.wire_bytes += self.replayed_bytes

    def _capture(self) -> int:
        """The graph of an iteration."""
        before, streams, made = self.wire_bytes, self.streams, ctypes.c_void_p()
        self.capturing, self.streams = True, dict.fromkeys(streams, streams["compute"])
        self.calls("cudaStreamBeginCapture", streams["compute"], THREAD_LOCAL)
        super().enqueue()
        self.calls("cudaStreamEndCapture", streams["compute"], ctypes.byref(made))
        self.capturing, self.streams = False, streams
        self.replayed_bytes, self.wire_bytes = self.wire_bytes - before, before
        return int(self.calls.make("cudaGraphInstantiate", made, 0))
