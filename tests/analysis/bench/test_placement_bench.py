"""How much a better placement takes away, and in what time."""

from __future__ import annotations

import time

import pytest

from analysis.placement.advice import advise
from analysis.placement.communicators import Communicator
from analysis.placement.spread import spread_of
from analysis.topology.places import Topology
from tests.analysis.placement.networks import grid, network, shuffled

pytestmark = pytest.mark.bench

SHAPES = ((4, 4, 4, 2), (8, 4, 8, 2), (16, 4, 8, 4), (32, 8, 16, 4), (64, 8, 16, 8))
"""Data ranks, stages, machines per leaf, leaves per pod."""


def most(job: list[Communicator], net: Topology) -> tuple[int, ...]:
    """Most leaves, then most pods of a data group, then of a pipeline group."""
    spreads = spread_of(job, net)
    kinds = ("data", "pipeline")
    leaves = [max(len(one.leaves) for one in spreads if one.communicator.kind == kind) for kind in kinds]
    pods = [max(len(one.pods) for one in spreads if one.communicator.kind == kind) for kind in kinds]
    return (leaves[0], pods[0], leaves[1], pods[1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_placement_of_random_and_ordered_jobs(shape: tuple[int, int, int, int]) -> None:
    """Data groups send nine times as much as pipeline groups; machines at random, and in the order of ranks."""
    data, stages, per_leaf, per_pod = shape
    net = network(data * stages, per_leaf, per_pod)
    in_order = [[f"m{row * stages + stage:03d}" for stage in range(stages)] for row in range(data)]
    for name, rows in (("random", shuffled(data, stages)), ("in order", in_order)):
        job = grid(rows)
        begun = time.monotonic()
        advice = advise(job, net, seconds=10)
        assert advice is not None
        print(
            f"\n{data * stages} machines, {name}: spread {advice.gain:.0%} less in {time.monotonic() - begun:.1f} s, "
            f"{'proved best' if advice.is_best else 'not proved'}; most leaves and pods of data and pipeline groups "
            f"{most(job, net)}; groups over leaves and pods {advice.before} -> {advice.after}"
        )
