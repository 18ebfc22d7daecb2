"""A pretend pipeline job, event by event: what NCCL's Inspector would log of it on every rank.

Made otherwise than `operator_log.py`, with which the model of operators is fitted: ranks run programs (micro-batches
with sends and receives between pipeline stages, tensor groups within a machine, gradients at the end), an operation
ends when its last rank has come and the slowest port on its way is through, and noise is gamma with rare long pauses.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
GPUS = 8
"""Of a machine."""
_LATENCY_S, _EPOCH_US = 8e-6, 1_790_000_000_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, from `since` on: kind gpu, link, switch or none; `factor` times as slow."""

    kind: str = "none"
    place: int = 0
    """The rank, or the number of the leaf switch."""
    factor: float = 1.5
    since: int = 12
    """Iteration."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the groups, the innermost first, as Megatron places ranks."""

    tensor: int = 4
    data: int = 4
    pipeline: int = 4
    micro_batches: int = 6
    machines_per_leaf: int = 2

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.tensor * self.data * self.pipeline


@dataclass(frozen=True, slots=True)
class Call:
    """One operation of the program of a rank."""

    kind: str
    group: tuple[int, ...]
    bytes: float


Row = tuple[int, Call, int, float, float, float]


@dataclass(slots=True)
class Job:
    """Runs iterations; `rows` are (rank, call, number in its communicator, entry, start, end), times in seconds."""

    shape: Shape
    fault: Fault
    seed: int
    rows: list[Row] = field(default_factory=list)
    _counts: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)

    def run(self, iterations: int) -> None:
        """Log so many iterations."""
        chance, ready = np.random.default_rng(self.seed), np.zeros(self.shape.ranks)
        for iteration in range(iterations):
            ready = ready + 0.004
            for stage in _program(self.shape):
                self._compute(ready, stage[0], chance, iteration)
                for call in stage[1]:
                    self._call(ready, call, chance, iteration)

    def _compute(self, ready: Floats, work: dict[int, float], chance: np.random.Generator, iteration: int) -> None:
        for rank, seconds in work.items():
            slow = self.fault.kind == "gpu" and rank == self.fault.place and iteration >= self.fault.since
            pause = 0.03 if chance.random() < 3e-4 else 0.0
            ready[rank] += seconds * (self.fault.factor if slow else 1.0) * chance.gamma(900, 1 / 900) + pause

    def _call(self, ready: Floats, call: Call, chance: np.random.Generator, iteration: int) -> None:
        ranks = list(call.group)
        entry = ready[ranks].copy()
        local = len({rank // GPUS for rank in ranks}) == 1
        rate = 2e11 if local else 2.2e10 * min(self._rate(rank, iteration) for rank in ranks)
        took = _LATENCY_S + call.bytes / rate * chance.gamma(300, 1 / 300)
        end = entry.max() + took
        number = self._counts[call.group, call.kind] = self._counts.get((call.group, call.kind), 0) + 1
        for rank, begun in zip(ranks, entry.tolist(), strict=True):
            self.rows.append((rank, call, number, begun - 2e-5, begun, end))
        ready[ranks] = end

    def _rate(self, rank: int, iteration: int) -> float:
        """Of a rank's port, as a share of the usual one."""
        leaf = rank // GPUS // self.shape.machines_per_leaf
        hit = (self.fault.kind == "link" and rank == self.fault.place) or (
            self.fault.kind == "switch" and leaf == self.fault.place
        )
        return 1 / self.fault.factor if hit and iteration >= self.fault.since else 1.0


def _program(shape: Shape) -> Iterator[tuple[dict[int, float], list[Call]]]:
    """Steps of an iteration: seconds of computing by rank, then the calls that follow, in an order that can end."""
    ranks = np.arange(shape.ranks).reshape(shape.pipeline, shape.data, shape.tensor)
    tensor = [tuple(group) for group in ranks.reshape(-1, shape.tensor).tolist()]
    data = [tuple(group) for group in ranks.transpose(0, 2, 1).reshape(-1, shape.data).tolist()]
    for _ in range(shape.micro_batches):
        for forward in (True, False):
            order = range(shape.pipeline) if forward else reversed(range(shape.pipeline))
            for stage in order:
                mine = ranks[stage].reshape(-1).tolist()
                calls = [Call("AllReduce", group, 3e7) for group in tensor if group[0] in mine] * (shape.tensor > 1)
                to = stage + (1 if forward else -1)
                if 0 <= to < shape.pipeline:
                    calls += [
                        Call("Send", pair, 2.5e7) for pair in zip(mine, ranks[to].reshape(-1).tolist(), strict=True)
                    ]
                yield dict.fromkeys(mine, 0.006 if forward else 0.012), calls
    everyone = tuple(range(shape.ranks))
    last = [Call(kind, group, 4e8) for kind in ("ReduceScatter", "AllGather") for group in data if shape.data > 1]
    yield {}, [*last[: len(data)], Call("AllReduce", everyone, 4.0), *last[len(data) :]]


def write_inspector(job: Job, folder: Path, verbose: bool = True) -> list[Path]:
    """Write what the plugin would have written, a file a process; their paths in order of ranks."""
    files = [folder / f"m{rank // GPUS:02d}-pid{1000 + rank}.log" for rank in range(job.shape.ranks)]
    lines: list[list[str]] = [[] for _ in files]
    for row in job.rows:
        lines[row[0]].append(json.dumps(_line(job.shape, row, verbose)) + "\n")
    for path, mine in zip(files, lines, strict=True):
        path.write_text("".join(mine))
    return files


def _line(shape: Shape, row: Row, verbose: bool) -> dict[str, Any]:
    """One record; sends and receives belong to the communicator of their pipeline."""
    rank, call, number, entry, start, end = row
    group = call.group
    pair = call.kind == "Send"
    if pair:
        apart = shape.tensor * shape.data
        group = tuple(range(rank % apart, shape.ranks, apart))
    ends = {"start": _EPOCH_US + round(start * 1e6), "stop": _EPOCH_US + round(end * 1e6)}
    kind = call.kind if not pair or rank == call.group[0] else "Recv"
    prefix = "p2p" if pair else "coll"
    perf: dict[str, Any] = {
        prefix: kind,
        f"{prefix}_sn": number,
        f"{prefix}_msg_size_bytes": int(call.bytes),
        f"{prefix}_exec_time_us": ends["stop"] - ends["start"],
        f"{prefix}_timing_source": "kernel_gpu",
    }
    if pair:
        perf["p2p_peer"] = group.index(next(one for one in call.group if one != rank))
    if verbose:
        times = {f"kernel_{name}_ts": at for name, at in ends.items()}
        begun = _EPOCH_US + round(entry * 1e6)
        trace = {f"{prefix}_start_ts": begun, f"{prefix}_stop_ts": begun + 5}
        perf["event_trace_ts"] = {**trace, "kernel_events": [{"channel_id": 0, **times}]}
    code = zlib.crc32(repr((group, call.kind if len(group) == shape.ranks else "")).encode())
    return {
        "header": {"id": f"0x{code:x}", "rank": group.index(rank), "n_ranks": len(group), "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.1",
            "dump_timestamp_us": ends["stop"] + 230,
            "hostname": f"m{rank // GPUS:02d}",
            "pid": 1000 + rank,
        },
        f"{prefix}_perf": perf,
    }
