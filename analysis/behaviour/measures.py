"""What is measured of a rank's behaviour, after Flare (NSDI'26): distributions, not averages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.traces.operations import natural
from detector.stats.arrays import Floats

MOST_VALUES = 2_000_000


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure, its unit, and in which direction it is worse."""

    name: str
    unit: str
    worse: int
    """1: more is worse; -1: less is."""
    words: str
    floor: float
    """The smallest difference that counts, in the unit."""
    cause: str
    """What a change for the worse points at."""


MEASURES = {
    one.name: one
    for one in (
        Measure("iteration_seconds", "s", 1, "iterations", 1e-3, "every cause ends here: see the others"),
        Measure("compute_seconds", "s", 1, "compute kernels of an iteration", 1e-4, "a slower GPU, or other kernels"),
        Measure("compute_rate", "Hz", -1, "compute rate (tensor activity × clock)", 2e7, "a slower GPU, or less work"),
        Measure("bandwidth", "B/s", -1, "bandwidth", 1e7, "a slower link, or smaller messages"),
        Measure("issue_latency", "s", -1, "issue latency", 2e-5, "a kernel-issue stall: the GPU waits for the host"),
        Measure(
            "void_between", "ratio", 1, "void between iterations", 0.02, "the host between steps: loader, checkpoint"
        ),
        Measure("void_within", "ratio", 1, "void within iterations", 0.02, "small kernels, or a host that issues late"),
        Measure("void", "ratio", 1, "time without any kernel", 0.03, "the host: loader, checkpoint, issue"),
        Measure(
            "synchronise", "ratio", 1, "time in synchronise calls", 0.03, "waits for GPU or other ranks on the host"
        ),
        Measure("gc", "ratio", 1, "time in garbage collection", 0.005, "garbage collection of Python"),
        Measure("loader", "ratio", 1, "time in the data loader", 0.02, "the data loader"),
        Measure("disk_wait", "ratio", 1, "time waiting for disks", 0.05, "storage that the loader or checkpoint uses"),
    )
}
"""Shares are of wall time; those of the host may overlap."""


@dataclass(slots=True)
class Behaviour:
    """The behaviour of the ranks of one job."""

    size: int
    """Ranks of the job, of which some may not have been measured."""
    program: str
    """What is known of the program: the same for two runs of the same one."""
    values: dict[str, dict[str, Floats]] = field(default_factory=dict)
    """Measure (for bandwidth `bandwidth of COMMUNICATOR`) -> rank -> its values."""

    def add(self, name: str, rank: str, values: Floats) -> None:
        """Add values of a rank; those that are not known are left out."""
        known = values[np.isfinite(values)][:MOST_VALUES]
        if len(known):
            ranks = self.values.setdefault(name, {})
            ranks[rank] = np.concatenate([ranks[rank], known]) if rank in ranks else known

    @property
    def ranks(self) -> list[str]:
        """All ranks of which something was measured."""
        return sorted({rank for values in self.values.values() for rank in values}, key=natural)


def measure_of(name: str) -> Measure:
    """The measure of a name such as `bandwidth of COMMUNICATOR`."""
    return MEASURES[name.split(" of ")[0]]
