"""A better placement of a job's machines: fewer groups over several leaves and pods, weighted by their traffic.

After Arnold ("Efficient Pre-Training of LLMs via Topology-Aware Communication Alignment", arXiv 2509.15940): assign
the job's nodes to switches so that the spread of its groups is least, as an integer program. Ours minimises the sum of
spreads, weighted by measured traffic, over leaves and pods; the paper minimises the largest spread of data and of
pipeline groups with weights from profiled jobs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.placement.communicators import Communicator
from analysis.placement.packing import packed, relabelled
from analysis.placement.program import Problem, cost, solve
from analysis.topology.places import Topology
from detector.stats.arrays import Ints
from detector.topology.parallelism import PIPELINE

_LEAST_GAIN = 1e-6
_LOST = {PIPELINE: 0.70}
_LOST_BY_COLLECTIVES = 0.17
"""Most of the bandwidth that operations lose across pods, as Arnold measured: point to point and collectives."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Which machine should do which machine's work."""

    task: str
    moves: tuple[tuple[str, str], ...]
    """Machine that works now, and the machine that should take its ranks; empty: no better placement was found."""
    before: dict[str, tuple[int, int]]
    """Kind -> groups over several leaves, and over several pods, now."""
    after: dict[str, tuple[int, int]]
    groups: dict[str, int]
    """Kind -> groups on more than one machine."""
    gain: float
    """Share of the traffic-weighted spread that goes away, from 0 to 1."""
    weighted: bool
    """Whether traffic was measured; else every group counts the same."""
    is_best: bool
    """Whether the solver proved that there is no better one; else its time was over."""


def advise(
    communicators: Sequence[Communicator], topology: Topology, spare: Sequence[str] = (), seconds: float = 10.0
) -> Advice | None:
    """The best placement found for one task within this time; None where fewer than two leaves or groups are known.

    `spare` are machines without work that may be used. Machines that the topology does not name stay where they are.
    """
    wide = [one for one in communicators if len(one.machines) > 1]
    nodes = sorted({machine for one in wide for machine in one.machines if topology.place(machine)})
    hosts = [*nodes, *(machine for machine in spare if machine not in nodes and topology.place(machine))]
    places = [topology.place(machine) for machine in hosts]
    # The world's spread is that of the job as a whole, whichever node is where.
    grouped = [one for one in wide if not set(nodes) <= set(one.machines) or len(hosts) > len(nodes)]
    leaves, leaf = np.unique([place.leaf for place in places if place], return_inverse=True)
    if len(leaves) < 2 or not grouped:
        return None
    pod = np.unique([place.pod for place in places if place], return_inverse=True)[1]
    pod_of_leaf = np.zeros(len(leaves), np.int64)
    pod_of_leaf[leaf] = pod
    rates = [one.bytes_per_second for one in grouped]
    weighted = not any(map(math.isnan, rates)) and sum(rates) > 0
    groups, weights = _merged(grouped, nodes, weighted)
    problem = Problem(groups, weights, leaf[: len(nodes)], np.bincount(leaf), pod_of_leaf)
    target, is_best = _best(problem, seconds)
    now, then = cost(problem, problem.now), cost(problem, target)
    if now - then <= _LEAST_GAIN:
        target, then = problem.now, now
    before, after = (_over(grouped, nodes, placed, pod_of_leaf) for placed in (problem.now, target))
    sizes = dict(Counter(one.kind for one in grouped))
    gain = (now - then) / now if now > 0 else 0.0
    return Advice(grouped[0].task, _moves(hosts, leaf, target), before, after, sizes, gain, weighted, is_best)


def _merged(grouped: list[Communicator], nodes: list[str], weighted: bool) -> tuple[list[Ints], list[float]]:
    """Groups on the same machines count as one; a weight is traffic times what it may lose, and weights sum to 1."""
    number = {machine: at for at, machine in enumerate(nodes)}
    weights: dict[tuple[int, ...], float] = {}
    for one in grouped:
        key = tuple(number[machine] for machine in one.machines if machine in number)
        weights[key] = weights.get(key, 0.0) + _LOST.get(one.kind, _LOST_BY_COLLECTIVES) * (
            one.bytes_per_second * len(one.members) if weighted else 1.0
        )
    total = sum(weights.values())
    return [np.array(key) for key in weights], [weight / total for weight in weights.values()]


def _best(problem: Problem, seconds: float) -> tuple[Ints, bool]:
    """The cheapest of today's placement and simple packings, or a cheaper one of the solver, with few moves."""
    known = min((problem.now, *packed(problem)), key=lambda placed: cost(problem, placed))
    found, is_best = solve(problem, known, seconds)
    return relabelled(problem, found), is_best


def _moves(hosts: list[str], leaf: Ints, target: Ints) -> tuple[tuple[str, str], ...]:
    """Nodes that stay on their leaf stay on their machine; the others take what is free on their new one."""
    moving = np.flatnonzero(leaf[: len(target)] != target)
    taken = set(range(len(target))) - set(moving.tolist())
    out = []
    for node in moving:
        host = next(at for at in range(len(hosts)) if at not in taken and leaf[at] == target[node])
        taken.add(host)
        out.append((hosts[node], hosts[host]))
    return tuple(out)


def _over(grouped: list[Communicator], nodes: list[str], placed: Ints, pod: Ints) -> dict[str, tuple[int, int]]:
    leaf_of = dict(zip(nodes, placed.tolist(), strict=True))
    out: dict[str, tuple[int, int]] = {}
    for one in grouped:
        leaves = {leaf_of[machine] for machine in one.machines if machine in leaf_of}
        over = (len(leaves) > 1, len({int(pod[leaf]) for leaf in leaves}) > 1)
        before = out.get(one.kind, (0, 0))
        out[one.kind] = (before[0] + over[0], before[1] + over[1])
    return out
