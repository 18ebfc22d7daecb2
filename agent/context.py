"""What sources are given: the configuration, the probes, and the shared view of processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.config import AgentConfig
from agent.probes.attachments import Attachments
from agent.probes.governor import ProbeGovernor
from agent.probes.hit_cost import HitCost
from agent.probes.shares import KernelShares
from agent.probes.slot_pool import Pool
from agent.probes.training_processes import TrainingProcesses
from agent.process.gpu_use import GpuUse
from agent.process.procfs import Processes
from agent.system.left_out import LeftOut
from bpf.loader import Kernel
from store.schema.sample import Sample


class Source(Protocol):
    """What a signal is read from. The loop owns time, threads and errors; a source only looks."""

    def read(self, now: int) -> Iterable[Sample]:
        """The samples at this time (Unix ns). Raises OSError or ValueError when it cannot be read."""

    def close(self) -> None:
        """Let go of what it holds."""


class SourceUnavailableError(Exception):
    """This machine has nothing for the source to read, or the source cannot be had here; the message says why."""


@dataclass(frozen=True)
class Context:
    """One for the whole agent. Without probes `kernel` is None and `no_probes` says why."""

    config: AgentConfig
    kernel: Kernel | None = None
    attachments: Attachments | None = None
    no_probes: str = ""
    cost: HitCost = field(default_factory=HitCost)
    proc: Path = Path("/proc")
    processes: Processes = field(default_factory=Processes)
    left_out: LeftOut = field(default_factory=LeftOut)
    training: TrainingProcesses = field(init=False)
    shares: KernelShares | None = field(init=False)
    governor: ProbeGovernor | None = field(init=False)

    def __post_init__(self) -> None:
        """Training processes are those that the probes have met and that have a GPU open."""
        maps = self.kernel.maps if self.kernel else None
        shares, pool = KernelShares(maps) if maps else None, None
        if maps and shares:
            free = maps["free_processes"]
            pool = Pool(maps["processes"], maps["process_of"], free, shares.processes, shares.of_process)
        use = GpuUse(Path(self.config.root), self.processes) if self.config.require_gpu else None
        governor = None
        if maps and self.attachments:
            stay = self.config.nccl_probes == "always" or self.config.nccl_calls_per_second > 0
            entries = maps["processes"], maps["slots"]
            governor = ProbeGovernor(self.config.probe_share, self.cost, self.attachments, *entries, calls_stay=stay)
        object.__setattr__(self, "governor", governor)
        object.__setattr__(self, "shares", shares)
        object.__setattr__(self, "training", TrainingProcesses(self.processes, pool, use))

    def probes(self) -> tuple[Kernel, Attachments]:
        """The probes. Raises SourceUnavailableError where there are none."""
        if self.kernel is None or self.attachments is None:
            raise SourceUnavailableError(self.no_probes or "probes are switched off")
        return self.kernel, self.attachments
