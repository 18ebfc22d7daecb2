"""What the transfers of one proxy wait for: the network, the GPU, or the operation before."""

from __future__ import annotations

from typing import NamedTuple

from agent.nccl.connections import Connection, Connections
from agent.process.struct_reader import NO_MEMBER

NO_RANK = -1
_LL = 0
"""NCCL_PROTO_LL (src/include/nccl_device.h): its GPUs write no tail."""
_CHANNELS, _COLLECTIVES = 1024, -2
_UNSENT = 32
"""Waiting transfers of which the GPU's progress is read, one system call each."""
_MOST_READY = 64
"""A GPU is at most NCCL_STEPS (8) ahead of the network: a tail that says more is torn."""


class Sub(NamedTuple):
    """Members of ncclProxySubArgs."""

    connection: int
    steps: int
    peer: int
    base: int
    posted: int
    received: int
    transmitted: int
    done: int
    channel: int


class Transfers(NamedTuple):
    """The state of a proxy's transfers in one sample; some are made at each, so they are tuples."""

    active: bool = False
    """An operation is at work, be it only waiting for the other ranks."""
    sending: bool = False
    """A chunk was handed to the network and is not yet through."""
    receiving: bool = False
    """A chunk is awaited from the network by a GPU that has come to its operation, as far as is known, and has taken
    what came before or is held up by what it sends."""
    send_to: int = NO_RANK
    """To which rank; of several the least advanced."""
    receive_from: int = NO_RANK
    """From which rank; of several the least advanced."""
    awaiting_gpu: bool = False
    """A transfer is not at its end, the network has nothing to do, and the GPU is not known to have data ready."""
    credit_from: int = NO_RANK
    """The rank that gives no credit: the GPU has a chunk ready for it, and the network does not accept it."""
    channel: int | None = None
    """The channel of the least advanced transfer that waits for the network ..."""
    net_device: int | None = None
    """... and its network device, by its number in NCCL's own list."""


class _Turn(NamedTuple):
    """The place of an operation among those that the GPU does one after the other."""

    lane: int
    """_COLLECTIVES, or the channel of a Send or Recv."""
    place: int


class _Wait(NamedTuple):
    """A transfer that waits, and for which rank."""

    progress: int
    """Steps, for the choice of the least advanced."""
    peer: int
    channel: int | None
    connection: Connection
    turn: _Turn | None
    lies: bool = False
    """Of a receipt: the GPU has not taken what came before."""
    due: int | None = None
    """Of what is to be sent, the step that comes next; None: the GPU writes no tail that tells when it is ready."""
    begins: bool = False
    """Of what is to be sent: that step is the first of a Send, which waits for nothing but its GPU."""


