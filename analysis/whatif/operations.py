"""The recorded operations of a training job as arrays, one place an operation, and what their types mean.

Types and columns are those of the open traces of "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI 2025, arXiv 2505.05713).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Bools, Floats, Ints

FORWARD, BACKWARD = "forward-compute", "backward-compute"
FORWARD_SEND, FORWARD_RECV = "forward-send", "forward-recv"
BACKWARD_SEND, BACKWARD_RECV = "backward-send", "backward-recv"
GATHER, SCATTER, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LAYERNORM, EMBEDDING = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER, COLLECT = "optimizer-clip-main-grad", "optimizer", "gc"
POINT_TO_POINT = (FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV)
DATA_PARALLEL = (GATHER, SCATTER, SEPARATE)
SYNCHRONIZED = (*POINT_TO_POINT, *DATA_PARALLEL, EMBEDDING, CLIP)
"""Types of which several workers take part in one operation: none of them ends before the last has begun."""
TRANSFERS = (*SYNCHRONIZED, LAYERNORM)
"""Types with the median, not the mean, as ideal length: a few of them may have waited for something else."""
KNOWN = (FORWARD, BACKWARD, *TRANSFERS, OPTIMIZER, COLLECT)
COMPUTE = "-compute"
"""The ending of every type that runs in the compute stream."""


@dataclass(slots=True)
class Operations:
    """Operations ordered by step, worker and start; every array is [operation] unless said otherwise."""

    step: Ints
    """Index into `steps`."""
    worker: Ints
    """Number of the worker: one replica's process of one stage."""
    replica: Ints
    """Number of the model replica: a data rank, or one of several ranks that share data rank and stage."""
    dp_rank: Ints
    stage: Ints
    """Counted from 0 without gaps."""
    rank: Ints
    kind: Ints
    """Index into `kinds`."""
    start: Floats
    """Seconds since the step's first operation began."""
    duration: Floats
    """Seconds."""
    chunk: Ints
    """Model chunk within the stage; 0 where not known."""
    global_chunk: Ints
    """Model chunk within the model; by stage and chunk where not known."""
    micro_batch: Ints
    """Of a forward or backward pass; -1: not known."""
    kinds: tuple[str, ...]
    steps: Ints
    """[step]: their numbers in the trace."""
    order: Ints = field(init=False)
    """Position among the operations of its type on its worker in its step."""

    def __post_init__(self) -> None:
        self.order = positions(self.line * len(self.kinds) + self.kind)

    def __len__(self) -> int:
        return len(self.step)

    @property
    def line(self) -> Ints:
        """The timeline of a worker in a step, as a number that grows with the operations' order."""
        return self.step * (int(self.worker.max(initial=0)) + 1) + self.worker

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return int(self.stage.max(initial=0)) + 1

    @property
    def chunks(self) -> int:
        """Number of model chunks of the whole model."""
        return (int(self.chunk.max(initial=0)) + 1) * self.stages

    def of(self, *kinds: str) -> Bools:
        """Which operations are of these types."""
        return np.isin(self.kind, [at for at, kind in enumerate(self.kinds) if kind in kinds])

    def computes(self) -> Bools:
        """Which operations run in the compute stream."""
        return np.array([kind.endswith(COMPUTE) for kind in self.kinds], bool)[self.kind]

    def select(self, chosen: Bools) -> Operations:
        """The chosen operations, with steps counted without gaps."""
        steps, step = np.unique(self.step[chosen], return_inverse=True)
        names: tuple[str, ...] = ("worker", "replica", "dp_rank", "stage", "rank", "kind", "start", "duration")
        names += ("chunk", "global_chunk", "micro_batch")
        columns = {name: getattr(self, name)[chosen] for name in names}
        return Operations(step=step, kinds=self.kinds, steps=self.steps[steps], **columns)

    def recorded(self) -> Floats:
        """[step]: seconds from the first start to the last end."""
        first = first_of(self.step)
        ends: Floats = np.maximum.reduceat(self.start + self.duration, first)
        return ends - np.minimum.reduceat(self.start, first)


def first_of(sorted_keys: NDArray[np.int64]) -> Ints:
    """Where each run of equal keys begins."""
    return np.flatnonzero(np.diff(sorted_keys, prepend=sorted_keys[:1] - 1))


def positions(keys: Ints) -> Ints:
    """[key]: how many equal keys stand before it."""
    order = np.argsort(keys, kind="stable")
    first = first_of(keys[order])
    out = np.empty(len(keys), np.int64)
    out[order] = np.arange(len(keys)) - np.repeat(first, np.diff(first, append=len(keys)))
    return out


def joined(*columns: Ints) -> Ints:
    """One number for each combination of values that are not negative."""
    out = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        out = out * (int(column.max(initial=0)) + 1) + column
    return out
