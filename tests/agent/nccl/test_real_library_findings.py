"""What NVIDIA's own library was found to do otherwise than expected, by its recorded layouts and its memory."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent.binaries.struct_layouts import TABLE, Layout
from agent.nccl import proxy_sampler
from agent.nccl.communicator_table import TrackedCommunicator
from agent.nccl.communicators import BORN, GROW, INIT, REVOKE, Communicators
from agent.nccl.operation_count import ATTACH, MEMORY, CountOrigin, CountTracker
from agent.nccl.proxy_sampler import ProxySampler, ProxyShares
from agent.nccl.row import OPERATIONS, pending_of
from agent.probes.groups import CALLS
from agent.probes.library import Library
from agent.probes.training_processes import TrainingProcess
from agent.process.memory import Identity, Memory
from agent.process.procfs import Process, visible_gpus
from agent.sources.nccl import Nccl
from detector.model.operations import is_point_to_point
from tests.agent.nccl.test_communicators import event, joined, stream

LAYOUTS = {build["version"]: build["layout"] for build in json.loads(TABLE.read_text()).values()}


@pytest.fixture
def memory() -> Iterator[Memory]:
    """This process as another one would see it."""
    opened = Memory(os.getpid())
    yield opened
    opened.close()


def communicator(layout: Layout, **members: bytes) -> ctypes.Array[ctypes.c_char]:
    """A communicator of that build with these members, everything else zero."""
    data = ctypes.create_string_buffer(layout["ncclComm"]["sizeof"])
    for name, value in members.items():
        at = layout["ncclComm"][name]
        data[at : at + len(value)] = value
    return data


@pytest.mark.parametrize(
    ("structure", "member", "first"),
    [
        ("ncclProxyOp", "peer", (2, 23, 4)),
        ("ncclComm", "startMagic", (2, 21, 5)),
        ("ncclComm", "collOpCount", (2, 24, 3)),
        ("ncclComm", "workFifoConsumed", (2, 22, 3)),
    ],
)
def test_findings_1_members_come_with_versions(structure: str, member: str, first: tuple[int, ...]) -> None:
    """The table of 28 builds says from which version on a member is there, and none loses it later."""
    assert len(LAYOUTS) == 28
    known = {version for version, layout in LAYOUTS.items() if member in layout.get(structure, {})}
    assert known == {version for version in LAYOUTS if tuple(map(int, version.split("+")[0].split("."))) >= first}


def test_findings_1_offsets_of_another_build_are_not_believed(memory: Memory) -> None:
    """Where a wrong build id leads to offsets of another version, no identity is read from them."""
    layout, wrong = LAYOUTS["2.27.3+cuda12.9"], LAYOUTS["2.21.5+cuda12.4"]
    data = communicator(layout, commHash=struct.pack("<Q", 0xFACE), rank=struct.pack("<i", 3))
    assert memory.identity(ctypes.addressof(data), wrong) is None


@pytest.mark.parametrize(
    ("version", "counts_calls", "count"),
    [
        ("2.21.5+cuda12.4", False, None),
        ("2.27.3+cuda12.9", False, 3 + 5 + 7 + 11 + 13),
        ("2.30.7+cuda13.3", False, 3 + 5 + 7 + 11 + 13),
        ("2.32.3+cuda12.9", True, 71),
    ],
)
def test_findings_4_2_launches_are_no_operations(
    version: str, counts_calls: bool, count: int | None, memory: Memory
) -> None:
    """The count of operations is read where it counts calls; before, collectives one by one; else nothing is."""
    layout = LAYOUTS[version]
    members = {"opCount": struct.pack("<Q", 71)}
    if "seqNumber" in layout["ncclComm"]:
        members["seqNumber"] = struct.pack("<5Q", 3, 5, 7, 11, 13)
    data = communicator(layout, **members)
    assert memory.operations(ctypes.addressof(data), layout, counts_calls) == count


def test_findings_4_2_the_count_of_collectives_is_in_the_table() -> None:
    """Each shipped layout from 2.23.4 on says where it lies."""
    known = {version for version, layout in LAYOUTS.items() if "seqNumber" in layout["ncclComm"]}
    assert known == {version for version in LAYOUTS if tuple(map(int, version.split("+")[0].split("."))) >= (2, 23, 4)}


def test_findings_4_2_one_reading_in_step_proves_nothing() -> None:
    """Where groups are one launch each, one reading in which both counts moved alike is not believed."""
    origin, own = CountOrigin(), 516
    for reading in range(40):
        own += 4 if reading == 7 else 1
        origin.settle(born=False, operations=4 * reading, own=own)
    assert (origin.base, origin.origin) == (0, ATTACH)


def test_findings_4_2_belief_is_taken_back() -> None:
    """A count that was in step and parts from ours, such as at Send and Recv, carries nothing on from then on."""
    origin, count = CountOrigin(), CountTracker()
    for operations in range(0, 40, 5):
        origin.settle(born=False, operations=operations, own=516 + operations)
        count.compare(operations, 516 + operations)
    assert (origin.base, origin.origin, count.in_step) == (516, MEMORY, True)
    for reading in range(1, 12):
        assert not count.refuted
        count.compare(35 + 6 * reading, 516 + 35)
    origin.refute()
    assert (origin.base, origin.origin, count.in_step) == (0, ATTACH, False)


def shares(active: float = 0.7, still: float = 0.0) -> ProxyShares:
    """What samples of a proxy found."""
    return ProxyShares(active, 0.3, 0.4, None, None, False, still, None)


@pytest.mark.parametrize(
    ("asked", "watched", "seen", "pending"),
    [
        (True, True, None, 1.0),
        (False, True, shares(1.0, 25.0), 0.0),
        (False, False, shares(1.0, 25.0), 1.0),
        (False, False, shares(1.0, 0.2), 0.0),
        (False, False, shares(0.0, 0.0), 0.0),
        (False, False, None, None),
    ],
)
def test_findings_4_3_what_is_at_work_and_still_is_pending(
    asked: bool, watched: bool, seen: ProxyShares | None, pending: float | None
) -> None:
    """A watchdog's questions tell; without one an operation at work that does not move is unfinished."""
    assert pending_of(asked, watched, seen) == pending


