"""Peer groups, and their medians, sums and maxima over all groups at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Array, Floats, Ints

Either = NDArray[Any]
"""Numbers or truth values."""


def distinct(group: Ints, member: Ints, groups: int) -> Ints:
    """[group]: how many different members it has, by the group of each entry; negative: none."""
    there, numbers = group >= 0, int(member.max(initial=0)) + 1
    pairs = np.unique(group[there] * numbers + member[there])
    return np.bincount(pairs // numbers, minlength=groups)


def middle(values: Array) -> Array:
    """Median along the last axis, NaN left out (NaN where nothing is known); [metric, entity] -> [metric]."""
    flat = values.reshape(-1, values.shape[-1])
    gaps = np.isnan(flat)
    if not gaps.any():
        return _halfway(flat).reshape(values.shape[:-1])
    result = np.full(len(flat), np.nan, values.dtype)
    missing = gaps.sum(-1)
    whole, some = np.flatnonzero(missing == 0), np.flatnonzero((missing > 0) & (missing < flat.shape[-1]))
    if len(whole):
        result[whole] = _halfway(flat[whole])
    if len(some):
        ordered = np.sort(flat[some], axis=-1)  # NaN goes to the end
        last = flat.shape[-1] - missing[some] - 1
        each = np.arange(len(some))
        result[some] = (ordered[each, last // 2] + ordered[each, (last + 1) // 2]) / 2
    return result.reshape(values.shape[:-1])


def median(values: NDArray[Any]) -> float:
    """Median of some numbers, none of them NaN; of a few it comes at a fraction of the cost of NumPy's own."""
    return float(_halfway(values[None])[0])


def _halfway(values: Array) -> Array:
    """Median along the last axis where all is known."""
    half, odd = divmod(values.shape[-1], 2)
    parted = np.partition(values, half, -1)
    upper: Array = parted[:, half]
    return upper if odd else (upper + parted[:, :half].max(-1)) / 2


@dataclass(frozen=True, slots=True)
class Groups:
    """Peer groups; values of groups are [metric, group], with a last column for entities without peers."""

    of: Ints
    """[entity]: its group, or -1."""
    sizes: tuple[tuple[Ints, Ints], ...]
    """By size: the groups of that size [n], and their members [n, size]."""
    count: int
    everybody: bool
    """Whether all are in one group, which spares copies."""

    def middle(self, values: Either) -> Either:
        """Median of each group."""
        return self._over(values, middle)

    def total(self, values: Either) -> Either:
        """Sum of each group."""
        return self._over(values, lambda members: members.sum(-1))

    def _over(self, values: Either, reduce: Callable[[Either], Either]) -> Either:
        out = np.full((len(values), self.count + 1), np.nan, values.dtype if values.dtype != bool else float)
        if self.everybody:
            out[:, 0] = reduce(values)
        else:
            for groups, members in self.sizes:
                out[:, groups] = reduce(values[:, members])
        return out

    def each(self, by_group: Either) -> Either:
        """[metric, entity] (or what spreads to that): every entity's share of what is said of its group."""
        return by_group[:, :1] if self.everybody else by_group[:, self.of]


def groups_of(of: Ints) -> Groups:
    """Groups out of each entity's group number, -1 where it has none."""
    count = int(of.max(initial=-1)) + 1
    order = np.argsort(of, kind="stable")[np.count_nonzero(of < 0) :]
    size = np.bincount(of[order], minlength=count)
    first = np.cumsum(size) - size
    sizes = []
    for each in np.unique(size[size > 0]).tolist():
        groups = np.flatnonzero(size == each)
        sizes.append((groups, order[first[groups][:, None] + np.arange(each)]))
    return Groups(of, tuple(sizes), count, count == 1 and len(order) == len(of))


def mean_of(group: Ints, values: Floats) -> Floats:
    """Each one's group's mean."""
    count = np.bincount(group)
    mean: Floats = (np.bincount(group, values) / np.maximum(count, 1))[group]
    return mean


def middle_of(values: Floats, group: Ints) -> Floats:
    """Each one's group's median of what is known; NaN where nothing is."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], group[known]))]
    names, first, count = np.unique(group[order], return_index=True, return_counts=True)
    middle = np.full(int(group.max(initial=-1)) + 2, np.nan)
    middle[names + 1] = values[order[first + (count - 1) // 2]]
    return middle[group + 1]
