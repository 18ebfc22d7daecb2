"""Which part of the network is slow: the link of a rank, a machine's, or a switch.

From its last entry on, an operation takes as long as its slowest transfer. Operations for which that has grown are
guilty. A device is likely the more guilty operations cross it (it explains them) and the fewer others do (they doubt
it); a level of the network further up counts less, since fewer faults are there: a prior, as in Holmes' estimate of the
maximum a posteriori.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.operators.iterations import Log
from analysis.traces.operations import Operations
from detector.stats.arrays import Bools, Floats, Ints

DECAY = 0.85
"""Prior of each level of the network, relative to the one below."""
_SHORTEST_S = 1e-4  # shorter operations take the latency of the network, not its bandwidth
_NOISE = 0.1
_GUILTY = 0.3  # of the growth of the operations that the search ended in
Level = Literal["link", "machine link", "switch"]


@dataclass(frozen=True, slots=True)
class Device:
    """A part of the network."""

    kind: Level
    name: str
    machine: str
    likelihood: float
    """0 to 1, times the prior of its level."""
    cells: Ints
    """Guilty operations that cross it."""


def network(
    table: Operations,
    log: Log,
    irregular: list[int],
    calm: Bools,
    lost: Floats,
    topology: dict[str, tuple[str, ...]],
    most: int,
) -> list[Device]:
    """The likeliest parts of the network, at most so many; `lost` [cell]: seconds that led to it."""
    growth = _growth(log, irregular, calm)
    measured = np.isfinite(growth) & (np.bincount(log.cell) > 1)
    weight = np.where(measured, lost, 0.0)
    if not weight.any():
        return []
    usual_growth = float(np.average(np.where(measured, growth, 1.0), weights=weight)) - 1
    guilty = measured & (growth > 1 + max(_GUILTY * usual_growth, _NOISE))
    if not guilty.any():
        return []
    found = []
    for level in _levels(table, topology):
        crossing = measured & _spanning(log, level.parts)
        pairs = np.unique(np.stack([level.of[log.rank], log.cell])[:, crossing[log.cell]], axis=1)
        device, cell = pairs[:, pairs[0] >= 0]
        all_of, guilty_of = (
            np.bincount(device[which], minlength=len(level.names)) for which in (cell >= 0, guilty[cell])
        )
        likelihood = DECAY**level.height * guilty_of**2 / np.maximum(all_of, 1) / guilty.sum()
        for at in np.argsort(-likelihood, kind="stable")[:most].tolist():
            if guilty_of[at]:
                cells, name = cell[(device == at) & guilty[cell]], level.names[at]
                found.append(Device(level.kind, name, level.machine_of(at, table), float(likelihood[at]), cells))
    return sorted(found, key=lambda device: -device.likelihood)[:most]


def _growth(log: Log, irregular: list[int], calm: Bools) -> Floats:
    """[operation across ranks]: its transfer in irregular iterations over the usual one; NaN: too short to tell."""
    order = np.argsort(log.cell, kind="stable")
    first = np.flatnonzero(np.diff(log.cell[order], prepend=-1))
    transfer = np.fmin.reduceat(log.elapsed[:, order], first, axis=1)
    usual = np.median(transfer[calm], axis=0)
    return np.where(usual > _SHORTEST_S, np.median(transfer[irregular], axis=0) / np.maximum(usual, 1e-9), np.nan)


def _spanning(log: Log, parts: Ints) -> Bools:
    """[cell]: whether it joins several parts ([rank])."""
    cells = int(log.cell.max()) + 1
    low, high = np.full(cells, parts.max() + 1), np.full(cells, -1)
    np.minimum.at(low, log.cell, parts[log.rank])
    np.maximum.at(high, log.cell, parts[log.rank])
    return np.asarray(low < high)


@dataclass(frozen=True, slots=True)
class _Devices:
    """Devices of one level of the network."""

    kind: Level
    height: int
    names: tuple[str, ...]
    of: Ints
    """[rank]: its device; -1: none."""
    parts: Ints
    """[rank]: the next smaller part. An operation crosses the device where it joins several of those."""

    def machine_of(self, place: int, table: Operations) -> str:
        """The machine of a rank's link or of a machine's; empty for a switch."""
        return table.machines[int(np.argmax(self.of == place))] if self.kind != "switch" else ""


def _levels(table: Operations, topology: dict[str, tuple[str, ...]]) -> Iterator[_Devices]:
    ranks = np.arange(len(table.ranks))
    machines, places = np.unique(np.array(table.machines), return_inverse=True)
    # Without machines each rank counts as one; within a machine no network is crossed.
    parts = ranks if "" in table.machines else places.astype(np.int64)
    yield _Devices("link", 0, table.ranks, ranks, parts)
    shared = (np.bincount(places) > 1) & (machines != "")
    yield _Devices("machine link", 1, tuple(machines.tolist()), np.where(shared[places], places, -1), parts)
    named = zip(table.machines, table.ranks, strict=True)
    chains = [topology.get(machine) or topology.get(rank.removeprefix("rank "), ()) for machine, rank in named]
    for height in range(max(map(len, chains), default=0)):
        names, of = np.unique([chain[height] if height < len(chain) else "" for chain in chains], return_inverse=True)
        yield _Devices("switch", 2 + height, tuple(names.tolist()), np.where((names != "")[of], of, -1), parts)
        parts = of.astype(np.int64)
