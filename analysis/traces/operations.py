"""One table of communication operations, in arrays, that every reader of a log fills."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.traces.bounded import TraceError
from detector.stats.arrays import Floats, Ints

MOST_OPERATIONS = 4_000_000
"""Of one command; about 100 bytes of memory each."""
_NAME = 240
UNKNOWN = -1
UNNAMED = "stream "
"""How the name of a communicator begins that the log does not name, and of which each rank has one of its own."""
_KINDS = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "alltoall": "AllToAll",
    "sendrecv": "SendRecv",
    "broadcast": "Broadcast",
    "gather": "Gather",
    "scatter": "Scatter",
    "reduce": "Reduce",
    "barrier": "Barrier",
    "send": "Send",
    "recv": "Recv",
}
"""Letters of a name -> what NCCL calls the operation; the first that occurs counts."""
_ITEM_BYTES = {"double": 8, "long": 8, "int64": 8, "half": 2, "short": 2, "bfloat": 2, "float16": 2, "float8": 1}
_ITEM_BYTES |= {"char": 1, "byte": 1, "bool": 1, "int8": 1, "float": 4, "int": 4}


@dataclass(frozen=True, slots=True)
class Operations:
    """Communication operations of several ranks; arrays are [operation], times in seconds of the rank's own clock."""

    rank: Ints
    """Place in `ranks`."""
    communicator: Ints
    """Place in `communicators`."""
    index: Ints
    """Number of the operation in its communicator (of a pair's sends in one direction, for Send and Recv)."""
    kind: Ints
    """Place in `kinds`."""
    bytes: Floats
    peer: Ints
    """Place in `ranks` of the rank that it sends to or receives from; UNKNOWN for collectives."""
    entry: Floats
    """When the host asked for it; NaN: not known, as in the three that follow."""
    start: Floats
    end: Floats
    seconds: Floats
    """How long the rank was in it, waiting for others included."""
    step: Ints
    """The iteration, where the log says so; else UNKNOWN."""
    ranks: tuple[str, ...]
    machines: tuple[str, ...]
    """[rank]: the machine; empty where the log does not say."""
    communicators: tuple[str, ...]
    kinds: tuple[str, ...]
    step_seconds: Floats = field(default_factory=lambda: np.empty(0))
    """[step], where the log measures iterations itself."""


class Collector:
    """Takes operations one at a time; the table is made at the end."""

    def __init__(self) -> None:
        self._ints = {name: array("q") for name in ("rank", "communicator", "index", "kind", "peer", "step")}
        self._floats = {name: array("d") for name in ("bytes", "entry", "start", "end", "seconds")}
        self.ranks: dict[str, int] = {}
        self.communicators: dict[str, int] = {}
        self.kinds: dict[str, int] = {}
        self.machines: dict[int, str] = {}

    def rank(self, name: str, machine: str = "") -> int:
        """The place of a rank."""
        place = self.ranks.setdefault(name[:_NAME], len(self.ranks))
        if machine:
            self.machines[place] = machine[:_NAME]
        return place

    def add(self, rank: int, communicator: str, kind: str, **values: float) -> None:
        """Add one operation of a rank; what is not given is not known. Raises TraceError where there are too many."""
        if len(self) >= MOST_OPERATIONS:
            raise TraceError(f"more than {MOST_OPERATIONS:,} operations: name fewer files, or logs of less time")
        self._ints["rank"].append(rank)
        self._ints["communicator"].append(self.communicators.setdefault(communicator[:_NAME], len(self.communicators)))
        self._ints["kind"].append(self.kinds.setdefault(kind[:_NAME], len(self.kinds)))
        for name in ("index", "peer", "step"):
            self._ints[name].append(int(values.get(name, UNKNOWN)))
        for name, column in self._floats.items():
            column.append(values.get(name, np.nan))

    def __len__(self) -> int:
        return len(self._ints["rank"])

    def table(self, names: Mapping[str, str] | None = None, step_seconds: Sequence[float] = ()) -> Operations:
        """The table, with ranks in order of their numbers; `names` renames ranks, and those it lacks are unknown."""
        named = {place: name if names is None else names.get(name) for name, place in self.ranks.items()}
        ordered = sorted({name for name in named.values() if name is not None}, key=natural)
        number_of = {name: number for number, name in enumerate(ordered)}
        place = np.full(len(named) + 1, UNKNOWN)  # the last one is that of UNKNOWN
        place[: len(named)] = [UNKNOWN if name is None else number_of[name] for name in named.values()]
        columns: dict[str, Any] = {name: np.array(column, np.int64) for name, column in self._ints.items()}
        columns |= {name: np.array(column, np.float64) for name, column in self._floats.items()}
        columns |= {name: place[columns[name]] for name in ("rank", "peer")}
        machines = {named[at]: machine for at, machine in self.machines.items()}
        return Operations(
            **columns,
            ranks=tuple(ordered),
            machines=tuple(machines.get(name, "") for name in ordered),
            communicators=tuple(self.communicators),
            kinds=tuple(self.kinds),
            step_seconds=np.array(step_seconds, float),
        )


def natural(name: str) -> tuple[tuple[int, Any], ...]:
    """A key that sorts `rank 9` before `rank 10`."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"([0-9]{1,18})", name) if part)


def kind_of(name: str) -> str:
    """What NCCL calls an operation that a log names in its own way: `nccl:_all_gather_base` is AllGather."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for word, kind in _KINDS.items() if word in letters), name)


def item_bytes(dtype: str) -> float:
    """Bytes of one element of a type as PyTorch names it; NaN where that is not known."""
    word = dtype.lower()
    return next((float(size) for name, size in _ITEM_BYTES.items() if name in word), np.nan)


def number(value: Any, otherwise: float = np.nan) -> float:
    """A finite number from a log, or `otherwise`: logs are not ours, and hold what they like."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return otherwise
    return float(value) if abs(value) < 9e18 else otherwise


def whole(value: Any, otherwise: int = UNKNOWN) -> int:
    """A whole number that is not negative, from a log; or `otherwise`."""
    return int(value) if isinstance(value, int) and 0 <= value < 1 << 62 else otherwise
