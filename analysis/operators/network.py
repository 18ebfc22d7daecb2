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
    table: Operations, log: Log, irregular: list[int], calm: Bools, lost: Floats, topology: dict[str, tuple[str, ...]]
) -> list[Device]:
    """Every part of the network that guilty operations cross; `lost` [cell]: seconds that led to it."""
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
    for kind, name, level, below, inner in _devices(table, topology):
        crossing = measured & _crossing(log, below, inner)
        cells = np.flatnonzero(crossing & guilty)
        if len(cells):
            likelihood = DECAY**level * len(cells) / guilty.sum() * len(cells) / crossing.sum()
            machine = table.machines[int(below.argmax())] if level < 2 else ""
            found.append(Device(kind, name, machine, float(likelihood), cells))
    return sorted(found, key=lambda device: -device.likelihood)


def _growth(log: Log, irregular: list[int], calm: Bools) -> Floats:
    """[operation across ranks]: its transfer in irregular iterations over the usual one; NaN: too short to tell."""
    order = np.argsort(log.cell, kind="stable")
    first = np.flatnonzero(np.diff(log.cell[order], prepend=-1))
    transfer = np.fmin.reduceat(log.elapsed[:, order], first, axis=1)
    usual = np.median(transfer[calm], axis=0)
    return np.where(usual > _SHORTEST_S, np.median(transfer[irregular], axis=0) / np.maximum(usual, 1e-9), np.nan)


def _crossing(log: Log, below: Bools, inner: Ints) -> Bools:
    """[cell]: whether a rank below takes part, and it joins several of the next smaller parts (`inner`, [rank])."""
    cells = int(log.cell.max()) + 1
    part = inner[log.rank]
    low, high = np.full(cells, inner.max() + 1), np.full(cells, -1)
    np.minimum.at(low, log.cell, part)
    np.maximum.at(high, log.cell, part)
    return (low < high) & (np.bincount(log.cell, below[log.rank], cells) > 0)


def _devices(table: Operations, topology: dict[str, tuple[str, ...]]) -> Iterator[tuple[Level, str, int, Bools, Ints]]:
    """(kind, name, level of the network, [rank] whether it is below, [rank] its next smaller part)."""
    ranks, machines = np.arange(len(table.ranks)), np.array(table.machines)
    places = np.unique(machines, return_inverse=True)[1].astype(np.int64)
    # Without machines each rank counts as one; within a machine no network is crossed.
    parts = ranks if "" in table.machines else places
    for rank, name in enumerate(table.ranks):
        yield "link", name, 0, ranks == rank, parts
    for machine in sorted(set(table.machines) - {""}):
        if (machines == machine).sum() > 1:
            yield "machine link", machine, 1, machines == machine, parts
    named = zip(table.machines, table.ranks, strict=True)
    chains = [topology.get(machine) or topology.get(rank.removeprefix("rank "), ()) for machine, rank in named]
    for level in range(max(map(len, chains), default=0)):
        names = np.array([chain[level] if level < len(chain) else "" for chain in chains])
        for switch in sorted(set(names.tolist()) - {""}):
            yield "switch", switch, 2 + level, names == switch, parts
        parts = np.unique(names, return_inverse=True)[1].astype(np.int64)