class TransferWaits:
    """The transfers of one look at a proxy's list."""

    def __init__(self, connections: Connections, active: bool = False) -> None:
        self._connections, self._active = connections, active
        self._sends, self._receipts, self._unsent = list[_Wait](), list[_Wait](), list[_Wait]()
        self._gpu_takes = False
        self._due = dict[int, int]()
        """By lane, the place of the first operation that the GPU is not through with."""
        self._known: Transfers | None = None

    def add(self, sub: Sub, connection: Connection, protocol: int, operation: int) -> None:
        """Note a transfer, with ncclProxyArgs.protocol and its opCount."""
        turn, is_left = _turn(operation, sub.channel), False
        if connection.sends:
            is_left = self._add_send(sub, connection, protocol, turn)
        elif connection.sends is not None:
            is_left = self._add_receipt(sub, connection, turn)
        if is_left and turn:
            self._due[turn.lane] = min(turn.place, self._due.get(turn.lane, turn.place))

    def _add_send(self, sub: Sub, connection: Connection, protocol: int, turn: _Turn | None) -> bool:
        """Note what is on its way, and what the network has no work for; whether the GPU has more to send."""
        sent, done = sub.transmitted, sub.done
        if sent > done:
            self._sends.append(_Wait(done, sub.peer, _channel(sub), connection, turn))
        elif sent == done < sub.steps and len(self._unsent) < _UNSENT:
            due = None if protocol in (_LL, NO_MEMBER) else sub.base + sent
            begins = turn is not None and turn.lane != _COLLECTIVES and not sent
            self._unsent.append(_Wait(done, sub.peer, _channel(sub), connection, turn, due=due, begins=begins))
        return sent < sub.steps

    def _add_receipt(self, sub: Sub, connection: Connection, turn: _Turn | None) -> bool:
        """Note what is awaited; whether the GPU has more to take."""
        lies, is_left = sub.received > sub.done, sub.done < sub.steps
        if sub.posted > sub.received:
            self._receipts.append(_Wait(sub.received, sub.peer, _channel(sub), connection, turn, lies))
        self._gpu_takes |= (lies or sub.posted == sub.received) and is_left
        return is_left

    def transfers(self) -> Transfers:
        """What they are at now: the GPU's own progress is read at each call."""
        if not self._unsent:
            self._known = self._known or self._seen(self._awaited(frozenset()))
            return self._known
        ahead = [(one, self._ahead(one)) for one in self._unsent]
        ready = [one for one, steps in ahead if steps is not None and 0 < steps <= _MOST_READY]
        not_come_to = frozenset(one.turn for one, steps in ahead if one.begins and steps is not None and steps <= 0)
        seen, least = self._seen(self._awaited(not_come_to)), _least_advanced(ready)
        is_idle = not seen.sending and not seen.receiving
        if len(ready) < len(ahead):
            seen = seen._replace(awaiting_gpu=is_idle)
        if least is None:
            return seen
        seen = seen._replace(credit_from=least.peer)
        return seen._replace(channel=least.channel, net_device=least.connection.net_device) if is_idle else seen

    def _ahead(self, one: _Wait) -> int | None:
        """Steps that the GPU has made ready for the network; None: not known."""
        ready = self._connections.ready_steps(one.connection) if one.due is not None else None
        return None if ready is None or one.due is None else ready - one.due

    def _awaited(self, not_come_to: frozenset[_Turn | None]) -> list[_Wait]:
        """The receipts that the GPU waits for: buffers are offered to the network long before it comes to them.

        It has not come to an operation of which it could send and does not, nor to one behind what it is not through
        with.
        """
        awaited = [
            one
            for one in self._receipts
            if one.turn is None
            or (one.turn not in not_come_to and one.turn.place <= self._due.get(one.turn.lane, one.turn.place))
        ]
        # A GPU that takes nothing and sends nothing is late: it is others that wait.
        return awaited if self._sends else [one for one in awaited if not one.lies]

    def _seen(self, awaited: list[_Wait]) -> Transfers:
        """What the network is at."""
        send, receipt = _least_advanced(self._sends), _least_advanced(awaited)
        first = send or receipt
        return Transfers(
            self._active,
            send is not None,
            receipt is not None,
            send.peer if send else NO_RANK,
            receipt.peer if receipt else NO_RANK,
            self._gpu_takes and first is None,
            channel=first.channel if first else None,
            net_device=first.connection.net_device if first else None,
        )


def _turn(operation: int, channel: int) -> _Turn | None:
    """Where `ncclProxyArgs.opCount` puts an operation; None: not known.

    Its lowest bit is 1 for Send and Recv, which each channel counts for itself; collectives are counted over all.
    """
    if operation == NO_MEMBER:
        return None
    return _Turn(channel if operation & 1 else _COLLECTIVES, operation >> 1)


def _channel(sub: Sub) -> int | None:
    return sub.channel if 0 <= sub.channel < _CHANNELS else None


def _least_advanced(waits: list[_Wait]) -> _Wait | None:
    return min(waits, key=lambda wait: wait.progress, default=None)
