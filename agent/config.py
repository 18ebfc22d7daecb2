"""Settings of the agent: the table `[agent]` of the configuration file."""

from __future__ import annotations

import socket
from typing import Annotated

import msgspec
from msgspec import Meta

USUAL = (
    "host",
    "gpu",
    "rdma",
    "kernel_log",
    "probe",
    "nccl",
    "cuda",
    "scheduler",
    "python",
    "startup",
    "stacks",
    "job",
)
SOURCES = (*USUAL, "ras", "dcgm", "job_log")
"""Every source, by the stem of its file under `agent/sources/`. Three are read only where they are asked for: `ras`
makes a task's own threads do something, `dcgm` may take the profiling hardware from a user's profiler (unless
`dcgm_activity` is false), and `job_log` reads files of users."""

CUDA_CALLS = ("launches", "graphs", "copies", "allocations")
"""Groups of CUDA calls that can be counted beside the synchronize calls."""

RETURN_PROBES = ("auto", "never", "always")
"""When to probe the return of a function."""

NCCL_PROBES = ("auto", "always", "once")
"""How long to probe NCCL's calls other than those that make or end communicators."""


class JobLogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table `[[agent.job_log]]`: a job on this machine, and where it writes; paths are real ones, without links.

    Raises ValueError for a job without a name or files.
    """

    name: str
    """The job's name in table `job_log`."""
    log: str = ""
    """Log file; `*` in its last part: the newest."""
    pattern: str = ""
    """Regular expression for its lines, with groups step, loss, gradient_norm, step_seconds or step_milliseconds."""
    tensorboard: str = ""
    """TensorBoard event file, such as /data/run/events.out.tfevents.*: the newest."""
    checkpoints: str = ""
    """Checkpoints, such as /data/run/checkpoints/*: the newest gives the age."""
    flops_per_step: Annotated[float, Meta(ge=0.0, le=1e30)] = 0.0
    """Model FLOPs of one step of the whole job."""
    gpus: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """GPUs of the whole job."""
    peak_flops: Annotated[float, Meta(ge=0.0, le=1e18)] = 0.0
    """FLOP/s of one GPU at its peak in the precision of the job."""
    every_seconds: Annotated[float, Meta(ge=1.0, le=3600.0)] = 5.0
    """How often its files are read."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        paths = (self.log, self.tensorboard, self.checkpoints)
        if not self.name or not any(paths):
            raise ValueError("agent.job_log needs a name, and log, tensorboard or checkpoints")
        for path in filter(None, paths):
            if not path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"agent.job_log names {path!r}: write the whole path, such as /data/run/train.log")


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the agent; every one has a default that suits a training machine.

    Raises ValueError for an unknown word; msgspec.ValidationError, when it is decoded, for a number out of bounds.
    """

    machine: str = ""
    """The name under which readings are stored; empty: the host name."""
    root: str = "/"
    """Where the machine's /sys and /dev are seen; another folder for an agent in a container."""
    period_seconds: Annotated[float, Meta(ge=0.05, le=3600.0)] = 1.0
    """How often every source is read."""
    limit_seconds: Annotated[float, Meta(ge=0.01, le=3600.0)] = 0.8
    """How long a source may take before the others go on without it."""
    sources: tuple[str, ...] = USUAL
    """Which sources to read."""
    job_log: tuple[JobLogConfig, ...] = ()
    """Jobs to read logs, TensorBoard files and checkpoints of, a table [[agent.job_log]] each, with source job_log."""
    cuda_calls: tuple[str, ...] = ()
    """Which CUDA calls to count beside the synchronize calls: launches, graphs, copies, allocations."""
    dcgm_activity: bool = True
    """Whether the source dcgm measures the activity of tensor cores, SMs and memory, which holds the profiling hardware
    of the GPUs; health and switches are read without it."""
    require_gpu: bool = True
    """Count a process only once it has a GPU's device node open (/dev/nvidia0 and so on); false where GPUs are reached
    otherwise, and then any program that calls NCCL counts as training."""
    scan_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 2.0
    """How often to look for new processes and libraries."""
    nccl_probes: str = "auto"
    """Probes on NCCL's operations, groups and queries: auto (as long as they cost no process too much), always, once
    (for some seconds, until its communicators are known); what can be read from memory goes on without them."""
    probe_share: Annotated[float, Meta(ge=1e-5, le=1.0)] = 0.01
    """Share of a core that all probes together may take of a process: above it the dearest are on in windows."""
    nccl_calls_per_second: Annotated[float, Meta(ge=0.0, le=1e9)] = 0.0
    """Deprecated: how many NCCL calls of one process are too often, whatever they cost; 0: `probe_share` decides."""
    progress_hertz: Annotated[float, Meta(ge=0.0, le=100.0)] = 10.0
    """How often to sample the progress of transfers, on average; 0: never."""
    stacks_after_seconds: Annotated[float, Meta(ge=1.0, le=86400.0)] = 8.0
    """How long a process may ask for no operation before its stacks are taken."""
    ras_after_seconds: Annotated[float, Meta(ge=15.0, le=86400.0)] = 20.0
    """How long it may do so before NCCL is asked for its own status, where `ras` is among the sources."""
    return_probes: str = "auto"
    """Probes on returns, where nothing else tells how long a garbage collection took: auto (where the kernel lets them
    pass every filter of system calls), never, always (but for processes with filtered system calls)."""
    zoom_hertz: Annotated[float, Meta(ge=0.0, le=20.0)] = 20.0
    """How many readings a second the detector may ask for when it zooms into host, gpu or rdma; 0: no zoom."""
    zoom_share: Annotated[float, Meta(ge=0.001, le=1.0)] = 0.05
    """Share of a core that such readings may take: they come more seldom where they cost more."""
    zoom_seconds_per_hour: Annotated[float, Meta(ge=0.0, le=3600.0)] = 120.0
    """For how long there may be such readings."""
    profile_seconds_per_hour: Annotated[float, Meta(ge=0.0, le=3600.0)] = 0.0
    """For how long `peerwatch profile` may have functions of training processes sampled here; 0: never."""
    zoom_key_file: str = ""
    """The key that zoom requests for this machine are checked with (`peerwatch config zoom-key`); empty: systemd's
    credential zoom-key, else the detector's signing key where this is its machine. Without a key none is served."""
    keep_seconds: Annotated[float, Meta(ge=1.0, le=1e10)] = 7 * 86400.0
    """How long the embedded store keeps rows."""
    keep_history_seconds: Annotated[float, Meta(ge=1.0, le=1e10)] = 35 * 86400.0
    """How long it keeps verdicts, events, cards and checks, where that is longer: `peerwatch history` reads 28 days."""
    keep_bytes: Annotated[int, Meta(ge=1_000_000, le=1 << 60)] = 2_000_000_000
    """How large the embedded store may grow."""

    def __post_init__(self) -> None:
        """Refuse unknown words and sources that lack another one, naming the key; bounds are checked by msgspec."""
        for key, known in (("sources", SOURCES), ("cuda_calls", CUDA_CALLS)):
            for word in getattr(self, key):
                if word not in known:
                    raise ValueError(f"agent.{key} names {word!r}: known are {', '.join(known)}")
        self._refuse_unknown("return_probes", RETURN_PROBES)
        self._refuse_unknown("nccl_probes", NCCL_PROBES)
        self._check_jobs()
        if "probe" not in self.sources and {"nccl", "cuda"} & set(self.sources):
            raise ValueError("agent.sources needs probe beside nccl and cuda: it puts the probes on")
        for word in {"stacks", "ras"} & set(self.sources):
            if "nccl" not in self.sources:
                raise ValueError(f"agent.sources needs nccl beside {word}: it finds the processes that are stalled")
        for word in {"scheduler", "python", "job"} & set(self.sources):
            if not {"nccl", "cuda"} & set(self.sources):
                raise ValueError(f"agent.sources needs nccl or cuda beside {word}: they find the processes that train")

    def _check_jobs(self) -> None:
        if self.job_log and "job_log" not in self.sources:
            raise ValueError('agent.job_log needs "job_log" in agent.sources')
        if len({job.name for job in self.job_log}) < len(self.job_log):
            raise ValueError("agent.job_log: two jobs have the same name")

    def _refuse_unknown(self, key: str, known: tuple[str, ...]) -> None:
        if getattr(self, key) not in known:
            raise ValueError(f"agent.{key} is {getattr(self, key)!r}: known are {', '.join(known)}")

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.machine or socket.gethostname()
