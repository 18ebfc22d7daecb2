"""Made-up jobs on made-up networks."""

from __future__ import annotations

import numpy as np

from analysis.placement.communicators import Communicator
from analysis.topology.places import Link, Topology, topology_of

UNKNOWN = float("nan")


def group(name: str, kind: str, machines: list[str], rate: float = UNKNOWN, sending: float = UNKNOWN) -> Communicator:
    """A communicator with one rank a machine, on GPU 0."""
    members = tuple((machine, "0") for machine in machines)
    return Communicator(name, "job", kind, members, len(members), rate, sending)


def grid(names: list[list[str]], data_rate: float = 9e9, pipeline_rate: float = 1e9) -> list[Communicator]:
    """A job of data groups (columns) and pipeline groups (rows) on machines [data rank][stage]."""
    data = [group(f"d{at}", "data", list(column), data_rate) for at, column in enumerate(zip(*names, strict=True))]
    return data + [group(f"p{at}", "pipeline", row, pipeline_rate) for at, row in enumerate(names)]


def network(machines: int, per_leaf: int, leaves_per_pod: int = 0) -> Topology:
    """Machines m000, m001, … on leaves of one size, in pods of one size; 0: no pods."""

    def link(at: int) -> Link:
        leaf = at // per_leaf
        return Link(f"m{at:03d}", f"leaf{leaf:02d}", f"pod{leaf // leaves_per_pod}" if leaves_per_pod else "")

    return topology_of(map(link, range(machines)))


def shuffled(data: int, stages: int, seed: int = 4) -> list[list[str]]:
    """[data rank][stage]: machines in random order."""
    order = np.random.default_rng(seed).permutation(data * stages).reshape(data, stages)
    return [[f"m{at:03d}" for at in row] for row in order]
