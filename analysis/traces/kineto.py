"""Reads traces of PyTorch's profiler (Kineto, Chrome trace JSON) of NVIDIA's and AMD's GPUs, an event at a time."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.traces.bounded import Scanner, TraceError, members, opened
from analysis.traces.operations import UNKNOWN, UNNAMED, Collector, item_bytes, kind_of, number, whole
from detector.stats.arrays import Bools, Floats, Ints

MOST_KERNELS = 8_000_000
_MICRO = 1e-6
_STEP = re.compile(r"ProfilerStep#(\d{1,15})$")
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LOADER = re.compile(r"DataLoader|data_?load", re.IGNORECASE)
_GC = re.compile(r"(garbage|gc)[ _.:]?collect|^gc$|Python GC", re.IGNORECASE)
STALLS = ("synchronise", "loader", "gc")


@dataclass(slots=True)
class Trace:
    """One rank's trace; times in seconds of the trace's clock."""

    path: Path
    rank: int = UNKNOWN
    world: int = UNKNOWN
    backend: str = ""
    events: int = 0
    is_kernel: Bools = field(default_factory=lambda: np.empty(0, bool))
    """[GPU activity]: kernel, not copy or fill."""
    is_communication: Bools = field(default_factory=lambda: np.empty(0, bool))
    start: Floats = field(default_factory=lambda: np.empty(0))
    seconds: Floats = field(default_factory=lambda: np.empty(0))
    launch: Floats = field(default_factory=lambda: np.empty(0))
    """When the host asked for it; NaN: not in the trace."""
    steps: Floats = field(default_factory=lambda: np.empty((0, 3)))
    """[step, (number, start, seconds)], in order of time."""
    stalls: dict[str, Floats] = field(default_factory=dict)
    """Of STALLS: [event, (start, seconds)] of the host."""
    communication: list[dict[str, Any]] = field(default_factory=list)
    """Of each kernel of NCCL or RCCL what the trace says: name, stream and arguments."""


class _Gathering:
    """Columns that grow while the events pass."""

    def __init__(self) -> None:
        self.numbers = {name: array("d") for name in ("kernel", "communication", "start", "seconds", "correlation")}
        self.launches: dict[int, float] = {}
        self.steps: list[tuple[float, float, float]] = []
        self.stalls: dict[str, list[tuple[float, float]]] = {name: [] for name in STALLS}
        self.communication: list[dict[str, Any]] = []

    def add(self, event: dict[str, Any], path: Path) -> None:
        if event.get("ph") != "X":
            return
        category, name = event.get("cat"), str(event.get("name", ""))
        start, seconds = number(event.get("ts")) * _MICRO, number(event.get("dur"), 0.0) * _MICRO
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if category in _GPU:
            self._add_activity(category == "kernel", name, (start, seconds), arguments)
            if len(self.numbers["start"]) > MOST_KERNELS:
                raise TraceError(f"{path} holds more than {MOST_KERNELS:,} GPU activities: profile fewer steps")
        elif category in ("cuda_runtime", "cuda_driver"):
            self.launches[whole(arguments.get("correlation"))] = start
            if "Synchronize" in name:
                self.stalls["synchronise"].append((start, seconds))
        elif category in ("user_annotation", "cpu_op", "python_function"):
            self._add_host(category, name, (start, seconds))

    def _add_activity(self, kernel: bool, name: str, when: tuple[float, float], arguments: dict[str, Any]) -> None:
        communication = kernel and ("nccl" in name.lower() or "rccl" in name.lower())
        values = (kernel, communication, *when, whole(arguments.get("correlation")))
        for column, value in zip(self.numbers.values(), values, strict=True):
            column.append(value)
        if communication:
            self.communication.append(
                {"name": name[:200], **{key: arguments[key] for key in _USED if key in arguments}}
            )

    def _add_host(self, category: str, name: str, when: tuple[float, float]) -> None:
        step = _STEP.search(name)
        if step and category == "user_annotation":
            self.steps.append((float(step[1]), *when))
        elif _LOADER.search(name[:200]):
            self.stalls["loader"].append(when)
        elif _GC.search(name[:200]):
            self.stalls["gc"].append(when)


_USED = (
    "stream",
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "dtype",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Group size",
    "Src Rank",
    "Dst Rank",
    "Seq",
)


def read(path: Path) -> Trace:
    """The trace of one rank. Raises TraceError for a file that is none."""
    trace, gathered, seen = Trace(path), _Gathering(), False
    with opened(path) as stream:
        scan = Scanner(stream, path)
        for key, value in members(scan, "traceEvents"):
            if key == "traceEvents":
                seen = True
                trace.events += 1
                if isinstance(value, dict):
                    gathered.add(value, path)
            elif key == "distributedInfo" and isinstance(value, dict):
                trace.rank, trace.world = whole(value.get("rank")), whole(value.get("world_size"))
                trace.backend = str(value.get("backend") or "")[:20]
        if scan.peek():
            scan.fail()
    if not seen:
        raise TraceError(f"{path} holds no events: it is no trace of a profiler")
    _finish(trace, gathered)
    return trace


def _finish(trace: Trace, gathered: _Gathering) -> None:
    """Arrays from the columns; activities in order of their start, each with the host's call by its correlation."""
    columns = {name: np.array(column) for name, column in gathered.numbers.items()}
    order = np.argsort(columns["start"], kind="stable")
    known = np.fromiter(gathered.launches, np.int64, len(gathered.launches))
    times = np.fromiter(gathered.launches.values(), float, len(gathered.launches))
    asked = columns["correlation"][order].astype(np.int64)
    trace.launch = np.full(len(order), np.nan)
    if len(known):
        rank = np.argsort(known)
        place = rank[np.minimum(np.searchsorted(known, asked, sorter=rank), len(known) - 1)]
        there = (known[place] == asked) & (asked != UNKNOWN)
        trace.launch[there] = times[place[there]]
    trace.start, trace.seconds = columns["start"][order], columns["seconds"][order]
    trace.is_kernel, trace.is_communication = columns["kernel"][order] > 0, columns["communication"][order] > 0
    where = np.cumsum(columns["communication"]).astype(np.int64) - 1
    trace.communication = [gathered.communication[at] for at in where[order][trace.is_communication]]
    steps = np.array(gathered.steps, float).reshape(-1, 3)
    steps = steps[np.isfinite(steps).all(1) & (steps[:, 2] > 0)]
    steps = steps[np.unique(steps[:, 0], return_index=True)[1]]
    trace.steps = steps[np.argsort(steps[:, 1])]
    trace.stalls = {name: np.array(rows, float).reshape(-1, 2) for name, rows in gathered.stalls.items()}