def test_findings_4_3_the_librarys_own_questions_are_no_watchdog() -> None:
    """NCCL asks itself at each call, and once behind it; a watchdog goes on asking when no call comes."""
    tracked = TrackedCommunicator(Process(71, 7), "0", 0)
    for operations in range(1, 50):
        assert not tracked.note_queries(2 * operations, operations)
        assert not tracked.note_queries(2 * operations + 1, operations)
    assert [tracked.note_queries(queries, 50) for queries in (100, 101, 106, 111, 111)] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert tracked.watched
    tracked.replayed = True
    assert not tracked.watched


def test_findings_4_4_replays_differ_from_calls() -> None:
    """Transfers that move long after the last call are replays, also once they stand still, until a call comes."""
    tracked = TrackedCommunicator(Process(71, 7), "0", 0)
    assert tracked.note_replays(3.0, shares()) == 0.0
    assert tracked.note_replays(31.0, shares(0.0)) == 0.0
    assert tracked.note_replays(32.0, shares()) == 1.0
    assert tracked.note_replays(57.0, shares(1.0, 25.0)) == 1.0
    assert tracked.note_replays(60.0, None) is None
    assert tracked.note_replays(0.5, shares()) == 0.0


def test_findings_4_5_without_a_network_edge_nothing_is_said(memory: Memory) -> None:
    """A proxy that never had an operation says nothing: null, not 0. One that had some and is idle says 0."""
    layout = LAYOUTS["2.27.3+cuda12.9"]
    at = layout["ncclProxyState"]["progressState"] + layout["ncclProxyProgressState"]["active"]
    state = ctypes.create_string_buffer(at + 64)
    node = ctypes.create_string_buffer(layout["ncclProxyArgs"]["sizeof"])
    data = communicator(layout, proxyState=struct.pack("<Q", ctypes.addressof(state)))
    key, sampler = (71, ctypes.addressof(data)), ProxySampler(100.0)
    sampler.close()  # samples are taken here, one by one
    sampler.watch(key, memory, layout)
    (place,) = sampler._places.values()

    def active(samples: int) -> float | None:
        for clock in range(samples):
            proxy_sampler._sample(place, float(clock))
        found = sampler.pop_shares(key)
        assert found is None or (found.sending, found.receiving) == (None, None)  # no connection is at work
        return found.active if found else None

    assert active(5) is None
    state[at : at + 8] = struct.pack("<Q", ctypes.addressof(node))
    assert active(3) == 1.0
    state[at : at + 8] = bytes(8)
    assert active(7) == 0.0


def test_findings_4_5_a_shared_list_tells_of_none_of_its_communicators(memory: Memory) -> None:
    """Where a child of a split uses its parent's proxy, ranks and steps are null for both: they could be either's."""
    layout = LAYOUTS["2.27.3+cuda12.9"]
    at = layout["ncclProxyState"]["progressState"] + layout["ncclProxyProgressState"]["active"]
    state = ctypes.create_string_buffer(at + 64)
    node = ctypes.create_string_buffer(layout["ncclProxyArgs"]["sizeof"])
    state[at : at + 8] = struct.pack("<Q", ctypes.addressof(node))
    pointer = struct.pack("<Q", ctypes.addressof(state))
    parent, child = (communicator(layout, proxyState=pointer) for _ in range(2))
    sampler = ProxySampler(100.0)
    sampler.close()
    for data in (parent, child):
        sampler.watch((71, ctypes.addressof(data)), memory, layout)
    (place,) = sampler._places.values()
    for clock in range(4):
        proxy_sampler._sample(place, float(clock))
    for data in (parent, child):
        found = sampler.pop_shares((71, ctypes.addressof(data)))
        assert found is not None
        assert (found.active, found.steps, found.receive_from, found.unsent) == (1.0, None, None, None)


