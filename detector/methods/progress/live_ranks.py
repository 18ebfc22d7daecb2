"""The ranks of the communicators that are alive at one step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Ints


@dataclass(frozen=True, slots=True)
class LiveRanks:
    """The live series; arrays over them, and over their processes."""

    live: Ints
    comm: Ints
    process: Ints
    seat: Ints
    """Of each process, its lasting number."""
    machine: Ints
    """Of each process."""
    task: Ints
    """Of each process; -1: none."""
    running: NDArray[np.bool_]
    """Of each process: whether its task moves. While it stands (a hang, a checkpoint) waiting proves no habit."""
