"""Better placements: by hand, proved, at scale, with spare machines, and none where there is none."""

from __future__ import annotations

import time

import pytest

from analysis.placement.advice import Advice, advise
from analysis.placement.communicators import Communicator
from analysis.placement.spread import spread_of
from analysis.topology.places import Topology
from tests.analysis.placement.networks import grid, group, network, shuffled


def moved(communicators: list[Communicator], advice: Advice) -> list[Communicator]:
    """The communicators after the moves of the advice."""
    to = dict(advice.moves)
    return [
        Communicator(
            one.name,
            one.task,
            one.kind,
            tuple((to.get(machine, machine), gpu) for machine, gpu in one.members),
            one.ranks,
            one.bytes_per_second,
            one.sending,
        )
        for one in communicators
    ]


def over_leaves(communicators: list[Communicator], net: Topology) -> dict[str, int]:
    """Kind -> groups over several leaves."""
    out = dict.fromkeys((one.kind for one in communicators), 0)
    for one in spread_of(communicators, net):
        out[one.communicator.kind] += len(one.leaves) > 1
    return out


def test_two_pairs_that_are_crossed() -> None:
    """Two data groups of two machines, each over both leaves: exchanging one machine of each puts both on one leaf."""
    net = network(4, per_leaf=2)
    job = [group("a", "data", ["m000", "m002"]), group("b", "data", ["m001", "m003"])]
    advice = advise(job, net)
    assert advice is not None
    assert (advice.before, advice.after, advice.groups) == ({"data": (2, 0)}, {"data": (0, 0)}, {"data": 2})
    assert (advice.gain, advice.weighted, advice.is_best) == (1.0, False, True)
    assert len(advice.moves) == 2
    assert over_leaves(moved(job, advice), net) == {"data": 0}


@pytest.mark.parametrize(("data_rate", "kind"), [(9e9, "data"), (1e8, "pipeline")])
def test_traffic_decides_which_groups_stay_together(data_rate: float, kind: str) -> None:
    """Of data and pipeline groups that cannot both be within a leaf, those that send more are."""
    net = network(16, per_leaf=4)
    job = grid(shuffled(4, 4), data_rate=data_rate, pipeline_rate=1e9)
    advice = advise(job, net)
    assert advice is not None
    assert advice.weighted
    assert over_leaves(moved(job, advice), net)[kind] == 0
    assert advice.after[kind] == (0, 0)


def test_what_is_said_is_what_moves_give() -> None:
    """The numbers after are those of the moved communicators; no machine is used twice."""
    net = network(32, per_leaf=8, leaves_per_pod=2)
    job = grid(shuffled(8, 4))
    advice = advise(job, net, seconds=2)
    assert advice is not None
    after = moved(job, advice)
    assert over_leaves(after, net) == {kind: leaves for kind, (leaves, _) in advice.after.items()}
    assert sorted(advice.moves, key=lambda move: move[0]) == sorted(advice.moves)
    assert len({host for _, host in advice.moves}) == len(advice.moves)
    assert {machine for one in after for machine in one.machines} == {f"m{at:03d}" for at in range(32)}
    assert 0 < advice.gain < 1


def test_a_good_placement_is_left_alone() -> None:
    """Data groups on one leaf each: no move is advised."""
    rows = [[f"m{stage * 4 + data:03d}" for stage in range(4)] for data in range(4)]
    advice = advise(grid(rows), network(16, per_leaf=4))
    assert advice is not None
    assert (advice.moves, advice.gain) == ((), 0)
    assert advice.before == advice.after


def test_spare_machines_bring_a_group_together() -> None:
    """A group over two leaves moves to one of them where a machine there is spare."""
    net = network(6, per_leaf=3)
    job = [group("a", "data", ["m000", "m001", "m003"])]
    assert advise(job, net) is None  # its own machines alone: whichever is where, it is the whole job
    advice = advise(job, net, spare=["m002", "m004", "m005"])
    assert advice is not None
    assert advice.moves == (("m003", "m002"),)
    assert advice.after == {"data": (0, 0)}


def test_nothing_to_place() -> None:
    """One leaf, groups within machines, and machines that no file names give no advice."""
    pair = [group("a", "data", ["m000", "m001"]), group("b", "data", ["m002", "m003"])]
    assert advise(pair, network(4, per_leaf=4)) is None
    assert advise([group("a", "tensor", ["m000"])], network(4, per_leaf=2)) is None
    assert advise(pair, network(0, per_leaf=1)) is None


def test_hundreds_of_machines_in_the_time_given() -> None:
    """256 machines on 16 leaves in 4 pods at random: in 2 s every data group is within a pod."""
    begun = time.monotonic()
    advice = advise(grid(shuffled(32, 8)), network(256, per_leaf=16, leaves_per_pod=4), seconds=2)
    assert time.monotonic() - begun < 20
    assert advice is not None
    assert advice.before["data"] == (8, 8)
    assert advice.after["data"][1] == 0
    assert advice.gain > 0.6
