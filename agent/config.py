"""What an agent is told: one table `[agent]` of the configuration file."""

from __future__ import annotations

import socket

import msgspec

from store.config_checks import refuse_outside

USUAL = ("host", "gpu", "rdma", "kernel_log", "probe", "nccl", "cuda", "scheduler", "python", "startup", "stacks")
SOURCES = (*USUAL, "ras")
"""Every source, by the stem of its file under `agent/sources/`; `ras` makes a task's own threads do something, so it is
read only where it is asked for."""

CUDA_CALLS = ("launches", "graphs", "copies", "allocations")
"""Groups of CUDA calls that can be counted beside the synchronize calls."""

RETURN_PROBES = ("auto", "never", "always")
"""When to probe the return of a function."""

NCCL_PROBES = ("auto", "always", "once")
"""How long to probe NCCL's calls other than those that make or end communicators."""


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the agent; every one has a default that suits a training machine.

    Raises ValueError for a value that cannot be meant.
    """

    machine: str = ""
    """The name under which readings are kept; empty: the host name."""
    root: str = "/"
    """Where the machine's /sys and /dev are seen; another folder for an agent in a container."""
    period_seconds: float = 1.0
    """How often every source is read."""
    limit_seconds: float = 0.8
    """How long a source may take before the others go on without it."""
    sources: tuple[str, ...] = USUAL
    """Which sources to read."""
    cuda_calls: tuple[str, ...] = ()
    """Which CUDA calls to count beside the synchronize calls: launches, graphs, copies, allocations."""
    require_gpu: bool = True
    """Count a process only once it has a GPU's device node open (/dev/nvidia0 and so on); false where GPUs are reached
    otherwise, and then any program that calls NCCL counts as training."""
    scan_seconds: float = 2.0
    """How often to look for new processes and libraries."""
    nccl_probes: str = "auto"
    """Probes on NCCL's operations, groups and queries: auto (as long as no process calls them too often), always, once
    (for some seconds, until its communicators are known); what can be read from memory goes on without them."""
    nccl_calls_per_second: float = 2500.0
    """How many calls of one process are too often."""
    progress_hertz: float = 10.0
    """How often to look at the progress of transfers, on average; 0: never."""
    stacks_after_seconds: float = 8.0
    """How long a process may ask for no operation before its stacks are taken."""
    ras_after_seconds: float = 20.0
    """How long it may do so before NCCL is asked for its own status, where `ras` is among the sources."""
    return_probes: str = "auto"
    """Probes on returns, where nothing else tells how long a garbage collection took: auto (where the kernel lets them
    pass every filter of system calls), never, always (but for processes whose system calls are filtered)."""
    zoom_hertz: float = 20.0
    """How many readings a second the detector may ask for, of host, gpu or rdma, for a closer look; 0: none."""
    zoom_share: float = 0.05
    """Share of a core that such readings may take: they come more seldom where they cost more."""
    zoom_seconds_per_hour: float = 120.0
    """For how long there may be such readings."""
    keep_seconds: float = 7 * 86400.0
    """How long the embedded store keeps rows."""
    keep_bytes: int = 2_000_000_000
    """How large the embedded store may grow."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, naming the key."""
        bounds = (
            ("period_seconds", 0.05, 3600.0),
            ("limit_seconds", 0.01, 3600.0),
            ("scan_seconds", 0.1, 3600.0),
            ("nccl_calls_per_second", 1.0, 1e9),
            ("progress_hertz", 0.0, 100.0),
            ("stacks_after_seconds", 1.0, 86400.0),
            ("ras_after_seconds", 15.0, 86400.0),
            ("zoom_hertz", 0.0, 20.0),
            ("zoom_share", 0.001, 1.0),
            ("zoom_seconds_per_hour", 0.0, 3600.0),
            ("keep_seconds", 1.0, 1e10),
            ("keep_bytes", 1_000_000, 1 << 60),
        )
        refuse_outside(self, "agent", bounds)
        for key, known in (("sources", SOURCES), ("cuda_calls", CUDA_CALLS)):
            for word in getattr(self, key):
                if word not in known:
                    raise ValueError(f"agent.{key} names {word!r}: known are {', '.join(known)}")
        self._refuse_unknown("return_probes", RETURN_PROBES)
        self._refuse_unknown("nccl_probes", NCCL_PROBES)
        if "probe" not in self.sources and {"nccl", "cuda"} & set(self.sources):
            raise ValueError("agent.sources needs probe beside nccl and cuda: it puts the probes on")
        for word in {"stacks", "ras"} & set(self.sources):
            if "nccl" not in self.sources:
                raise ValueError(f"agent.sources needs nccl beside {word}: it tells which processes stand still")
        for word in {"scheduler", "python"} & set(self.sources):
            if not {"nccl", "cuda"} & set(self.sources):
                raise ValueError(f"agent.sources needs nccl or cuda beside {word}: they tell which processes train")

    def _refuse_unknown(self, key: str, known: tuple[str, ...]) -> None:
        if getattr(self, key) not in known:
            raise ValueError(f"agent.{key} is {getattr(self, key)!r}: known are {', '.join(known)}")

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.machine or socket.gethostname()
