"""Spread and measured cost of communicators, from rows of the store."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from analysis.placement.communicators import COLUMNS, find_communicators
from analysis.placement.spread import by_kind, spread_of
from analysis.topology.places import Link, topology_of
from detector.timeseries.rows import rows_of
from store.open import open_store
from store.schema.sample import Batch, Sample
from tests.analysis.placement.networks import group, network

GROUPS = {"feed0": (0, 1, 2, 3, 4, 5, 6, 7), "aaaa1": (0, 2), "aaaa2": (1, 3), "aaaa3": (4, 6), "aaaa4": (5, 7)}
"""Communicator -> ranks; rank r is on machine m{r // 2}, GPU r % 2."""


def reading(comm: str, rank: int, at: int) -> Sample:
    """One reading of a rank; pairs over machines 0 and 1 send 70 MB/s, the others 30 MB/s."""
    ranks = GROUPS[comm]
    values = {"gpu": str(rank % 2), "slot": comm[-1], "comm": comm, "ranks": len(ranks), "pid": 500 + rank}
    values |= {"rank": ranks.index(rank), "operation": "AllReduce:f32:9", "operations_total": 20.0 * at}
    values |= {"bytes_total": (7e7 if comm in ("aaaa1", "aaaa2") else 3e7) * at, "iteration_seconds": 1.5}
    return Sample("nccl", {**values, "send_pending_ratio": 0.4 if comm in ("aaaa1", "aaaa2") else 0.1})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Four machines of two ranks: a world and four pairs, each over two machines."""
    place, now = tmp_path / "readings.db", time.time_ns()
    with closing(open_store(str(place), create=True)) as store:
        for at in range(8):
            for machine in range(4):
                own = [(comm, rank) for comm, ranks in GROUPS.items() for rank in ranks if rank // 2 == machine]
                rows = tuple(reading(comm, rank, at) for comm, rank in own)
                store.write([Batch(f"m{machine}", now - (10 - at) * 10**9, rows)])
    return place


def test_communicators_of_a_store(place: Path) -> None:
    """Each communicator has its kind, its machines and GPUs, and its bytes per second."""
    now = time.time_ns()
    with closing(open_store(str(place))) as store:
        found = find_communicators(rows_of("nccl", store.read("nccl", now - 60 * 10**9, now, COLUMNS)))
    by_name = {one.name: one for one in found}
    assert sorted(by_name) == sorted(GROUPS)
    assert by_name["feed0"].kind == "world"
    assert by_name["aaaa3"].members == (("m2", "0"), ("m3", "0"))
    assert by_name["aaaa1"].bytes_per_second == pytest.approx(7e7)
    assert by_name["aaaa3"].sending == pytest.approx(0.1, abs=1e-6)
    assert {one.task for one in found} == {"feed0"}


def test_recordings_without_process_numbers(place: Path) -> None:
    """Where no process number was recorded, each GPU counts as one process."""
    now = time.time_ns()
    columns = tuple(name for name in COLUMNS if name != "pid")
    with closing(open_store(str(place))) as store:
        rows = rows_of("nccl", store.read("nccl", now - 60 * 10**9, now, columns))
    assert {one.name: len(one.members) for one in find_communicators(rows)} == {
        name: len(ranks) for name, ranks in GROUPS.items()
    }


def test_groups_over_leaves_are_counted_and_measured() -> None:
    """Groups within a leaf and over several count apart, with what each costs; those within a machine do not count."""
    job = [
        group("a", "data", ["m000", "m001"], 7e7, 0.1),
        group("b", "data", ["m001", "m002"], 5e7, 0.3),
        group("c", "data", ["m000", "m003"], 3e7, 0.5),
        group("d", "tensor", ["m000"]),
    ]
    (found,) = by_kind(spread_of(job, network(4, per_leaf=2, leaves_per_pod=1)))
    assert (found.kind, found.count, found.over_leaves, found.over_pods, found.most_leaves) == ("data", 3, 2, 2, 2)
    assert (found.sending_within, found.sending_over) == (0.1, pytest.approx(0.4))
    assert (found.rate_within, found.rate_over) == (7e7, 4e7)


def test_rails_of_a_group() -> None:
    """A group of GPUs of different numbers goes over several rails; machines that no file names are listed."""
    net = topology_of(Link(f"m{at}", f"leaf{rail}", "", f"r{rail}") for at in (1, 2) for rail in (0, 1))
    crossed = group("a", "data", ["m1", "m2", "m9"])
    crossed = type(crossed)("a", "job", "data", (("m1", "0"), ("m2", "1"), ("m9", "0")), 3, 1.0, 0.5)
    (found,) = spread_of([crossed], net)
    assert found.rails == ("r0", "r1")
    assert found.unknown == ("m9",)
    assert found.leaves == ("leaf0+leaf1",)
