"""The two devices that most likely made iterations irregular, from the roots of all irregular iterations.

After Holmes (NSDI'25): what an operation lost counts by how far its duration follows the iteration time. A late rank
points at its GPU or host, ranks of one machine that come late at the machine, slow communication at a part of the
network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.operators.iterations import Log
from analysis.operators.judging import Judged, calm
from analysis.operators.network import DECAY, Level, network
from analysis.operators.search import search
from analysis.traces.operations import Operations
from detector.stats.arrays import Floats, Ints

TOP = 2
_LEAST = 0.1  # of the loss
_MACHINE = 0.5  # of a machine's ranks come late: the machine, not its GPUs
Kind = Literal["gpu", "machine"] | Level


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may have made iterations longer."""

    kind: Kind
    """gpu and machine: its ranks come late; link, machine link and switch: communication across it is slow."""
    device: str
    machine: str
    share: float
    """Of the time lost, weighted, the mean over long iterations: how much it explains."""
    seconds: float
    """Lost in a long iteration by all ranks together."""
    iterations: int
    """Long iterations of which it explains a tenth or more."""
    operations: tuple[str, ...]
    """Where the others waited for it, or were slow with it; the most expensive first."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """What the long iterations lost."""

    late: Floats
    """[iteration, rank]: its share of what the iteration lost: one long pause counts no more than one iteration."""
    slow: Floats
    """[iteration, operation across ranks]: the same."""
    waits: Floats
    """[operation across ranks]: weighted seconds by waiting or slowness, wherever the root."""
    root: Ints
    """[operation across ranks]: the late rank that it mostly led to; -1: none."""


def rank_candidates(
    table: Operations, log: Log, judged: list[Judged], topology: dict[str, tuple[str, ...]] | None = None
) -> list[Candidate]:
    """At most TOP candidates, the likeliest first; `topology` names the switches above each machine."""
    loss = _losses(len(table.ranks), log, judged)
    total = float(loss.late.sum() + loss.slow.sum())
    if not total:
        return []
    found = [*_late(table, log, loss, total), *_slow(table, log, loss, total, judged, topology or {})]
    return [one for one in sorted(found, key=lambda one: -one.share) if one.share >= _LEAST][:TOP]


def _losses(ranks: int, log: Log, judged: list[Judged]) -> _Loss:
    cells = int(log.cell.max()) + 1
    late, slow = np.zeros((len(judged), ranks)), np.zeros((len(judged), cells))
    waits, best, root = np.zeros(cells), np.zeros(cells), np.full(cells, -1)
    weight = np.bincount(log.cell, _correlation(log), cells) / np.bincount(log.cell, minlength=cells)
    for place, one in enumerate(judged):
        roots = search(log, one)
        cost = roots.cost * weight
        for end, lost in ((roots.late, late[place]), (roots.slow, slow[place])):
            np.add.at(lost, end[end >= 0], cost[end >= 0])
        waits += cost
        larger = cost > best
        best[larger], root[larger] = cost[larger], roots.late[larger]
    lost = late.sum(1) + slow.sum(1)
    each = np.where(lost > 0, lost, 1.0)[:, None]
    return _Loss(late / each, slow / each, waits, root)


def _correlation(log: Log) -> Floats:
    """[column]: how far its duration follows the iteration time over the log, 0 to 1."""
    elapsed = np.where(np.isnan(log.elapsed), np.nanmean(log.elapsed, 0), log.elapsed)
    moved, length = elapsed - elapsed.mean(0), log.iteration_seconds - log.iteration_seconds.mean()
    scale = np.sqrt((moved**2).sum(0) * (length**2).sum())
    followed: Floats = np.maximum((moved * length[:, None]).sum(0) / np.where(scale > 0, scale, np.inf), 0.0)
    return followed


def _late(table: Operations, log: Log, loss: _Loss, total: float) -> Iterator[Candidate]:
    """Ranks that come late; a machine where half of its ranks and more do."""
    lost, names = loss.late.sum(0), np.array(table.machines)
    for rank in np.argsort(-lost, kind="stable")[:TOP].tolist():
        share, machine = float(lost[rank]) / total, table.machines[rank]
        times = int((loss.late[:, rank] >= _LEAST).sum())
        cells = np.flatnonzero(loss.root == rank)
        yield Candidate("gpu", table.ranks[rank], machine, share, *_evidence(table, log, loss, cells, times))
    for machine in sorted(set(table.machines) - {""}):
        mine = np.flatnonzero(names == machine)
        late = mine[lost[mine] > _LEAST / len(mine) * total]
        if len(late) >= 2 and len(late) >= _MACHINE * len(mine):
            share, times = DECAY * float(lost[mine].sum()) / total, int((loss.late[:, mine].sum(1) >= _LEAST).sum())
            cells = np.flatnonzero(np.isin(loss.root, mine))
            yield Candidate("machine", machine, machine, share, *_evidence(table, log, loss, cells, times))


def _slow(
    table: Operations, log: Log, loss: _Loss, total: float, judged: list[Judged], topology: dict[str, tuple[str, ...]]
) -> Iterator[Candidate]:
    """Parts of the network, by how likely each is and how much slow communication lost."""
    # Irregular iterations of another cause, such as a long pause of one rank, would blur the growth of transfers.
    mostly = loss.slow.sum(1) >= loss.late.sum(1)
    wrong = [one.iteration for one, is_slow in zip(judged, mostly, strict=True) if is_slow or not mostly.any()]
    lost = loss.slow.sum(0)
    devices = network(table, log, wrong, calm(log.iteration_seconds), lost, topology, TOP)
    for device in devices:
        share = float(lost[device.cells].sum()) / total * device.likelihood / devices[0].likelihood
        times = int((loss.slow[:, device.cells].sum(1) >= _LEAST).sum())
        evidence = _evidence(table, log, loss, device.cells, times)
        yield Candidate(device.kind, device.name, device.machine, share, *evidence)


def _evidence(table: Operations, log: Log, loss: _Loss, cells: Ints, times: int) -> tuple[float, int, tuple[str, ...]]:
    """Seconds lost in an iteration, iterations, and the operations that lost most, in words."""
    first = np.unique(log.cell, return_index=True)[1]
    costly = first[cells[np.argsort(-loss.waits[cells], kind="stable")][:64]]
    words = [f"{table.kinds[log.kind[at]]} of {table.communicators[log.communicator[at]]}" for at in costly.tolist()]
    return float(loss.waits[cells].sum()) / len(loss.late), times, tuple(dict.fromkeys(words))[:3]
