"""The columns of the rank table: what is known of each series of `nccl` rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Floats, Ints
from detector.stats.columns import Columns, column
from store.schema.time import NEVER, SECOND


@dataclass(slots=True)
class RankColumns(Columns):
    """Columns are [series]; a series is one (machine, GPU, slot), and a slot holds one communicator at a time."""

    number: dict[tuple[str, ...], int] = field(default_factory=dict)
    """(machine, GPU, slot) -> series."""
    operations: Floats = column()
    """Operations enqueued; the last known count."""
    offset: Floats = column()
    """Operations that this rank's agent did not see, and those of its peers did."""
    aligned: Floats = column()
    """1 where `operations + offset` compares with other ranks'."""
    attached: Floats = column()
    """1 where the count begins when the agent attached."""
    fell: Floats = column()
    """1 where the count fell, and its peers' did not: it began again, whatever its rows say."""
    gap: Floats = column()
    """Longest time without progress while ranks waited, seconds, with a half-life of 30 minutes."""
    moves: Floats = column()
    """Rows that showed progress since the communicator was formed."""
    rank: Floats = column()
    comm_ranks: Floats = column()
    """Ranks of the communicator."""
    pid: Floats = column()
    pending: Floats = column()
    """Positive while an operation is not finished."""
    lost_calls: Floats = column()
    active: Floats = column()
    """Share of samples in which an operation was in flight."""
    sending: Floats = column()
    receiving: Floats = column()
    unsent: Floats = column()
    """Share of samples in which a chunk was ready and nothing moved."""
    steps: Floats = column()
    pace: Floats = column(np.nan)
    """Steps a second since the row before."""
    ring_step: Floats = column()
    blocked: Floats = column()
    """Counter: seconds for which the host waited behind operations."""
    iteration: Floats = column()
    """Seconds of an iteration."""
    sends_to: Floats = column()
    """Rank that a chunk is on its way to; NO_RANK, UNKNOWN."""
    receives_from: Floats = column()
    credit_from: Floats = column()
    """Rank that gives no credit for a chunk that is ready."""
    awaiting_gpu: Floats = column()
    """Positive while the GPU has no more data to send."""
    channel: Floats = column()
    net_device: Floats = column()
    """Of the transfer that waits for the network."""
    departs: Floats = column()
    """1 where the last calls depart from the order of those before, 0 where they do not."""
    replayed: Floats = column()
    """1 where CUDA graphs replay the operations, so that calls are not counted."""
    has_replayed: Floats = column()
    """1 once they have, in this communicator: a call in between, such as a checkpoint's, ends no replays."""
    last_seen: Ints = column(NEVER, np.int64)
    """When the newest row was read, Unix ns."""
    back: Ints = column(NEVER, np.int64)
    """When its rows came again after they had been missing: its count may be a few operations off since then."""
    last_progress: Ints = column(NEVER, np.int64)
    last_idle: Ints = column(NEVER, np.int64)
    """When no rank of its communicator waited."""
    comm: NDArray[np.object_] = column("", object)
    operation: NDArray[np.object_] = column("", object)
    """The last one enqueued, as kind:datatype:count."""
    code: Ints = column(-1, np.int64)
    """The communicator as a number; -1: not known."""
    process: Ints = column(-1, np.int64)
    """The process as a number."""
    processes: dict[tuple[str, ...], int] = field(default_factory=dict)
    """(machine, GPU) -> process, in the order of numbers."""
    machine: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[process]: its machine as a number."""
    machines: dict[str, int] = field(default_factory=dict)
    period: float = SECOND
    """Time between two rows of one series, ns."""
    period_known: bool = False
    lost_by_machine: dict[str, float] = field(default_factory=dict)
    """Machine -> probe hits that the kernel dropped."""
