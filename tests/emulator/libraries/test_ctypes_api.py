"""The emulated libraries as callers see them, several ranks in this one process."""

import ctypes
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.libraries.build import Libraries
from emulator.shared.errors import CallError
from emulator.training.ctypes_api import FLOAT32, NOT_READY, SUM, Calls, Dim3, communicator_config, pointer_array

INVALID_ARGUMENT, INVALID_USAGE = 4, 5
MAGIC = 0x0280028002800280


@pytest.fixture(scope="module")
def calls(libraries: Libraries) -> Calls:
    """The door to both libraries."""
    return Calls(libraries.cudart, libraries.nccl)


class Team:
    """Communicators of several ranks in this one process, each with a stream."""

    def __init__(self, calls: Calls, ranks: int) -> None:
        self.calls = calls
        self.communicators = (ctypes.c_void_p * ranks)()
        calls("ncclCommInitAll", self.communicators, ranks, None)
        self.streams = [calls.make("cudaStreamCreate") for _ in range(ranks)]

    def reduce(self, rank: int, count: int, name: str = "ncclAllReduce") -> None:
        """Enqueue a reduction on one rank."""
        self.calls(name, None, None, count, FLOAT32, SUM, self.communicators[rank], self.streams[rank])

    def pending(self) -> list[bool]:
        """Which streams have unfinished work."""
        return [self.calls.result("cudaStreamQuery", stream) == NOT_READY for stream in self.streams]

    def abort(self) -> None:
        """Abort all communicators."""
        for communicator in self.communicators:
            self.calls("ncclCommAbort", communicator)


@pytest.fixture
def team(calls: Calls) -> Iterator[Team]:
    """Three ranks."""
    made = Team(calls, 3)
    yield made
    for stream in made.streams:
        calls("cudaStreamDestroy", stream)


def test_kernel_lasts_as_long_as_set(calls: Calls) -> None:
    """A launch returns at once, the stream is busy, and synchronizing waits for the given duration."""
    stream = calls.make("cudaStreamCreate")
    seconds = ctypes.c_double(0.15)
    one = Dim3(1, 1, 1)
    start = time.monotonic()
    calls("cudaLaunchKernel", None, one, one, pointer_array([ctypes.addressof(seconds)]), 0, stream)
    assert calls.result("cudaStreamQuery", stream) == NOT_READY
    calls("cudaStreamSynchronize", stream)
    assert time.monotonic() - start > 0.14
    calls("cudaStreamDestroy", stream)


def test_event_is_done_after_the_work_before_it(calls: Calls) -> None:
    """An event answers not ready until its stream has come to it; a second stream can wait for it."""
    first, second = calls.make("cudaStreamCreate"), calls.make("cudaStreamCreate")
    event = calls.make("cudaEventCreate")
    seconds = ctypes.c_double(0.08)
    calls("cudaGraphLaunch", ctypes.addressof(seconds), first)
    calls("cudaEventRecord", event, first)
    calls("cudaStreamWaitEvent", second, event, 0)
    assert calls.result("cudaEventQuery", event) == NOT_READY
    assert calls.result("cudaStreamQuery", second) == NOT_READY
    calls("cudaStreamSynchronize", second)
    calls("cudaEventQuery", event)
    for name, handle in (("cudaEventDestroy", event), ("cudaStreamDestroy", first), ("cudaStreamDestroy", second)):
        calls(name, handle)


def test_copy_moves_the_bytes(calls: Calls) -> None:
    """Memory that cudaMalloc gave holds what was copied there and gives it back."""
    device = calls.make("cudaMalloc", 11)
    there, back = ctypes.create_string_buffer(b"peerwatch!"), ctypes.create_string_buffer(11)
    calls("cudaMemcpy", device, there, 11, 1)
    calls("cudaMemcpyAsync", back, device, 11, 2, None)
    calls("cudaDeviceSynchronize")
    assert back.value == b"peerwatch!"
    calls("cudaFree", device)


