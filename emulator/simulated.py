"""A pretend fleet before it becomes tables: one synchronous training task, and what a fault bends.

The model: every iteration all GPUs compute, then talk; who needs longest sets the pace and waits least, the others wait
for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Columns = dict[str, Array]
SECOND = 10**9
START = 1_760_000_000 * SECOND
TABLES = ("host", "gpu", "rdma", "nccl", "cuda", "task", "event")
WAIT = 0.2  # share of an undisturbed iteration that every rank waits for others


@dataclass(slots=True)
class Fleet:
    """Time runs along axis 0, machines along axis 1, GPUs along axis 2; what a fault bends and the tables show."""

    machines: int
    gpus: int
    step_s: float
    rng: np.random.Generator
    seconds: Array
    """[step] since the start."""
    who: int = 0
    gpu: int = 0
    on: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """[step] whether the fault is there."""
    pace: Array = field(default_factory=lambda: np.zeros(0))
    """[step] iteration rate over the undisturbed one; 0 where the task stands still."""
    stuck: Array = field(default_factory=lambda: np.zeros(0, bool))
    """[step] whether ranks stand in a collective that does not end."""
    wait: Array = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """Share of time spent waiting for others."""
    bends: dict[str, list[tuple[Any, str, Any]]] = field(default_factory=dict)
    """`table.metric` -> (index, how, by what) applied to the healthy readings (rates for counters)."""
    events: list[tuple[int, str, str, str, str, str]] = field(default_factory=list)
    gone: list[tuple[str, Any]] = field(default_factory=list)
    """Rows that are missing: table ("" for all) and index."""
    nccl: str = ""
    """What happens to the culprit's communicators: behind, differs, or nothing."""
    device: str | None = None

    def bend(self, key: str, index: Any, how: str, by: Any) -> None:
        """Let a reading be multiplied (`*`), added to (`+`) or set (`=`) at an index [step, machine, gpu]."""
        self.bends.setdefault(key, []).append((index, how, by))

    def slow(self, factor: float) -> None:
        """The culprit GPU computes longer: it waits least, and the others for it."""
        self.pace = np.where(self.on, self.pace / factor, self.pace)
        self.wait[self.on] = 1 - (1 - WAIT) / factor
        self.wait[self.on, self.who, self.gpu] = 0.02

    def stall(self, after_s: float) -> None:
        """All ranks stand still from a while after the onset."""
        self.stuck = self.on & (self.seconds >= self.seconds[self.on][0] + after_s)
        self.pace = np.where(self.stuck, 0.0, self.pace)
        self.wait[self.stuck] = 1.0

    def say(self, code: str, severity: str, message: str, after_s: float = 1.0) -> None:
        """An event on the culprit."""
        at = START + int((self.seconds[self.on][0] + after_s) * SECOND)
        source = "nccl" if code == "rank_exit" else "kernel_log"
        self.events.append((at, name_of(self.who), source, code, severity, message))

    @property
    def one(self) -> tuple[Array, int, int]:
        """Index of the culprit's GPU while the fault lasts."""
        return np.flatnonzero(self.on), self.who, self.gpu

    @property
    def all(self) -> tuple[Array, int]:
        """Index of the culprit machine while the fault lasts."""
        return np.flatnonzero(self.on), self.who


def name_of(machine: int) -> str:
    """The name of a machine by its number."""
    return f"m{machine:04d}"
