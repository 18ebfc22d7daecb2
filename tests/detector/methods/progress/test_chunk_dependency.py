"""Chunks: from what each rank of a hang waits for, which link or GPU it comes from."""

from __future__ import annotations

import numpy as np
import pytest

from detector.methods.progress.chunk_dependency import NO_PEER, ChunkWaitGraph, RootCause
from detector.topology.rank_table import NO_RANK, SOME_RANK, UNKNOWN, resolve_peer

SIZE = 6


def ring(
    sends: dict[int, int], free: tuple[int, ...] = (), comms: int = 1, credit: dict[int, int] | None = None
) -> ChunkWaitGraph:
    """`comms` rings of the same six processes; all wait for the rank before them, but those that are `free`."""
    rank = np.tile(np.arange(SIZE, dtype=float), comms)
    before = (rank - 1) % SIZE
    sends_to = np.full(SIZE * comms, -1.0)
    for sender, receiver in sends.items():
        sends_to[sender] = receiver
    credit_from = np.full(SIZE * comms, -1.0)
    for sender, receiver in (credit or {}).items():
        credit_from[sender] = receiver
    receives = np.where(np.isin(rank, free), -1.0, before)
    comm = np.repeat(np.arange(comms), SIZE)
    return ChunkWaitGraph(
        comm,
        np.tile(np.arange(SIZE), comms),
        rank,
        np.ones(SIZE * comms, bool),
        sends_to,
        receives,
        credit_from,
        np.zeros(SIZE * comms, bool),
    )


def test_a_chunk_under_way_names_its_link() -> None:
    """The root cause is the one rank with a chunk that does not arrive, and its receiver."""
    assert ring({2: 3}).root_cause() == RootCause(2, 3, "link", False, 1)


def test_a_chunk_for_an_unknown_peer_names_no_other_end() -> None:
    """An unknown peer gives no rank, least of all a rank of another communicator."""
    rank, comm = np.tile(np.arange(4.0), 2), np.repeat([0, 1], 4)
    for senders, root in (([5], RootCause(5, NO_PEER, "link", False, 1)), ([5, 6], None)):
        sends_to = np.full(8, float(NO_RANK))
        sends_to[senders] = SOME_RANK
        still, unknown = np.ones(8, bool), np.full(8, float(UNKNOWN))
        assert ChunkWaitGraph(comm, np.arange(8), rank, still, sends_to, unknown, unknown, ~still).root_cause() == root


def test_two_links_with_a_common_end_name_that_end() -> None:
    """A port that is down holds up what comes in and what goes out: the machine that both links end at is meant."""
    root = ring({3: 4, 4: 5}).root_cause()
    assert root is not None
    assert (root.place, root.links) == (4, 2)
    assert ring({1: 5, 4: 5}).root_cause() == RootCause(5, 1, "link", True, 2)


def test_many_links_name_no_rank() -> None:
    """Chunks that stop on links everywhere give no root cause: the network between them is the cause."""
    assert ring({0: 1, 2: 3, 4: 5}).root_cause() is None


def test_whoever_is_waited_for_and_waits_for_no_data_has_an_idle_gpu() -> None:
    """The wait for data ends, with no chunk under way, at the rank with a GPU that sends nothing."""
    assert ring({}, free=(4,)).root_cause() == RootCause(4, NO_PEER, "gpu", False, 0)


def test_a_receiver_that_gives_no_credit_is_named_and_not_the_gpu_of_its_sender() -> None:
    """Data that is ready and not taken blocks at its receiver; so does a row of ranks that wait for credit."""
    assert ring({}, free=(3, 4), credit={3: 4}).root_cause() == RootCause(4, NO_PEER, "gpu", False, 0)
    assert ring({}, free=(2, 3, 4), credit={2: 3, 3: 4}).root_cause() == RootCause(4, NO_PEER, "gpu", False, 0)
    alone = ring({}, free=tuple(range(SIZE)), credit={3: 4})
    assert alone.root_cause() == RootCause(4, NO_PEER, "gpu", True, 0)


def test_a_chunk_that_is_ready_and_awaited_is_not_sent_by_its_sender() -> None:
    """The receiver has its buffers ready, so that credit is there: the network of the sender is the cause."""
    assert ring({}, free=(3,), credit={3: 4}).root_cause() == RootCause(3, 4, "link", False, 1)


@pytest.mark.parametrize("free", [(), (1, 4)])
def test_a_wait_without_one_end_names_no_rank(free: tuple[int, ...]) -> None:
    """A circle of waits, and waits with several ends, give no root cause."""
    assert ring({}, free=free).root_cause() is None


def test_unknown_states_name_no_rank() -> None:
    """Unknown states give no root cause: no rank is known to wait for nothing."""
    chunks = ring({}, free=(3,))
    chunks.receives_from[3] = -2.0
    assert chunks.root_cause() is None


def test_a_receiver_that_is_not_seen_leaves_the_sender() -> None:
    """The root cause is the sender where its receiver lies on a machine without an agent."""
    chunks = ring({2: 3})
    chunks.rank[3] = np.nan
    assert chunks.root_cause() == RootCause(2, NO_PEER, "link", False, 1)


def test_ranks_of_other_communicators_are_not_mixed_up() -> None:
    """The same rank number in another communicator is another end."""
    assert ring({8: 3}, comms=2).root_cause() == RootCause(8, 9, "link", False, 1)


def test_states_without_peers_are_taken_from_looks() -> None:
    """A state that all looks found counts without the name of an unread peer; a peer that is read stays."""
    peer, share = np.array([UNKNOWN, UNKNOWN, UNKNOWN, 5.0, NO_RANK]), np.array([0.97, 0.02, 0.4, 0.0, 0.99])
    assert resolve_peer(peer, share).tolist() == [SOME_RANK, NO_RANK, UNKNOWN, 5.0, NO_RANK]


def test_a_sender_is_named_without_its_receiver() -> None:
    """The root cause is a rank that sends to an unknown peer."""
    chunks = ring({})
    chunks.sends_to[3] = SOME_RANK
    assert chunks.root_cause() == RootCause(3, NO_PEER, "link", False, 1)
