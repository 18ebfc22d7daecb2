"""The placement of nodes on leaves as an integer program, solved by HiGHS through scipy.

Variables: x[node, leaf] is 1 where a node is put; y[group, leaf] and z[group, pod] are at least the x below them. Least
is the sum of weight × (leaves of the group - 1 + 10 × (pods of the group - 1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from detector.stats.arrays import Ints

POD_WEIGHT = 10.0
"""A pod costs this many leaves: Arnold measures up to 17 % of bandwidth lost across pods, under 0.3 % within one."""
_CHEAPER = 1e-4
_INFEASIBLE = 2
_MOST_VARIABLES = 200_000


@dataclass(frozen=True)
class Problem:
    """Nodes to place; nodes, leaves and pods are numbers."""

    groups: list[Ints]
    """The nodes of each group."""
    weights: list[float]
    """Of each group; they sum to 1."""
    now: Ints
    """[node]: its leaf today."""
    room: Ints
    """[leaf]: how many nodes it can take."""
    pod: Ints
    """[leaf]: its pod."""

    @cached_property
    def pods(self) -> int:
        """Number of pods."""
        return int(self.pod.max()) + 1


def cost(problem: Problem, placed: Ints) -> float:
    """The weighted spread over leaves and pods of this placement, [node] its leaf; 0: every group is on one leaf."""
    total = 0.0
    for group, weight in zip(problem.groups, problem.weights, strict=True):
        leaves = np.unique(placed[group])
        total += weight * (len(leaves) - 1 + POD_WEIGHT * (len(np.unique(problem.pod[leaves])) - 1))
    return total


def solve(problem: Problem, known: Ints, seconds: float) -> tuple[Ints, bool]:
    """The solver's placement, [node] its leaf, or `known` where it finds no cheaper one; whether it is proved best.

    Only placements cheaper than the known one are searched, so a search that is exhausted proves the known one.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    nodes, leaves, groups, pods = len(problem.now), len(problem.room), len(problem.groups), problem.pods
    x, y = nodes * leaves, groups * leaves
    if x + y + groups * pods > _MOST_VARIABLES:
        return known, False
    weights = np.array(problem.weights)
    objective = np.concatenate([np.zeros(x), np.repeat(weights, leaves), np.repeat(weights * POD_WEIGHT, pods)])
    # Each group has one leaf and one pod that cost nothing.
    most = cost(problem, known) * (1 - _CHEAPER) + (1 + POD_WEIGHT) * weights.sum()
    cheaper = LinearConstraint(objective, -np.inf, most)
    integral = np.zeros(len(objective))
    integral[:x] = 1
    found = milp(
        objective,
        constraints=[_constraints(problem), _least_spread(problem), cheaper],
        integrality=integral,
        bounds=Bounds(0, 1),
        options={"time_limit": seconds},
    )
    if found.x is None:
        return known, found.status == _INFEASIBLE
    return found.x[:x].reshape(nodes, leaves).argmax(axis=1), found.status == 0


def _least_spread(problem: Problem) -> Any:
    """A group needs as many leaves and pods as hold its nodes if they hold as many as they can."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import block_diag, csr_matrix, hstack

    groups, leaves, pods = len(problem.groups), len(problem.room), problem.pods
    sums = block_diag([np.ones((1, leaves))] * groups + [np.ones((1, pods))] * groups)
    matrix = hstack([csr_matrix((2 * groups, len(problem.now) * leaves)), sums]).tocsr()
    room_of_pod = np.bincount(problem.pod, problem.room)
    sizes = np.array([len(group) for group in problem.groups])
    least = [np.searchsorted(np.cumsum(np.sort(room)[::-1]), sizes) + 1 for room in (problem.room, room_of_pod)]
    return LinearConstraint(matrix, np.concatenate(least), np.inf)


def _constraints(problem: Problem) -> Any:
    """One leaf for each node; no leaf overfull; y over its x, z over its y."""
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_matrix

    nodes, leaves, pods = len(problem.now), len(problem.room), problem.pods
    size = nodes * leaves
    cell = np.arange(size)
    node, leaf = np.divmod(cell, leaves)
    member = np.concatenate(problem.groups)
    group = np.repeat(np.arange(len(problem.groups)), [len(one) for one in problem.groups])
    at = np.tile(np.arange(leaves), len(member))
    covered = size + np.repeat(group, leaves) * leaves + at
    placed = np.repeat(member, leaves) * leaves + at
    own_leaf = size + np.arange(len(problem.groups) * leaves)
    own_group, its_leaf = np.divmod(own_leaf - size, leaves)
    own_pod = size + len(own_leaf) + own_group * pods + problem.pod[its_leaf]
    over = nodes + leaves + np.arange(len(placed))
    above = nodes + leaves + len(placed) + np.arange(len(own_leaf))
    rows = np.concatenate([node, nodes + leaf, over, over, above, above])
    columns = np.concatenate([cell, cell, covered, placed, own_pod, own_leaf])
    signs = np.repeat([1, 1, 1, -1, 1, -1], [size, size, len(over), len(over), len(above), len(above)])
    height = nodes + leaves + len(over) + len(above)
    low = np.concatenate([np.ones(nodes), np.zeros(height - nodes)])
    high = np.concatenate([np.ones(nodes), problem.room, np.full(len(over) + len(above), np.inf)])
    width = size + len(own_leaf) + len(problem.groups) * pods
    return LinearConstraint(csr_matrix((signs, (rows, columns)), shape=(height, width)), low, high)