@pytest.mark.parametrize(
    ("visible", "device", "gpu"), [("", 3, "3"), ("6, 4,2", 1, "4"), ("GPU-71aa,GPU-93bb", 1, "1"), ("5", 4, "4")]
)
def test_findings_4_5_a_device_is_a_gpu_of_the_machine(visible: str, device: int, gpu: str) -> None:
    """CUDA numbers the devices that a process may see; the machine numbers all."""
    trainer = TrainingProcess(Process(71, 7), "0", visible_gpus({"CUDA_VISIBLE_DEVICES": visible}))
    assert trainer.gpu_at(device) == gpu


@pytest.mark.parametrize(
    ("devices", "gpus"), [({0x700: 0, 0x800: 1, 0x900: 1}, ["5", "4", "4"]), ({0x700: 2, 0x800: 2}, [])]
)
def test_findings_4_5_each_communicator_has_its_own_gpu(devices: dict[int, int], gpus: list[str]) -> None:
    """Where a process has communicators on several GPUs each has its own; else the process's GPU stands."""
    entries = np.array([(71, comm) for comm in devices], [("tgid", "<u8"), ("comm", "<u8")])
    identify = lambda process, comm: Identity(0xFEED, 0, 8, devices[comm])  # noqa: E731
    source: Any = SimpleNamespace(_inspector=SimpleNamespace(identify=identify))
    living = {71: TrainingProcess(Process(71, 7), "7", ("5", "4", "3"))}
    assert list(Nccl._gpus(source, entries, living).values()) == gpus


def test_findings_4_5_a_grown_communicator_is_known_from_its_birth() -> None:
    """A rank that joins says which it will be; one that was there is numbered by memory."""
    communicators = Communicators("m3")
    stream(communicators, event(GROW, out=0x500, ranks=9, rank=8), event(BORN, out=0x500, comm=0x7100))
    stream(communicators, event(GROW, out=0x600, ranks=9, rank=-1), event(BORN, out=0x600, comm=0x7200))
    new, old = communicators.known[501, 0x7100], communicators.known[501, 0x7200]
    assert (new.rank, new.ranks, new.born) == (8, 9, True)
    assert (old.rank, old.ranks, old.born) == (None, 9, True)


def test_findings_4_5_a_revoked_communicator_is_left_alone() -> None:
    """What was revoked has nothing under way and leaves nothing behind; another one at its address is another one."""
    communicators = joined("m1", 0)
    stream(communicators, event(REVOKE, comm=0x7000))
    assert communicators.is_revoked(501, 0x7000)
    assert communicators.known[501, 0x7000].ended
    stream(communicators, event(INIT, out=0x100, ranks=2, rank=1), event(BORN, out=0x100, comm=0x7000))
    assert not communicators.is_revoked(501, 0x7000)


def test_findings_4_5_signals_go_from_rank_to_rank() -> None:
    """One-sided operations differ between ranks by nature, as Send and Recv do; collectives do not."""
    kinds = np.array([f"{name}:f32:3" for name in OPERATIONS])
    between = set(kinds[is_point_to_point(kinds)])
    assert between == {f"{name}:f32:3" for name in ("Send", "Recv", "PutSignal", "Signal", "WaitSignal")}


@pytest.mark.parametrize(
    ("version", "counts_calls", "words"),
    [
        (None, True, ["structures are not known"]),
        ("2.21.5+cuda12.4", False, ["nothing counts calls", "the rank that a transfer waits for"]),
        ("2.27.3+cuda12.9", False, []),
        ("2.32.3+cuda12.9", True, []),
    ],
)
def test_findings_4_5_what_is_not_read_is_said(version: str | None, counts_calls: bool, words: list[str]) -> None:
    """A library says what cannot be read of its version; a libcudart has no such gaps."""
    layout = LAYOUTS[version] if version else None
    functions = {CALLS: {64: "ncclAllReduce"}}
    library = Library("8:1:2", "/x/libnccl.so.2", layout=layout, counts_calls=counts_calls, functions=functions)
    assert len(library.unread) == len(words)
    assert all(word in gap for word, gap in zip(words, library.unread, strict=True))
    assert Library("8:1:3", "/x/libcudart.so.12").unread == ()
    library.waits_unseen = True
    assert len(library.unread) == len(words) + 1
