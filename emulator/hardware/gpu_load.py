"""What an emulated GPU is doing, from what its rank says of its last iteration."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.shared.fabric import RankBlock
from emulator.shared.faults import NUMBERS

COPY_S = 0.0105
"""Seconds that the batch's way to the GPU takes in each iteration, while the link is whole."""
QUIET_S = 1.5
IDLE = tuple(NUMBERS[kind] for kind in ("rank_hang", "gpu_lost"))
"""A rank with one of these faults stands still outside of any collective; its peers spin in one."""


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of time (0 to 1) in which kernels compute, collectives run and copies are under way; rates by second."""

    compute: float = 0.0
    collective: float = 0.0
    copy: float = 0.0
    rate: float = 0.0
    """Iterations."""
    wire: float = 0.0
    """Bytes that its collectives send."""
    held: bool = True
    """Its memory is a living rank's, be that at work or not."""

    @property
    def busy(self) -> float:
        """Share of time in which a kernel is on the GPU; one of NCCL's that waits for its peers counts."""
        return min(self.compute + self.collective, 1.0)


NOTHING = Load(held=False)


class Meter:
    """Follows one rank."""

    def __init__(self) -> None:
        self._iterations = 0
        self._moved = self._bytes = self._wire = 0.0

    def look(self, block: RankBlock, now: float, alive: bool) -> Load:
        """The load at this time (monotonic seconds); a dead rank and one that does not train yet give none."""
        done = block.iterations - self._iterations
        if done:
            self._wire = (block.wire_bytes - self._bytes) / done if done > 0 else 0.0
            self._iterations, self._moved, self._bytes = block.iterations, now, block.wire_bytes
        took = block.iteration_seconds
        if not alive or not self._iterations or took <= 0:
            return NOTHING
        if now - self._moved > max(QUIET_S, 4 * took):
            return Load(collective=0.0 if block.fault in IDLE else 1.0)
        copy = min(COPY_S * block.copy_scale, block.compute_seconds)
        compute, collective = block.compute_seconds - copy, block.collective_seconds
        return Load(compute / took, collective / took, copy / took, 1 / took, self._wire / took)
