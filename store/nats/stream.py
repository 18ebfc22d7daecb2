"""A JetStream stream of packed lines: agents publish, durable consumers (writers) take.

A message is one post of a spool; its id is a hash of it, so that the server drops what is published again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from store.line_protocol.parse import members
from store.nats.config import NatsConfig, StreamAddress
from store.nats.connection import FAILURES, Connection, TooLargeError
from store.schema.contract import StoreError
from store.transport.answers import NO_ANSWER, Answer

T = TypeVar("T")

AGAIN = "Peerwatch-Again"
"""The header of a message that may be in the stream already, under an id that the server has forgotten."""


@dataclass(frozen=True, slots=True)
class Message:
    """One post on its way; `again`: it may have been written before."""

    sequence: int
    body: bytes
    again: bool
    foreign: Any


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """The state of a writer: messages that wait for it, messages that it took and did not settle yet, and messages that
    the stream dropped before it took them."""

    waiting: int
    unsettled: int
    lost: int
    asked: bool
    """Whether one asks for more at this moment."""


class Stream:
    """One stream. The first call connects; after a lost connection the next call connects again.

    Raises StoreError: no such token.
    """

    def __init__(self, address: StreamAddress, config: NatsConfig) -> None:
        self.address, self.config = address, config
        self._connection = Connection(address, config)

    def write(self, body: bytes) -> Answer:
        """Publish packed lines, a message each gzip member; good when the stream has all. Never raises for the net."""
        try:
            pieces = members(body)
        except StoreError as error:
            return Answer(400, str(error))
        try:
            self._connection.call(self._publish(pieces))
        except FAILURES as error:
            return self._connection.answer(error)
        self._connection.fresh = False
        return Answer(204)

    def take(self, name: str, most: int, wait_s: float) -> list[Message]:
        """Up to so many messages for the writer of this name, the oldest first; none if none came in time."""
        return [
            Message(one.metadata.sequence.stream, one.data, self._is_again(one), one)
            for one in self._asked(self._fetch(name, most, wait_s), wait_s)
        ]

    def take_from(self, number: int, most: int, wait_s: float) -> list[Message]:
        """Up to so many messages from this number on, whoever has written them, to be written again and not settled."""

        async def fetch() -> list[Any]:
            pull = await self._connection.pull_from(number)
            try:
                return list(await pull.fetch(most, timeout=wait_s))
            except asyncio.TimeoutError:
                return []
            finally:
                await pull.unsubscribe()

        found = self._asked(fetch(), wait_s)
        return [Message(one.metadata.sequence.stream, one.data, True, one) for one in found]

    def settle(self, messages: Sequence[Message]) -> None:
        """Acknowledge these messages as written: no writer receives them again."""

        async def acknowledge() -> None:
            for message in messages:
                await message.foreign.ack()
            await (await self._connection.client()).flush()

        self._asked(acknowledge())

    def consumer_state(self, name: str) -> ConsumerState:
        """The state of the writer of this name, which is created if it does not exist."""

        async def begun() -> None:
            await self._connection.pull(name)

        self._asked(begun())
        return self.writers()[name]

    def writers(self) -> dict[str, ConsumerState]:
        """The state of all writers, by name; empty if the stream does not exist."""

        async def look() -> dict[str, ConsumerState]:
            context = await self._connection.if_there()
            if context is None:
                return {}
            first = (await context.stream_info(self.address.stream)).state.first_seq
            found = await context.consumers_info(self.address.stream)
            return {one.name: _consumer_state(one, first) for one in found if one.config.durable_name}

        return self._asked(look())

    def message_count(self) -> int:
        """Number of messages in the stream; 0 if it does not exist, and then it is not created."""

        async def look() -> int:
            context = await self._connection.if_there()
            return 0 if context is None else (await context.stream_info(self.address.stream)).state.messages

        return self._asked(look())

    def explain(self, answer: Answer) -> str:
        """One line that names cause and mend; a token is never in it."""
        if answer.status == NO_ANSWER:
            return f"{self.address} does not answer: {answer.reason}; is the server up and the address right?"
        if answer.status == 401:
            return f"{self.address} refuses this token: nats.token_file must name one that is valid here"
        if answer.status == 503:
            return f"{self.address} keeps no streams ({answer.reason}): start nats-server with JetStream (-js)"
        if "insufficient storage" in answer.reason:
            return f"{self.address} has no room for a stream of that size ({answer.reason}): lower nats.keep_bytes"
        return f"{self.address} answers {answer.status}: {answer.reason}"

    def began(self) -> str:
        """Nothing: a kill of the server loses nothing that it acknowledged, so nothing is sent to it again."""
        return ""

    def close(self) -> None:
        """Release the connection."""
        self._connection.close()

    def _asked(self, work: Coroutine[Any, Any, T], extra_s: float = 0.0) -> T:
        try:
            return self._connection.call(work, extra_s)
        except FAILURES as error:
            raise StoreError(self.explain(self._connection.answer(error))) from error

    async def _publish(self, pieces: list[bytes]) -> None:
        context = await self._connection.jetstream()
        most = (await self._connection.client()).max_payload
        if max(map(len, pieces), default=0) > most:
            raise TooLargeError
        doubt = {AGAIN: "1"} if self._connection.fresh else {}
        sent = [
            context.publish(
                self.address.subject,
                piece,
                timeout=self.config.timeout_seconds,
                headers={"Nats-Msg-Id": blake2b(piece, digest_size=16).hexdigest(), **doubt},
            )
            for piece in pieces
        ]
        for found in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found

    async def _fetch(self, name: str, most: int, wait_s: float) -> list[Any]:
        pull = await self._connection.pull(name)
        try:
            return list(await pull.fetch(most, timeout=wait_s))
        except asyncio.TimeoutError:
            return []

    def _is_again(self, one: Any) -> bool:
        """Whether a message may have been taken before, or be in the stream twice."""
        delivery = one.metadata
        known = delivery.sequence.stream <= self._connection.known
        return known or (delivery.num_delivered or 1) > 1 or AGAIN in (one.headers or {})


def _consumer_state(writer: Any, first: int) -> ConsumerState:
    reached = writer.delivered.stream_seq if writer.delivered else 0
    lost = max(0, first - 1 - reached)
    return ConsumerState(writer.num_pending or 0, writer.num_ack_pending or 0, lost, bool(writer.num_waiting))
