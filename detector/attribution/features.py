"""Attribution of a delay: the operators that take longer than usual, and the ranks that cause it.

After Holmes (NSDI'25): a forest tells abnormal operators by these features; then of the ranks of one communicator a
single normal one among abnormal ones is the one that they waited for; where all are abnormal, the communication is
slow. A rank that waited elsewhere before is a victim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Bools, Floats, Ints

FEATURES = ("sigmas", "ratio", "fences", "of_excess", "relative", "size", "paired", "group")
IRREGULAR_RATIO = 1.04
"""Iterations so many times as long as usual are irregular; Holmes distinguishes no shorter ones."""
ABNORMAL = 0.5
"""From this probability on."""
_CAME_LATE = 0.5  # of the others' wait: a rank that waited for this much before is a victim


@dataclass(frozen=True, slots=True)
class OperatorBaseline:
    """What operators take when iterations are regular; arrays of one shape, seconds."""

    mean: Floats
    deviation: Floats
    high: Floats
    """Third quartile ..."""
    between: Floats
    """... and its distance from the first."""
    iteration: NDArray[Any]
    """Seconds of an iteration."""


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """What else is known of operators, in shapes that fit theirs."""

    size: Floats
    """Bytes."""
    paired: Bools
    """Whether it is made of sends and receives, in which a rank waits for those before it only."""
    shared: Floats
    """By how much its communicator's ranks are longer in it on average, seconds."""


def features(elapsed: Floats, usual: OperatorBaseline, longer: Any, about: OperatorInfo) -> Floats:
    """[sample, feature] in the order of FEATURES; `longer`: by how many seconds the iteration is longer than usual."""
    excess = elapsed - usual.mean
    columns = (
        excess / (usual.deviation + 1e-6),
        elapsed / (usual.mean + 1e-9),
        (elapsed - usual.high) / (usual.between + 1e-6),
        excess / longer,
        excess / usual.iteration,
        np.broadcast_to(np.log10(about.size + 1), elapsed.shape),
        np.broadcast_to(about.paired.astype(float), elapsed.shape),
        about.shared / longer,
    )
    return np.stack([column.reshape(-1) for column in columns], 1)


def blame(group: Ints, wrong: Bools, excess: Floats, waited: Floats) -> tuple[Floats, Floats]:
    """Seconds that others waited for each, and seconds that the communication of each took too long.

    `group` is the communicator of each, `wrong` which are abnormal in it, `excess` by how much, `waited` how long each
    waited for others before.
    """
    members, many = np.bincount(group), np.bincount(group, wrong)
    cost = np.bincount(group, excess * wrong) / np.maximum(many, 1)
    fresh = waited < _CAME_LATE * cost[group]
    alone = (many == members - 1) & (members > 1)
    every = (many == members) & (members > 1)
    late = np.where(alone[group] & ~wrong & fresh, cost[group] * many[group], 0.0)
    slow = np.where(every[group], cost[group] * (members[group] - 1), 0.0)
    return late, slow
