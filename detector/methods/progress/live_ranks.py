"""The live ranks of one step and the processes and tasks that they belong to."""

from __future__ import annotations

from dataclasses import dataclass

from detector.stats.arrays import Bools, Ints


@dataclass(frozen=True, slots=True)
class LiveRanks:
    """The first three are arrays over live series, the others over their processes."""

    series: Ints
    """Numbers in the rank table."""
    comm: Ints
    """Communicators, numbered from 0."""
    process: Ints
    """Processes, numbered from 0."""
    number: Ints
    """The number of each process in the rank table."""
    machine: Ints
    task: Ints
    """-1: none."""
    running: Bools
    """Whether its task makes progress. In a hang or a checkpoint, waiting says nothing about what is usual."""
