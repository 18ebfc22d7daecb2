"""How far each machine is from all others together: sums of distances between points, and their z-scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from detector.stats.arrays import Floats

_BLOCK = 1 << 22  # coordinates of pairs that are looked at at a time


def scores(points: Floats, distance: str = "euclidean") -> Floats:
    """[machine]: the sum of distances to all others, in standard deviations over machines; 0 where all are alike."""
    total = DISTANCES[distance](points)
    spread = total.std()
    zero: Floats = np.zeros(len(total))
    return (total - total.mean()) / spread if spread > 1e-9 * max(1.0, float(total.mean())) else zero


def euclidean(points: Floats) -> Floats:
    """[machine]: sums of Euclidean distances from points [machine, coordinate] to all others."""
    if points.shape[1] == 1:
        return manhattan(points)
    square = (points**2).sum(1)
    return _by_blocks(points, lambda part: _root(square[part, None] + square[None] - 2 * points[part] @ points.T))


def manhattan(points: Floats) -> Floats:
    """[machine]: sums of Manhattan distances; each coordinate by a sort, without looking at pairs."""
    count = len(points)
    order = np.argsort(points, axis=0)
    line = np.take_along_axis(points, order, axis=0)
    before = np.cumsum(line, axis=0) - line
    rank = np.arange(count)[:, None]
    sums = np.empty(points.shape)
    far = line * rank - before + (line.sum(0) - before - line) - line * (count - 1 - rank)
    np.put_along_axis(sums, order, far, axis=0)
    total: Floats = sums.sum(1)
    return total


def chebyshev(points: Floats) -> Floats:
    """[machine]: sums of the largest differences in any coordinate."""
    return _by_blocks(points, lambda part: np.abs(points[part, None] - points[None]).max(2))


DISTANCES: Mapping[str, Callable[[Floats], Floats]] = {
    "euclidean": euclidean,
    "manhattan": manhattan,
    "chebyshev": chebyshev,
}


def _root(square: Floats) -> Floats:
    return np.sqrt(np.maximum(square, 0.0))


def _by_blocks(points: Floats, far: Callable[[slice], Floats]) -> Floats:
    """[machine]: sums over distances [machine of the block, machine], so that memory stays bounded."""
    rows = max(1, _BLOCK // points.size)
    return np.concatenate([far(slice(at, at + rows)).sum(1) for at in range(0, len(points), rows)])
