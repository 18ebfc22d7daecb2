"""Operation timelines of made-up training jobs, simulated pass by pass in Python, not by the code under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

TRANSFER_S = 0.01
Row = dict[str, Any]
Seconds = Callable[[str, int, int, int, int], float]
"""(forward or backward, data rank, stage, step, micro-batch) -> seconds of the pass."""


def plain(direction: str, dp: int, stage: int, step: int, micro_batch: int) -> float:
    """Every forward pass takes 1 s, every backward pass 2 s."""
    return 1.0 if direction == "forward" else 2.0


@dataclass
class Job:
    """Shape of a job; `rows` has its operations."""

    dp: int = 1
    pp: int = 1
    micro_batches: int = 4
    chunks: int = 1
    steps: int = 1
    notes_nothing: bool = False
    """Whether transfers that bring nothing are recorded, as in an interleaved pipeline, all but the first receive."""
    seconds: Seconds = plain
    rows: list[Row] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    """[step]: the simulated time until the last optimizer has run."""

    def __post_init__(self) -> None:
        for step in range(self.steps):
            replicas = [Replica(self, dp, step) for dp in range(self.dp)]
            self.step_s.append(finish(self, replicas, step))

    def columns(self) -> dict[str, list[Any]]:
        """The rows as columns."""
        return {name: [row[name] for row in self.rows] for name in self.rows[0]}

    def write(self, file: Path, drop: tuple[str, ...] = ()) -> Path:
        """Write a Parquet file without the columns to drop."""
        parquet.write_table(pa.table(self.columns()).drop_columns(list(drop)), file)
        return file


class Replica:
    """One model replica in one step: when each pass runs."""

    def __init__(self, job: Job, dp: int, step: int) -> None:
        self.job, self.dp, self.step = job, dp, step
        self.programs = [program(job, stage) for stage in range(job.pp)]
        self.last = job.pp * job.chunks - 1
        self.end = cache(self._end)
        self.sent = cache(self._sent)
        for stage, passes in enumerate(self.programs):
            for at in range(len(passes)):
                self._note(stage, at)

    def _place(self, direction: str, chunk: int, micro_batch: int) -> tuple[int, int]:
        stage = chunk % self.job.pp
        return stage, self.programs[stage].index((direction, chunk, micro_batch))

    def _before(self, stage: int, at: int) -> int | None:
        """The pass of the same direction before this one."""
        same = [i for i in range(at) if self.programs[stage][i][0] == self.programs[stage][at][0]]
        return same[-1] if same else None

    def ready(self, stage: int, at: int) -> float:
        """When the worker waits for what this pass receives."""
        before = self._before(stage, at)
        if before is not None:
            return self.end(stage, before)
        return self.end(stage, at - 2) if self.programs[stage][at][0] == "backward" and at >= 2 else 0.0

    def source(self, stage: int, at: int) -> tuple[int, int] | None:
        """The pass that sends to this one; None for the first of the model."""
        direction, chunk, micro_batch = self.programs[stage][at]
        chunk += -1 if direction == "forward" else 1
        return self._place(direction, chunk, micro_batch) if 0 <= chunk <= self.last else None

    def _sent(self, stage: int, at: int) -> float:
        """When what this pass receives has come."""
        source = self.source(stage, at)
        assert source is not None
        return max(self.end(*source), self.ready(stage, at)) + TRANSFER_S

    def _end(self, stage: int, at: int) -> float:
        direction, _, micro_batch = self.programs[stage][at]
        return self.start(stage, at) + self.job.seconds(direction, self.dp, stage, self.step, micro_batch)

    def start(self, stage: int, at: int) -> float:
        """When a pass begins."""
        came = self.sent(stage, at) if self.source(stage, at) else 0.0
        return max(came, self.end(stage, at - 1) if at else 0.0)

    def _note(self, stage: int, at: int) -> None:
        direction, chunk, micro_batch = self.programs[stage][at]
        start, end = self.start(stage, at), self.end(stage, at)
        same = [one for one in self.programs[stage][:at] if one[0] == direction]
        add(self, stage, f"{direction}-compute", start, end, len(same), chunk, micro_batch)
        source = self.source(stage, at)
        if source:
            came = self.sent(stage, at)
            add(self, stage, f"{direction}-recv", self.ready(stage, at), came, len(same))
            add(self, source[0], f"{direction}-send", self.end(*source), came, self._sends_before(*source))
        elif self.job.notes_nothing and same:
            add(self, stage, f"{direction}-recv", self.ready(stage, at), self.ready(stage, at), len(same))
        if self.job.notes_nothing and chunk == (self.last if direction == "forward" else 0):
            add(self, stage, f"{direction}-send", end, end, len(same))

    def _sends_before(self, stage: int, at: int) -> int:
        return sum(one[0] == self.programs[stage][at][0] for one in self.programs[stage][:at])


def program(job: Job, stage: int) -> list[tuple[str, int, int]]:
    """The passes of a stage in order: one forward, one backward after a warm-up, chunks interleaved."""
    total = job.micro_batches * job.chunks
    round_of = job.pp * job.chunks

    def passes(direction: str) -> list[tuple[str, int, int]]:
        out = []
        for k in range(total):
            local = k % round_of // job.pp
            local = local if direction == "forward" else job.chunks - 1 - local
            micro_batch = k // round_of * job.pp + k % job.pp if job.chunks > 1 else k
            out.append((direction, local * job.pp + stage, micro_batch))
        return out

    warm = job.pp - stage - 1 if job.chunks == 1 else (job.pp - stage - 1) * 2 + (job.chunks - 1) * job.pp
    warm = min(warm, total)
    forward, backward = passes("forward"), passes("backward")
    mixed = [one for pair in zip(forward[warm:], backward, strict=False) for one in pair]
    return [*forward[:warm], *mixed, *backward[total - warm :]]


def finish(job: Job, replicas: list[Replica], step: int) -> float:
    """Add the end of a step: gradients reduced over data ranks, clipped over all, and the optimizer."""
    ends = [
        [replica.end(stage, len(passes) - 1) for stage, passes in enumerate(replica.programs)] for replica in replicas
    ]
    reduced = [max(column) + 0.3 for column in zip(*ends, strict=True)]
    clipped = max(reduced) + 0.07
    for replica, own in zip(replicas, ends, strict=True):
        for stage, end in enumerate(own):
            add(replica, stage, "gc", end, end, 0)
            if job.dp > 1:
                add(replica, stage, "grads-reduce-scatter", end, reduced[stage], 0, stage)
            add(replica, stage, "optimizer-clip-main-grad", reduced[stage] if job.dp > 1 else end, clipped, 0)
            add(replica, stage, "optimizer", clipped, clipped + 0.2, 0)
    return clipped + 0.2


def add(
    replica: Replica, stage: int, kind: str, start: float, end: float, seq: int, chunk: int = -1, micro_batch: int = -1
) -> None:
    """Add a row."""
    job = replica.job
    times = {"optype": kind, "start_ts": start, "duration": end - start}
    place = {"dp_rank": replica.dp, "stage": stage, "rank": stage * job.dp + replica.dp, "step": 100 + replica.step}
    local = chunk // job.pp if chunk >= 0 else -1
    job.rows.append({**place, **times, "seq_id": seq, "mc": local, "mb_id": micro_batch, "gmc": chunk})


def many(dp: int, steps: int, job: Job) -> dict[str, Any]:
    """Columns of a large job: the rows of a job of one replica and step for every replica and step, with noise."""
    one = {name: np.array(column) for name, column in job.columns().items()}
    size, copies = len(job.rows), dp * steps
    out: dict[str, Any] = {name: np.tile(column, copies) for name, column in one.items()}
    out["dp_rank"] = np.repeat(np.tile(np.arange(dp), steps), size)
    out["step"] = np.repeat(np.arange(steps), size * dp)
    out["rank"] = out["stage"] * dp + out["dp_rank"]
    out["duration"] = out["duration"] * np.random.default_rng(7).uniform(0.9, 1.0, size * copies)
    return out