def step_of(trace: Trace, times: Floats) -> Ints:
    """[time]: the number of the profiler's step that it falls into; UNKNOWN outside of all."""
    if not len(trace.steps):
        return np.full(len(times), UNKNOWN)
    place = np.searchsorted(trace.steps[:, 1], times, "right") - 1
    inside = (place >= 0) & (times < trace.steps[place, 1] + trace.steps[place, 2])
    return np.where(inside, trace.steps[place, 0], UNKNOWN).astype(np.int64)


def add_operations(trace: Trace, table: Collector) -> None:
    """Add the kernels of NCCL or RCCL of one rank to the table; without arguments a stream counts as communicator."""
    place = np.flatnonzero(trace.is_communication)
    launch = trace.launch[place]
    step = step_of(trace, np.where(np.isnan(launch), trace.start[place], launch))
    name = f"rank {trace.rank}" if trace.rank != UNKNOWN else trace.path.name
    rank = table.rank(name)
    counted: dict[tuple[str, str, int], int] = {}
    for number_of, (at, about) in enumerate(zip(place.tolist(), trace.communication, strict=True)):
        communicator, kind, peer = _group(about, name, table), _kind(about), UNKNOWN
        if kind in ("Send", "Recv"):
            other = whole(about.get("Dst Rank" if kind == "Send" else "Src Rank"))
            peer = table.rank(f"rank {other}") if other != UNKNOWN else UNKNOWN
        series = (communicator, kind if peer != UNKNOWN else "", peer)
        index = counted[series] = counted.get(series, -1) + 1
        table.add(
            rank,
            communicator,
            kind,
            index=whole(about.get("Seq"), index),
            peer=peer,
            bytes=_bytes(about),
            entry=float(launch[number_of]),
            start=float(trace.start[at]),
            end=float(trace.start[at] + trace.seconds[at]),
            seconds=float(trace.seconds[at]),
            step=int(step[number_of]),
        )


def _kind(about: dict[str, Any]) -> str:
    said = kind_of(str(about.get("Collective name") or ""))
    return said or kind_of(re.sub(r"^\w*?Kernel_?", "", about["name"]).split("(")[0].split("_")[0])


def _group(about: dict[str, Any], rank: str, table: Collector) -> str:
    name = about.get("Process Group Name")
    if name is None:
        return f"{UNNAMED}{about.get('stream')} of {rank}"[:80]
    return f"{about.get('Process Group Description') or 'group'} {name} of ranks {_ranks(about)}"


def _ranks(about: dict[str, Any]) -> str:
    text = str(about.get("Process Group Ranks", ""))[: 1 << 16]
    try:
        ranks = json.loads(text)
        return f"{ranks[0]}…{ranks[-1]} ({len(ranks)})"
    except (ValueError, TypeError, LookupError, RecursionError):
        return f"({whole(about.get('Group size'), 0)})"


def _bytes(about: dict[str, Any]) -> float:
    sides = [number(about.get(f"{side} msg nelems"), 0.0) for side in ("In", "Out")]
    return max(sides) * item_bytes(str(about["dtype"])) if "dtype" in about else np.nan


def about(trace: Trace) -> dict[str, Any]:
    """What a trace holds: counts, and seconds that NCCL's kernels took."""
    return {
        "format": "kineto",
        "rank": trace.rank if trace.rank != UNKNOWN else None,
        "world_size": trace.world if trace.world != UNKNOWN else None,
        "events": trace.events,
        "kernels": int(trace.is_kernel.sum()),
        "nccl_kernels": int(trace.is_communication.sum()),
        "nccl_seconds": round(float(trace.seconds[trace.is_communication].sum()), 9),
        "steps": len(trace.steps),
    }
