"""The dependency graph of operations, and its replay with other lengths: a longest path, level by level.

Operations that wait for each other form a group: a collective, a send with its receive, or one compute operation alone.
A group is ready when all operations on which its members depend have ended, and each member ends its own length after
that. Groups of one level depend on lower levels only, so a replay is one pass over arrays for each level, all steps
and workers at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.whatif.operations import first_of
from detector.stats.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Graph:
    """Groups are numbered by level, edges ordered by the group that they lead to."""

    group: Ints
    """[operation]: its group."""
    first_of_step: Ints
    """[step]: its first operation; operations are ordered by step."""
    source: Ints
    """[edge]: the operation that must end."""
    before: Ints
    """[edge]: its group."""
    levels: tuple[tuple[int, int, int, int, Ints], ...]
    """First group and the one after the last, the same of edges, and where each group's edges begin from there."""

    def replay(self, lengths: Floats) -> Floats:
        """[step]: seconds until its last operation has ended, if operations have these lengths (seconds)."""
        ready = self.ready(lengths)
        ends: Floats = np.maximum.reduceat(ready[self.group] + lengths, self.first_of_step)
        return ends

    def ready(self, lengths: Floats) -> Floats:
        """[group]: seconds into its step at which the last of its members can begin."""
        ready = np.zeros(int(self.group.max(initial=-1)) + 1)
        weights = lengths[self.source]
        for group, end_group, edge, end_edge, offsets in self.levels:
            ends = ready[self.before[edge:end_edge]] + weights[edge:end_edge]
            ready[group:end_group] = np.maximum.reduceat(ends, offsets)
        return ready


def build(step: Ints, group: Ints, source: Ints, target: Ints) -> tuple[Graph | None, Bools]:
    """The graph of edges from operation `source` to operation `target`, and which operations are in a circle.

    `step` [operation] grows. The graph is None where there is a circle: leave the steps of those operations out.
    """
    _, group = np.unique(group, return_inverse=True)
    after = group[target]
    level = _levels(int(group.max(initial=-1)) + 1, group[source], after)
    stuck: Bools = (level < 0)[group]
    if stuck.any():
        return None, stuck
    return _ordered(step, group, (source, after), level), stuck


def _levels(groups: int, before: Ints, after: Ints) -> Ints:
    """[group]: the longest number of edges that lead to it; -1 for groups in or behind a circle."""
    missing = np.bincount(after, minlength=groups)
    order = np.argsort(before, kind="stable")
    after, first = after[order], np.searchsorted(before[order], np.arange(groups + 1))
    level = np.full(groups, -1, np.int64)
    front = np.flatnonzero(missing == 0)
    at = 0
    while len(front):
        level[front] = at
        reached = after[_ranges(first[front], first[front + 1])]
        np.subtract.at(missing, reached, 1)
        front = np.unique(reached[missing[reached] == 0])
        at += 1
    return level


def _ranges(begin: Ints, end: Ints) -> Ints:
    """The numbers from each begin to its end, one range after the other."""
    sizes = end - begin
    numbers: Ints = np.arange(int(sizes.sum())) + np.repeat(begin - np.cumsum(sizes) + sizes, sizes)
    return numbers


def _ordered(step: Ints, group: Ints, edges: tuple[Ints, Ints], level: Ints) -> Graph:
    """The graph with groups numbered by level; edges lead from an operation to a group."""
    order = np.argsort(level, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    group, target = number[group], number[edges[1]]
    by_target = np.argsort(target, kind="stable")
    target, source = target[by_target], edges[0][by_target]
    first_edge = np.searchsorted(target, np.arange(len(order) + 1))
    ends = np.flatnonzero(np.diff(level[order], append=-1)) + 1
    levels = []
    # Groups of level 0 wait for nothing.
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        edge = int(first_edge[begin])
        levels.append((begin, end, edge, int(first_edge[end]), first_edge[begin:end] - edge))
    return Graph(group, first_of(step), source, group[source], tuple(levels))
