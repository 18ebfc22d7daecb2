"""Which operation waits for which within one worker, and which operations of several workers are one.

The model is that of the straggler study: a compute stream, a stream of data-parallel communication and one stream for
each kind of send and receive on every worker; parameters are gathered before a chunk's first forward pass, and after
the last backward pass gradients are synchronized, clipped and applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.whatif.operations import (
    BACKWARD,
    CLIP,
    COLLECT,
    DATA_PARALLEL,
    EMBEDDING,
    FORWARD,
    GATHER,
    LAYERNORM,
    OPTIMIZER,
    POINT_TO_POINT,
    SCATTER,
    SEPARATE,
    Operations,
    joined,
)
from detector.stats.arrays import Bools, Ints


@dataclass(slots=True)
class Edges:
    """Pairs of operations, the second of which waits for the first."""

    sources: list[Ints] = field(default_factory=list)
    targets: list[Ints] = field(default_factory=list)

    def add(self, source: Ints, target: Ints) -> None:
        """Add edges between operations at these places."""
        self.sources.append(source)
        self.targets.append(target)

    def chain(self, keys: Ints, places: Ints) -> None:
        """Add an edge from each place to the next one that has the same key; `keys` is [operation]."""
        same = keys[places[1:]] == keys[places[:-1]]
        self.add(places[:-1][same], places[1:][same])

    def arrays(self) -> tuple[Ints, Ints]:
        """Sources and targets, [edge]."""
        return np.concatenate([*self.sources, []]).astype(np.int64), np.concatenate([*self.targets, []]).astype(
            np.int64
        )


def add_within_workers(edges: Edges, found: Operations) -> None:
    """Add what a worker's operations wait for, sends and receives apart."""
    line = found.line
    edges.chain(line, np.flatnonzero(found.computes()))
    edges.chain(line, np.flatnonzero(found.of(GATHER, SCATTER)))
    for kind in POINT_TO_POINT:
        edges.chain(line, np.flatnonzero(found.of(kind)))
    overlapped = bool(found.of(SEPARATE).any())
    _add_parameters(edges, found)
    if overlapped:
        _add_gradients(edges, found)
    _add_tail(edges, found, overlapped)


def _add_parameters(edges: Edges, found: Operations) -> None:
    """A chunk's first forward pass waits for its last parameters."""
    key = joined(found.line, found.chunk)
    gathered = _last_of(key, np.flatnonzero(found.of(GATHER)))
    begun = _first_of(key, np.flatnonzero(found.of(FORWARD)))
    edges.add(*_matched(key, gathered, begun))


def _add_gradients(edges: Edges, found: Operations) -> None:
    """A chunk's first gradients are reduced after its last backward pass."""
    key = joined(found.line, found.chunk)
    done = _last_of(key, np.flatnonzero(found.of(BACKWARD)))
    reduced = _first_of(key, np.flatnonzero(found.of(SCATTER)))
    edges.add(*_matched(key, done, reduced))


def _add_tail(edges: Edges, found: Operations, overlapped: bool) -> None:
    """After the last compute operation one operation waits for the other until the optimizer has run."""
    synchronized = (SEPARATE,) if overlapped else (SCATTER,)
    kinds = (COLLECT, LAYERNORM, EMBEDDING, *synchronized, CLIP, OPTIMIZER)
    phase_of = {kind: at for at, kind in enumerate(kinds)}
    phase = np.array([phase_of.get(kind, -1) for kind in found.kinds])[found.kind]
    tail = np.flatnonzero(phase >= 0)
    line = found.line
    tail = tail[np.lexsort((tail, phase[tail], line[tail]))]
    edges.chain(line, tail)
    computed = _last_of(line, np.flatnonzero(found.computes()))
    edges.add(*_matched(line, computed, _first_of(line, tail)))
    if overlapped:
        reduced = _last_of(line, np.flatnonzero(found.of(SCATTER)))
        edges.add(*_matched(line, reduced, _first_of(line, tail[phase[tail] > 0])))


def _first_of(key: Ints, places: Ints) -> Ints:
    """The first place of each key, in the order of keys."""
    return places[np.unique(key[places], return_index=True)[1]]


def _last_of(key: Ints, places: Ints) -> Ints:
    return _first_of(key, places[::-1])


def _matched(key: Ints, one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """The places of both that have the same key; each has a key once, in order."""
    _, here, there = np.intersect1d(key[one], key[other], assume_unique=True, return_indices=True)
    return one[here], other[there]


def collective_groups(found: Operations) -> Ints:
    """[operation]: a number that the members of a collective share; operations of no collective have their own."""
    group = np.arange(len(found))
    # Ranks that share data rank and stage are lanes; a collective joins the data ranks of one lane.
    _, data = np.unique(found.dp_rank, return_inverse=True)
    first = np.full(len(found), len(found), np.int64)
    np.minimum.at(first, data, found.replica)
    lane = found.replica - first[data]
    keys = {
        DATA_PARALLEL: joined(found.kind, found.step, found.stage, lane, found.order),
        (EMBEDDING,): joined(found.step, found.replica, found.order),
        (CLIP,): joined(found.step, found.order),
    }
    for kinds, key in keys.items():
        join(group, found.of(*kinds), key)
    return group


def join(group: Ints, chosen: Bools, key: Ints) -> None:
    """Give the chosen operations of one key the number of the first of them, in place."""
    places = np.flatnonzero(chosen)
    _, first, back = np.unique(key[places], return_index=True, return_inverse=True)
    group[places] = places[first][back.reshape(-1)]
