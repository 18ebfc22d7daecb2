"""A pretend log of communication operators: how long each rank of a big task was in each operator of each iteration.

Ranks form a grid with up to six kinds of parallelism. Within an iteration a rank computes, and communicates along one
axis of the grid after the other; an operator begins when the last of its group has come. One GPU may compute late, or
one port be slow; everybody else's times follow from that. The same noise without the fault tells which are its doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MICRO_BATCHES = 4
COMPUTE_S, COMPUTE_NOISE, BASE_NOISE = 0.1, 0.01, 0.05
HICCUPS, HICCUP_S = 2e-4, 0.02
"""Share of computations of healthy ranks that come late, and by how much (mean of an exponential)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One kind of parallelism."""

    name: str
    pattern: str
    seconds: float
    size: float
    """Bytes a rank sends in one operator."""
    network: bool
    once: bool
    """Whether it communicates once an iteration, not in every micro-batch."""


AXES = (
    Axis("tensor", "AllReduce", 0.012, 6e7, False, False),
    Axis("context", "AllGather", 0.010, 4e7, True, False),
    Axis("expert", "AllToAll", 0.025, 8e7, True, False),
    Axis("pipeline", "SendRecv", 0.006, 3e7, True, False),
    Axis("shard", "ReduceScatter", 0.06, 5e8, True, True),
    Axis("data", "AllReduce", 0.09, 8e8, True, True),
)


@dataclass(frozen=True, slots=True)
class OperatorsLog:
    """What was logged, and what is true; operators stand in the order in which every rank calls them."""

    elapsed: NDArray[np.float32]
    """[iteration, operator, rank], seconds from a rank's call until the operator is through."""
    group: NDArray[np.int64]
    """[operator, rank]: the communicator."""
    pattern: tuple[str, ...]
    size: Floats
    """[operator], bytes."""
    iteration_seconds: Floats
    longer: float
    """How many times as long the fault makes iterations, on average."""
    faulty: NDArray[np.bool_]
    """[iteration]: whether the fault was there."""
    abnormal: NDArray[np.bool_]
    """[iteration, operator, rank]: whether the fault made it longer."""
    culprit: int | None
    kind: str


def order_of(shape: Sequence[int]) -> list[int]:
    """The axes along which every rank communicates in an iteration, in order; those of one rank are left out."""
    every = [at for at, axis in enumerate(AXES) if shape[at] > 1 and not axis.once]
    return every * MICRO_BATCHES + [at for at, axis in enumerate(AXES) if shape[at] > 1 and axis.once]


def operators_log(
    shape: Sequence[int], iterations: int, seed: int, kind: str = "gpu", slower: float = 1.2, drift: float = 1.0
) -> OperatorsLog:
    """A task of `shape` (sizes of tensor, context, expert, pipeline, shard and data groups).

    `kind`: gpu, nic or none; the fault lengthens an iteration to about `slower` times, in some of the later iterations.
    `drift` is what all communication has come to take, as a factor.
    """
    shape = (*shape, *(1 for _ in AXES[len(shape) :]))
    chance = np.random.default_rng(seed)
    culprit = int(chance.integers(np.prod(shape)))
    faulty = np.arange(iterations) >= iterations // 2
    if chance.random() < 0.5:  # spikes instead of lasting degradation
        faulty &= chance.random(iterations) < 0.4
        faulty[-2] = True
    faulty &= kind != "none"
    runs = [_run(shape, iterations, seed, (kind, culprit, slower), wrong, drift) for wrong in (faulty, faulty & False)]
    (elapsed, total), (healthy, without) = runs
    order = order_of(shape)
    # What lengthens an operator by less than a tenth of what the fault costs is not worth a name.
    abnormal = elapsed - healthy > 0.1 * (slower - 1) * healthy.sum(1).mean()
    return OperatorsLog(
        elapsed.astype(np.float32),
        np.stack([_groups(shape, axis) for axis in order]),
        tuple(AXES[axis].pattern for axis in order),
        np.array([AXES[axis].size for axis in order]),
        total,
        float((total / without)[faulty].mean()) if faulty.any() else 1.0,
        faulty,
        abnormal,
        culprit if kind != "none" else None,
        kind,
    )


def _groups(shape: Sequence[int], axis: int) -> NDArray[np.int64]:
    """[rank]: its group along one axis, numbered apart from those of all other axes."""
    ranks = np.arange(np.prod(shape)).reshape(shape)
    first = np.broadcast_to(ranks.min(axis, keepdims=True), shape)
    return first.reshape(-1) + axis * ranks.size


def _run(
    shape: Sequence[int],
    iterations: int,
    seed: int,
    fault: tuple[str, int, float],
    faulty: NDArray[np.bool_],
    drift: float,
) -> tuple[Floats, Floats]:
    """[iteration, operator, rank] seconds, and seconds of each iteration; equal seeds give equal noise."""
    chance = np.random.default_rng(seed + 1)
    order, (kind, culprit, slower) = order_of(shape), fault
    ready = np.zeros((iterations, *shape))
    at: tuple[Any, ...] = (slice(None), *np.unravel_index(culprit, shape))
    # Half of an iteration is computing; the rest is the operators' own time.
    usual = MICRO_BATCHES * COMPUTE_S + sum(AXES[axis].seconds * drift for axis in order)
    delay = (slower - 1) * usual / MICRO_BATCHES
    wires = sum(AXES[axis].seconds * drift for axis in order if AXES[axis].network)
    stretch = (slower - 1) * usual / max(wires, 1e-9)
    elapsed = np.empty((iterations, len(order), int(np.prod(shape))))
    per_batch = len([axis for axis in set(order) if not AXES[axis].once])
    for place, axis in enumerate(order):
        if place < per_batch * MICRO_BATCHES and place % max(per_batch, 1) == 0:
            ready += COMPUTE_S * chance.lognormal(0, COMPUTE_NOISE, ready.shape)
            ready += np.where(chance.random(ready.shape) < HICCUPS, chance.exponential(HICCUP_S, ready.shape), 0.0)
            ready[at] += delay * faulty * (kind == "gpu")
        took = AXES[axis].seconds * drift * chance.lognormal(0, BASE_NOISE, ready.max(axis + 1, keepdims=True).shape)
        took = np.broadcast_to(took, ready.shape).copy()
        if kind == "nic" and AXES[axis].network:
            took[at] *= 1 + stretch * faulty
        done = _through(ready, took, axis)
        elapsed[:, place] = (done - ready).reshape(iterations, -1)
        ready = done
    return elapsed, ready.reshape(iterations, -1).max(1)


def _through(ready: Floats, took: Floats, axis: int) -> Floats:
    """When an operator is through for each rank; a pipeline stage waits for those before it only."""
    if AXES[axis].name == "pipeline":
        return np.maximum.accumulate(ready, axis + 1) + np.maximum.accumulate(took, axis + 1)
    return np.broadcast_to(ready.max(axis + 1, keepdims=True) + took.max(axis + 1, keepdims=True), ready.shape).copy()
