"""Logs of the generator that trains the model, in the form that the analysis takes."""

from __future__ import annotations

import numpy as np

from analysis.operators.iterations import Log
from analysis.traces.operations import Operations
from emulator.simulation.operator_log import OperatorsLog


def lined_up(made: OperatorsLog) -> tuple[Operations, Log]:
    """A table with the names of ranks, and the log; of a whole pipeline's sends each rank has one of its own."""
    iterations, operators, ranks = made.elapsed.shape
    place, rank = np.repeat(np.arange(operators), ranks), np.tile(np.arange(ranks), operators)
    paired = np.array([pattern == "SendRecv" for pattern in made.pattern])[place]
    group, kinds = made.group.reshape(-1), sorted(set(made.pattern))
    cell = np.unique(np.stack([place, group, np.where(paired, rank, -1)]), axis=1, return_inverse=True)[1].reshape(-1)
    kind = np.array([kinds.index(pattern) for pattern in made.pattern])[place]
    elapsed = made.elapsed.reshape(iterations, -1).astype(np.float64)
    log = Log(elapsed, rank, cell, place, group, kind, made.size[place], paired, made.iteration_seconds)
    none, ints = np.empty(0), np.empty(0, np.int64)
    names = tuple(f"rank {at}" for at in range(ranks))
    communicators = tuple(map(str, range(int(group.max()) + 1)))
    columns = ints, ints, ints, ints, none, ints, none, none, none, none, ints
    return Operations(*columns, names, ("",) * ranks, communicators, tuple(kinds)), log
