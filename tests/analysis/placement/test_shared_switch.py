"""Faulty machines on one switch: said where chance does not explain it."""

from __future__ import annotations

from analysis.placement.shared_switch import shared_switches
from analysis.topology.places import Link, topology_of
from tests.analysis.placement.networks import network

ALL = [f"m{at:03d}" for at in range(64)]


def test_three_of_a_leaf_are_its_fault() -> None:
    """Three faulty machines of 64, all on one leaf of eight: the leaf is suspected, and its pod is not said as well."""
    (found,) = shared_switches(["m017", "m019", "m022"], ALL, network(64, per_leaf=8, leaves_per_pod=2))
    assert (found.level, found.name, found.machines) == ("leaf", "leaf02", 8)
    assert found.faulty == ("m017", "m019", "m022")
    # 8·7·6 of 64·63·62 triples are on that leaf; times 8 leaves.
    assert abs(found.chance - 8 * (8 * 7 * 6) / (64 * 63 * 62)) < 1e-12
    assert "3 of 8 machines on leaf leaf02 are faulty" in found.in_words()


def test_a_pod_is_suspected_where_no_leaf_is() -> None:
    """Faulty machines on all leaves of a pod, two each: the pod is suspected first."""
    faulty = ["m000", "m003", "m009", "m012", "m017", "m020", "m026", "m031"]
    found = shared_switches(faulty, ALL, network(64, per_leaf=8, leaves_per_pod=4))
    assert [(one.level, one.name) for one in found] == [("pod", "pod0")]


def test_chance_is_not_blamed() -> None:
    """Two machines on one leaf of eight may be chance; so may scattered ones, and one alone."""
    net = network(64, per_leaf=8)
    for faulty in (["m001", "m002"], ["m003", "m012", "m029", "m060"], ["m004"], [], ["unknown1", "unknown2"]):
        assert shared_switches(faulty, ALL, net) == ()


def test_each_of_several_switches_is_counted() -> None:
    """Machines on two leaves each: the leaf that all faulty ones share is named alone."""
    links = [Link(f"m{at:03d}", leaf) for at in range(64) for leaf in (f"a{at // 8}", f"b{at % 8}")]
    found = shared_switches(["m003", "m011", "m019", "m035"], ALL, topology_of(links))
    assert [one.name for one in found] == ["b3"]
