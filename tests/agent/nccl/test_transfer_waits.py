"""Which chunks a GPU waits for: of the operation that it is at, not of one that it has not come to."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from agent.nccl.connections import Connection
from agent.nccl.transfer_waits import NO_RANK, Sub, TransferWaits
from agent.process.struct_reader import NO_MEMBER

SIMPLE = 2


@dataclass
class Tails:
    """Connections of which the GPU has made so many steps ready; None: it cannot be read."""

    ready: int | None = None
    asked: list[Connection] = field(default_factory=list)

    def ready_steps(self, connection: Connection) -> int | None:
        """As of the real ones."""
        self.asked.append(connection)
        return self.ready


def looks(*subs: tuple[int, bool, Sub], ready: int | None = 640) -> TransferWaits:
    """A look at these: opCount, whether it sends, members."""
    waits = TransferWaits(Tails(ready), active=True)  # type: ignore[arg-type]
    for operation, sends, sub in subs:
        waits.add(sub, Connection(sends, 3, 0xABC0), SIMPLE, operation)
    return waits


def send(peer: int, sent: int, done: int, channel: int = 5, base: int = 640) -> Sub:
    """To that rank: 7 steps from step 640 on."""
    return Sub(17, 7, peer, base, 7, 0, sent, done, channel)


def receipt(peer: int, received: int = 0, taken: int = 0, channel: int = 5) -> Sub:
    """From that rank: 7 steps, of which 4 have a buffer."""
    return Sub(19, 7, peer, 320, 4, received, received, taken, channel)


def pair(place: int) -> int:
    """OpCount of a Send or Recv."""
    return 2 * place + 1


def test_what_comes_for_a_later_operation_is_not_awaited() -> None:
    """Buffers for the next Recv are there before the GPU has taken what the first one brought: it is late itself."""
    lies = (pair(41), False, receipt(2, 3, 1))
    seen = looks(lies, (pair(43), False, receipt(6))).transfers()
    assert (seen.receiving, seen.receive_from, seen.awaiting_gpu) == (False, NO_RANK, True)
    taken = looks((pair(41), False, receipt(2, 7, 7)), (pair(43), False, receipt(6))).transfers()
    assert (taken.receiving, taken.receive_from, taken.awaiting_gpu) == (True, 6, False)


@pytest.mark.parametrize(
    ("first", "second"), [((pair(41), 5), (pair(43), 8)), ((pair(41), 5), (46, 5)), ((NO_MEMBER, 5), (NO_MEMBER, 5))]
)
def test_where_no_order_is_known_all_that_has_not_come_is_awaited(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    """Each channel counts its own Sends and Recvs, collectives are counted apart, and some layouts have no count."""
    lies = (first[0], False, receipt(2, 3, 1, first[1]))
    seen = looks(lies, (second[0], False, receipt(6, channel=second[1]))).transfers()
    assert (seen.receiving, seen.receive_from) == (True, 6)


def test_collectives_come_one_after_the_other_whatever_their_channels() -> None:
    """While the GPU has more to send of one collective, nothing is awaited for the next."""
    seen = looks((82, True, send(2, 4, 4, 0)), (84, False, receipt(6, channel=9)), ready=644).transfers()
    assert not seen.receiving
    through = looks((82, True, send(2, 7, 5, 0)), (84, False, receipt(6, channel=9))).transfers()
    assert (through.sending, through.receiving) == (True, True)


@pytest.mark.parametrize(("ready", "waits"), [(640, False), (643, True), (None, True)])
def test_a_gpu_that_sends_nothing_of_a_group_has_not_come_to_it(ready: int | None, waits: bool) -> None:
    """Send and Recv of one group begin together: with nothing ready to be sent the GPU still computes, and is late."""
    seen = looks((pair(51), True, send(2, 0, 0)), (pair(51), False, receipt(6)), ready=ready).transfers()
    assert (seen.receiving, seen.receive_from) == (waits, 6 if waits else NO_RANK)
    assert seen.awaiting_gpu == (not waits)
    assert seen.credit_from == (2 if ready == 643 else NO_RANK)


def test_a_rank_of_a_collective_may_have_to_receive_before_it_sends() -> None:
    """As in a broadcast: there nothing ready to be sent does not tell that the GPU has not come."""
    assert looks((96, True, send(2, 0, 0)), (96, False, receipt(6))).transfers().receiving
