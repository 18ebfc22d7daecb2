"""Placements by simple packing: an answer where the integer program finds none in its time, and a bound for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analysis.placement.program import Problem
from detector.stats.arrays import Ints


def packed(problem: Problem) -> Iterator[Ints]:
    """Placements [node] -> leaf: groups of one size, the heaviest groups of it first, laid on leaves pod by pod.

    The groups of one size are one kind of parallelism as a rule; each kind is laid out whole once.
    """
    leaves = np.lexsort((-problem.room, problem.pod))
    slots = np.repeat(leaves, problem.room[leaves])
    for size in sorted({len(group) for group in problem.groups}):
        first = [at for at, group in enumerate(problem.groups) if len(group) == size]
        rest = [at for at, group in enumerate(problem.groups) if len(group) != size]
        order: dict[int, None] = {}
        for at in (*_by_weight(problem, first), *_by_weight(problem, rest)):
            order.update(dict.fromkeys(problem.groups[at].tolist()))
        order.update(dict.fromkeys(range(len(problem.now))))
        placed = np.empty(len(problem.now), np.int64)
        placed[list(order)] = slots[: len(order)]
        yield placed


def _by_weight(problem: Problem, groups: list[int]) -> list[int]:
    return sorted(groups, key=lambda at: (-problem.weights[at], int(problem.groups[at].min())))


def relabelled(problem: Problem, placed: Ints) -> Ints:
    """The same placement with like pods, and like leaves within a pod, exchanged so that most nodes stay."""
    from scipy.optimize import linear_sum_assignment

    leaves = len(problem.room)
    stay = np.zeros((leaves, leaves))
    np.add.at(stay, (placed, problem.now), 1.0)
    stay[problem.room[:, None] != problem.room[None, :]] = -len(placed)
    pods = [np.flatnonzero(problem.pod == pod) for pod in range(problem.pods)]
    gain = np.full((len(pods), len(pods)), -float(len(placed)) * leaves)
    chosen: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    for one, mine in enumerate(pods):
        for other, theirs in enumerate(pods):
            if sorted(problem.room[mine]) == sorted(problem.room[theirs]):
                rows, columns = linear_sum_assignment(stay[np.ix_(mine, theirs)], maximize=True)
                chosen[one, other] = (mine[rows], theirs[columns])
                gain[one, other] = float(stay[mine[rows], theirs[columns]].sum())
    new = np.arange(leaves)
    for pair in zip(*(side.tolist() for side in linear_sum_assignment(gain, maximize=True)), strict=True):
        rows, columns = chosen[pair]
        new[rows] = columns
    renamed: Ints = new[placed]
    return renamed
