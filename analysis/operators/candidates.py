"""The two devices that most likely made iterations irregular, from the roots of all irregular iterations.

After Holmes (NSDI'25): what an operation lost counts by how far its duration follows the iteration time. A late rank
points at its GPU or host. Slow communication points at what its ranks share: the link of a rank, a machine's, a switch.
Each of these explains a part of the loss, and is doubted by the communication across it that is as usual; a level of
the network further up counts less, since fewer faults are there (a prior, in the sense of a MAP estimate).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.operators.iterations import Log
from analysis.operators.judging import Judged
from analysis.operators.search import Roots, search
from analysis.traces.operations import Operations
from detector.stats.arrays import Bools, Floats, Ints

TOP = 2
DECAY = 0.85
"""Prior of each level of the network, relative to the one below."""
_LEAST = 0.1  # of the loss
_MACHINE = 0.5  # of a machine's ranks come late: the machine, not its GPUs
Kind = Literal["gpu", "machine", "link", "machine link", "switch"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may have made iterations longer."""

    kind: Kind
    """gpu and machine: its ranks come late; link, machine link and switch: communication across it is slow."""
    device: str
    machine: str
    share: float
    """Of the time lost, weighted: how much it explains."""
    seconds: float
    """Lost in an irregular iteration by all ranks together."""
    iterations: int
    """Irregular iterations in which it was a root."""
    operations: tuple[str, ...]
    """Where the others waited for it, or were slow with it; the most expensive first."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """What all irregular iterations lost; arrays of [rank] and [cell]."""

    late: Floats
    slow: Floats
    judged: int
    when_late: Ints
    """[rank]: iterations in which it was the root."""
    when_slow: Ints
    waits: Floats
    """[cell]: lost by waiting or slowness, wherever the root."""
    root: Ints
    """[cell]: the late rank that it mostly led to; -1: none."""


def rank_candidates(
    table: Operations, log: Log, judged: list[Judged], topology: dict[str, tuple[str, ...]] | None = None
) -> list[Candidate]:
    """At most TOP candidates, the likeliest first; `topology` names the switches above each machine."""
    loss = _losses(len(table.ranks), log, judged)
    total = loss.late.sum() + loss.slow.sum()
    if not total:
        return []
    found = [*_late(table, log, loss, total), *_slow(table, log, loss, total, topology or {})]
    ordered = sorted(found, key=lambda one: -one.share)
    return [one for one in ordered if one.share >= _LEAST][:TOP]


def _losses(ranks: int, log: Log, judged: list[Judged]) -> _Loss:
    cells = int(log.cell.max()) + 1
    loss = _Loss(
        np.zeros(ranks), np.zeros(cells), len(judged), np.zeros(ranks, np.int64), np.zeros(cells, np.int64),
        np.zeros(cells), np.full(cells, -1),
    )  # fmt: skip
    weight = _correlation(log)
    share = np.bincount(log.cell, weight, cells) / np.maximum(np.bincount(log.cell, minlength=cells), 1)
    best = np.zeros(cells)
    for one in judged:
        roots: Roots = search(log, one)
        cost = roots.cost * share
        for root, lost, when in ((roots.late, loss.late, loss.when_late), (roots.slow, loss.slow, loss.when_slow)):
            there = np.flatnonzero((root >= 0) & (cost > 0))
            np.add.at(lost, root[there], cost[there])
            when[np.unique(root[there])] += 1
        loss.waits[:] += cost
        larger = cost > best
        best[larger], loss.root[larger] = cost[larger], roots.late[larger]
    return loss


def _correlation(log: Log) -> Floats:
    """[column]: how far its duration follows the iteration time over the log, 0 to 1."""
    elapsed = np.where(np.isnan(log.elapsed), np.nanmean(log.elapsed, 0), log.elapsed)
    moved, length = elapsed - elapsed.mean(0), log.iteration_seconds - log.iteration_seconds.mean()
    scale = np.sqrt((moved**2).sum(0) * (length**2).sum())
    return np.maximum((moved * length[:, None]).sum(0) / np.where(scale > 0, scale, np.inf), 0.0)


def _late(table: Operations, log: Log, loss: _Loss, total: float) -> Iterator[Candidate]:
    """Ranks that come late; a machine where half of its ranks and more do."""
    machines = np.unique(np.array(table.machines), return_inverse=True)[1]
    of = np.bincount(machines)[machines]
    late_there = np.bincount(machines, loss.late > _LEAST * total)[machines]
    for rank in np.flatnonzero(loss.late).tolist():
        cells = np.flatnonzero(loss.root == rank)
        share, machine = loss.late[rank] / total, table.machines[rank]
        yield _candidate("gpu", table.ranks[rank], machine, share, loss, cells, int(loss.when_late[rank]), table, log)
    for place in np.flatnonzero((late_there >= 2) & (late_there >= _MACHINE * of)):
        if table.machines[place] and (machines[:place] != machines[place]).all():
            mine = np.flatnonzero(machines == machines[place])
            cells = np.flatnonzero(np.isin(loss.root, mine))
            share = DECAY * loss.late[mine].sum() / total
            when = int(loss.when_late[mine].max())
            name = table.machines[place]
            yield _candidate("machine", name, name, share, loss, cells, when, table, log)


def _slow(
    table: Operations, log: Log, loss: _Loss, total: float, topology: dict[str, tuple[str, ...]]
) -> Iterator[Candidate]:
    """Links of ranks and machines, and switches, by how much of the slow communication crosses them."""
    slow = loss.slow > 0
    if not slow.any():
        return
    crosses = _between_machines(table, log)
    lost, everything = loss.slow[log.cell], loss.slow.sum()
    counted = np.bincount(log.rank, crosses, len(table.ranks))
    guilty = np.bincount(log.rank, slow[log.cell] & crosses, len(table.ranks)) / np.maximum(counted, 1)
    for kind, device, level, below in _devices(table, topology):
        inside = below[log.rank]
        cells = np.unique(log.cell[inside & (lost > 0)])
        if not len(cells):
            continue
        explained = loss.slow[cells].sum() / everything
        share = DECAY**level * explained * float(guilty[below].mean()) * everything / total
        machine = table.machines[int(np.flatnonzero(below)[0])] if level < 2 else ""
        yield _candidate(kind, device, machine, share, loss, cells, int(loss.when_slow[cells].max()), table, log)


def _devices(table: Operations, topology: dict[str, tuple[str, ...]]) -> Iterator[tuple[Kind, str, int, Bools]]:
    """(kind, name, level of the network, [rank] whether it is below)."""
    for rank, name in enumerate(table.ranks):
        yield "link", name, 0, np.arange(len(table.ranks)) == rank
    machines = np.array(table.machines)
    chains = [topology.get(machine) or topology.get(name.removeprefix("rank "), ()) for machine, name in
              zip(table.machines, table.ranks, strict=True)]  # fmt: skip
    for machine in sorted(set(table.machines) - {""}):
        if (machines == machine).sum() > 1:
            yield "machine link", machine, 1, machines == machine
    for switch in sorted({switch for chain in chains for switch in chain}):
        level = 2 + min(chain.index(switch) for chain in chains if switch in chain)
        yield "switch", switch, level, np.array([switch in chain for chain in chains])


def _between_machines(table: Operations, log: Log) -> Bools:
    """[column]: whether the operation joins several machines; all of them where machines are not known."""
    if "" in table.machines:
        return np.ones(len(log.cell), bool)
    machine = np.unique(np.array(table.machines), return_inverse=True)[1][log.rank]
    cells = int(log.cell.max()) + 1
    low, high = np.full(cells, len(table.ranks)), np.full(cells, -1)
    np.minimum.at(low, log.cell, machine)
    np.maximum.at(high, log.cell, machine)
    return np.asarray((low < high)[log.cell])


def _candidate(
    kind: Kind, device: str, machine: str, share: float, loss: _Loss, cells: Ints, when: int, table: Operations, log: Log
) -> Candidate:
    """With the operations that lost most to it, in words."""
    first = np.unique(log.cell, return_index=True)[1]
    costly = cells[np.argsort(-loss.waits[cells], kind="stable")]
    words = [
        f"{table.kinds[log.kind[at]]} of {table.communicators[log.communicator[at]]}" for at in first[costly][:64].tolist()
    ]
    seconds = float(loss.waits[cells].sum()) / max(loss.judged, 1)
    return Candidate(kind, device, machine, float(share), seconds, when, tuple(dict.fromkeys(words))[:3])
