"""Whether micro-batches are unequal work, as with sequences of different lengths packed into them."""

from __future__ import annotations

import numpy as np

from analysis.whatif.operations import BACKWARD, FORWARD, Operations, joined
from detector.stats.arrays import Floats, Ints

_LEAST_PAIRS = 8
_LEAST_SPREAD = 1e-3
"""Below this standard deviation, as a share of the mean, passes are equally long."""


def forward_backward_correlation(found: Operations, lengths: Floats) -> float | None:
    """Pearson correlation of the forward and the backward pass of the same micro-batch; 0 where they hardly vary.

    Each is taken less the mean of its worker, chunk and step, so slow workers and long stages do not count. None where
    fewer than eight micro-batches can be paired or each worker has one in a step.
    """
    places = np.flatnonzero(found.of(FORWARD, BACKWARD) & (found.micro_batch >= 0))
    _, own = np.unique(joined(found.line[places], found.chunk[places]), return_inverse=True)
    pass_of = joined(own, found.micro_batch[places])
    is_forward = found.of(FORWARD)[places]
    _, here, there = np.intersect1d(pass_of[is_forward], pass_of[~is_forward], return_indices=True)
    own = own[is_forward][here]
    if len(here) < _LEAST_PAIRS or np.bincount(own).max() < 2:
        return None
    pair = [lengths[places[is_forward][here]], lengths[places[~is_forward][there]]]
    a, b = (side - _means(own, side) for side in pair)
    if any(side.std() <= _LEAST_SPREAD * whole.mean() for side, whole in zip((a, b), pair, strict=True)):
        return 0.0
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def evened(found: Operations, lengths: Floats) -> Floats:
    """[operation] seconds: each pass has the mean of its step, stage and chunk, as if micro-batches were equal work."""
    out = lengths.copy()
    for kind in (FORWARD, BACKWARD):
        places = np.flatnonzero(found.of(kind))
        _, same = np.unique(
            joined(*(column[places] for column in (found.step, found.stage, found.chunk))), return_inverse=True
        )
        out[places] = _means(same, lengths[places])
    return out


def _means(group: Ints, values: Floats) -> Floats:
    """[value]: the mean of its group."""
    return (np.bincount(group, values) / np.maximum(np.bincount(group), 1))[group]