def test_collective_ends_when_the_last_rank_has_come(calls: Calls, team: Team) -> None:
    """A collective stays pending until all ranks called it, then completes on all of them."""
    team.reduce(0, 41)
    team.reduce(1, 41)
    time.sleep(0.05)
    assert team.pending() == [True, True, False]
    team.reduce(2, 41)
    for stream in team.streams:
        calls("cudaStreamSynchronize", stream)
    for communicator in team.communicators:
        calls("ncclCommDestroy", communicator)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("name", "count"), [("ncclReduceScatter", 53), ("ncclAllReduce", 54)])
def test_mismatch_hangs_until_abort(calls: Calls, team: Team, name: str, count: int) -> None:
    """Another operation or another count on one rank leaves all pending, without an error, until they abort."""
    team.reduce(0, 53)
    team.reduce(1, 53)
    team.reduce(2, count, name)
    time.sleep(0.1)
    error = ctypes.c_int(-1)
    calls("ncclCommGetAsyncError", team.communicators[0], ctypes.byref(error))
    assert (team.pending(), error.value) == ([True, True, True], 0)
    team.abort()
    for stream in team.streams:
        calls("cudaStreamSynchronize", stream)


def test_send_and_receive_meet_inside_a_group(calls: Calls, team: Team) -> None:
    """Two ranks that send to and receive from each other in one group both complete; a third is not involved."""
    for rank, peer in ((0, 1), (1, 0)):
        calls("ncclGroupStart")
        for name in ("ncclSend", "ncclRecv"):
            calls(name, None, 17, FLOAT32, peer, team.communicators[rank], team.streams[rank])
        calls("ncclGroupEnd")
    for stream in team.streams:
        calls("cudaStreamSynchronize", stream)
    team.abort()


def test_receive_without_send_stays_pending(calls: Calls, team: Team) -> None:
    """A receive waits for the matching send of the named peer and for no other."""
    calls("ncclRecv", None, 19, FLOAT32, 2, team.communicators[0], team.streams[0])
    calls("ncclRecv", None, 19, FLOAT32, 0, team.communicators[1], team.streams[1])
    calls("ncclSend", None, 19, FLOAT32, 1, team.communicators[0], calls.make("cudaStreamCreate"))
    calls("cudaStreamSynchronize", team.streams[1])
    assert team.pending() == [True, False, False]
    team.abort()


def test_single_rank_completes_alone(calls: Calls) -> None:
    """A communicator of one rank needs no other; its query functions say so."""
    alone = Team(calls, 1)
    alone.reduce(0, 23)
    calls("cudaStreamSynchronize", alone.streams[0])
    number = ctypes.c_int(-1)
    calls("ncclCommCount", alone.communicators[0], ctypes.byref(number))
    assert number.value == 1
    made = ctypes.c_void_p()
    calls("ncclCommSplit", alone.communicators[0], 5, 0, ctypes.byref(made), communicator_config())
    calls("ncclCommDestroy", made)
    alone.abort()


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("ncclAllReduce", (None, None, 3, FLOAT32, SUM, None, None), INVALID_ARGUMENT),
        ("ncclCommCount", (None, None), INVALID_ARGUMENT),
        ("ncclCommInitRank", (None, 2, bytes(128), 0), INVALID_ARGUMENT),
        ("ncclGroupEnd", (), INVALID_USAGE),
        ("cudaSetDevice", (7,), 101),
        ("cudaEventQuery", (None,), 400),
    ],
)
def test_wrong_arguments_get_the_real_codes(calls: Calls, name: str, arguments: tuple[Any, ...], code: int) -> None:
    """Bad arguments are refused with the codes of the real libraries."""
    if name == "ncclCommInitRank":
        arguments = (*arguments[:2], calls.function(name).argtypes[2].from_buffer_copy(arguments[2]), arguments[3])
    assert calls.result(name, *arguments) == code


