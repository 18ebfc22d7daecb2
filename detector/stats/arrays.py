"""Array types of the detector, and arrays that grow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Singles = NDArray[np.float32]
Array = NDArray[np.floating[Any]]


def grown(array: NDArray[Any], shape: tuple[int, ...], fill: float, axis: int = -1) -> NDArray[Any]:
    """The array, or a larger copy of it padded with `fill`; that axis at least doubles, so growth is amortised."""
    for have, want in zip(array.shape, shape, strict=True):
        if have < want:
            break
    else:
        return array
    room = [max(have, want) for have, want in zip(array.shape, shape, strict=True)]
    if array.shape[axis] < shape[axis]:
        room[axis] = max(shape[axis], 2 * array.shape[axis])
    larger = np.full(room, fill, array.dtype)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def fitted(array: NDArray[Any], shape: tuple[int, ...], fill: float = 0) -> NDArray[Any]:
    """The array in another shape: what is new is `fill`, what has no place is left out."""
    out = np.full(shape, fill, array.dtype)
    out[tuple(slice(min(old, new)) for old, new in zip(array.shape, shape, strict=True))] = array[
        tuple(slice(size) for size in shape)
    ]
    return out


def runs(on: Bools) -> list[tuple[int, int]]:
    """Where each run of true values begins, and where it is over."""
    edges = np.flatnonzero(np.diff(np.r_[False, on, False].astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
