"""From recorded operations to a graph that can be replayed: complete steps only, and how long each operation takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.whatif import graph, pipeline
from analysis.whatif.dependencies import Edges, add_within_workers, collective_groups
from analysis.whatif.operations import BACKWARD, FORWARD, SYNCHRONIZED, TRANSFERS, Operations, first_of
from detector.stats.arrays import Bools, Floats, Ints

_CLOCK_S = 0.01
"""A transfer that ends by more than this before its last member has begun shows clocks apart; it counts as nothing."""


@dataclass(frozen=True, slots=True)
class Model:
    """The operations of the complete steps, what they wait for, and their lengths without waiting."""

    found: Operations
    graph: graph.Graph
    lengths: Floats
    """[operation] seconds: its own, or of a transfer from the last start in its group."""
    ideal: Floats
    """[operation] seconds: the mean of its type, of transfers the median."""
    notes: list[str] = field(default_factory=list)


def build_model(found: Operations) -> Model:
    """Build the dependency graph; steps that are not recorded whole are left out where there are others.

    Raises ValueError if no step can be replayed.
    """
    notes: list[str] = []
    recorded = len(found.steps)
    while True:
        built, groups, whole, sound = _graph(found)
        complete = whole & sound & _has_all_workers(found) & _has_both_passes(found)
        if not sound.any():
            raise ValueError("operations wait for each other in a circle in every step: sends or receives are missing")
        left = complete if complete.any() else sound
        if built is not None and left.all():
            break
        # What the majority of steps shows may change with the steps that are left out.
        found = found.select(left[found.step])
    if len(found.steps) < recorded:
        notes.append(f"{recorded - len(found.steps)} of {recorded} steps are left out: they are not recorded whole")
    if not complete.any():
        notes.append("no step is recorded whole: operations, workers or partners of transfers are missing in each")
    lengths = _lengths(found, groups)
    return Model(found, built, lengths, _ideal(found, lengths), notes)


def _graph(found: Operations) -> tuple[graph.Graph | None, Ints, Bools, Bools]:
    """The graph, [operation] the group, [step] whether sends and receives match, and whether there is no circle."""
    edges, groups = Edges(), collective_groups(found)
    add_within_workers(edges, found)
    whole = pipeline.add_between_stages(edges, groups, found)
    built, stuck = graph.build(found.step, groups, *edges.arrays())
    return built, groups, whole, np.bincount(found.step, stuck, minlength=len(found.steps)) == 0


def _has_all_workers(found: Operations) -> Bools:
    """[step]: whether every worker is there."""
    workers = int(found.worker.max()) + 1
    there = np.unique(found.line) // workers
    whole: Bools = np.bincount(there, minlength=len(found.steps)) == workers
    return whole


def _has_both_passes(found: Operations) -> Bools:
    """[step]: whether every worker has as many backward as forward passes; true where a trace has one kind only."""
    passes = [found.of(kind) for kind in (FORWARD, BACKWARD)]
    if not all(kind.any() for kind in passes):
        return np.ones(len(found.steps), bool)
    line = found.line
    size = int(line.max()) + 1
    forward, backward = (np.bincount(line[kind], minlength=size) for kind in passes)
    uneven = np.flatnonzero(forward != backward) // (int(found.worker.max()) + 1)
    even: Bools = np.bincount(uneven, minlength=len(found.steps)) == 0
    return even


def _lengths(found: Operations, groups: Ints) -> Floats:
    """[operation]: duration, or of synchronized types the time from the last start in the group to its own end."""
    latest = np.full(len(found), -np.inf)
    np.maximum.at(latest, groups, found.start)
    transfer = found.start + found.duration - latest[groups]
    transfer = np.where(transfer <= -_CLOCK_S, 0.0, transfer)
    return np.where(found.of(*SYNCHRONIZED), transfer, found.duration)


def _ideal(found: Operations, lengths: Floats) -> Floats:
    """[operation]: one number for each type over all ranks, stages and steps."""
    ideal = np.zeros(len(found))
    order = np.argsort(found.kind, kind="stable")
    for places in np.split(order, first_of(found.kind[order])[1:]):
        is_transfer = found.kinds[found.kind[places[0]]] in TRANSFERS
        ideal[places] = np.median(lengths[places]) if is_transfer else lengths[places].mean()
    return ideal