def test_wrong_data_type_or_peer_is_refused(calls: Calls, team: Team) -> None:
    """A data type or a peer that does not exist is an invalid argument, and nothing is enqueued."""
    communicator, stream = team.communicators[0], team.streams[0]
    assert calls.result("ncclAllReduce", None, None, 3, 12, SUM, communicator, stream) == INVALID_ARGUMENT
    assert calls.result("ncclSend", None, 3, FLOAT32, 3, communicator, stream) == INVALID_ARGUMENT
    assert team.pending() == [False, False, False]
    team.abort()


def test_counts_are_by_name_and_over_threads(libraries: Libraries) -> None:
    """Every call made through the door is counted, whatever it answered."""
    fresh = Calls(libraries.cudart, libraries.nccl)
    fresh("ncclGroupStart")
    fresh("ncclGroupEnd")
    for _ in range(3):
        fresh.result("ncclCommAbort", None)
    assert fresh.totals() == {"ncclCommAbort": 3, "ncclGroupEnd": 1, "ncclGroupStart": 1}


def test_missing_library_or_function_is_named(libraries: Libraries) -> None:
    """A library that is not there and a function that no library has are one-line errors."""
    with pytest.raises(CallError, match=r"can't load a library: /nowhere/libnccl.so.2"):
        Calls(Path("/nowhere/libnccl.so.2"))
    with pytest.raises(CallError, match="none of the libraries has ncclNonsense"):
        Calls(libraries.nccl).function("ncclNonsense")


@pytest.fixture(scope="module")
def word_at(offsets: Callable[[str], dict[str, int]]) -> Callable[[int, str, str], int]:
    """Reads a 64-bit member of a structure in memory."""

    def read(address: int, structure: str, member: str) -> int:
        return int.from_bytes(ctypes.string_at(address + offsets(structure)[member], 8), "little")

    return read


def test_structure_reads_through_dwarf(team: Team, word_at: Callable[[int, str, str], int]) -> None:
    """Offsets from DWARF lead to the magic words, the rank, the size, and a hash that all ranks share."""
    team.reduce(1, 31)
    hashes = set()
    for rank, communicator in enumerate(team.communicators):
        hashes.add(word_at(communicator, "ncclComm", "commHash"))
        assert word_at(communicator, "ncclComm", "startMagic") == MAGIC
        assert word_at(communicator, "ncclComm", "endMagic") == MAGIC
        assert word_at(communicator, "ncclComm", "rank") & 0xFFFFFFFF == rank
        assert word_at(communicator, "ncclComm", "nRanks") & 0xFFFFFFFF == 3
        assert word_at(communicator, "ncclComm", "opCount") == (rank == 1)
    assert len(hashes) == 1
    team.abort()


def test_proxy_shows_the_operation_that_waits(
    team: Team, offsets: Callable[[str], dict[str, int]], word_at: Callable[[int, str, str], int]
) -> None:
    """A rank alone in a collective shows a send and a receive: the network takes the first chunk; then none."""
    team.reduce(2, 37)
    time.sleep(0.1)
    proxy = word_at(team.communicators[2], "ncclComm", "proxyState")
    progress = proxy + offsets("ncclProxyState")["progressState"]
    args = word_at(progress, "ncclProxyProgressState", "active")
    seen = []
    while args:
        sub = args + offsets("ncclProxyArgs")["subs"]
        seen.append([word_at(sub, "ncclProxySubArgs", name) for name in ("posted", "transmitted", "done", "end")])
        args = word_at(args, "ncclProxyArgs", "next")
    assert seen == [[4, 1, 1, 4], [4, 0, 0, 4]]
    team.reduce(0, 37)
    team.reduce(1, 37)
    for stream in team.streams:
        team.calls("cudaStreamSynchronize", stream)
    assert word_at(progress, "ncclProxyProgressState", "active") == 0
    team.abort()
