"""A JetStream stream of packed lines: agents publish, writers take durably. The one door to nats-py.

A message is one post of a spool; its id is a hash of it, so that the server drops what is published again.
https://docs.nats.io/nats-concepts/jetstream
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from store.contract import StoreError
from store.influx_server import NO_ANSWER, Answer
from store.line_reader import members
from store.nats_config import NatsConfig, StreamAddress

log = logging.getLogger(__name__)
T = TypeVar("T")

AGAIN = "Peerwatch-Again"
"""The header of a message that may be in the stream already, under an id that the server has forgotten."""
DUPLICATES_S = 120.0
"""For so long the server remembers ids, in its memory."""
PENDING = 20_000
_IN_USE = 10058
"""JetStream's word for: a stream of this name is there, and keeps its messages in another way."""


@dataclass(frozen=True, slots=True)
class Message:
    """One post on its way; `again`: it may have been written before."""

    sequence: int
    body: bytes
    again: bool
    foreign: Any


@dataclass(frozen=True, slots=True)
class Standing:
    """How a writer stands: messages that wait for it, those that it took and did not settle yet, and those that the
    stream dropped before it came."""

    waiting: int
    unsettled: int
    lost: int


class Stream:
    """One stream. Nothing is asked of its servers before the first call; a lost connection is begun anew by the next.

    Raises StoreError: no such token.
    """

    def __init__(self, address: StreamAddress, config: NatsConfig) -> None:
        self.address, self.config = address, config
        self._token = config.token()
        self._client: Client | None = None
        self._context: JetStreamContext | None = None
        self._pulls: dict[str, JetStreamContext.PullSubscription] = {}
        self._trouble = ""
        self._doubt = True
        self._known = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()

    def write(self, body: bytes) -> Answer:
        """Publish packed lines, a message each gzip member; good when the stream has all. Never raises for the net."""
        try:
            self._call(self._publish(members(body)))
        except (NatsError, OSError, asyncio.TimeoutError) as error:
            return self._answer(error)
        self._doubt = False
        return Answer(204)

    def take(self, name: str, most: int, wait_s: float) -> list[Message]:
        """Up to so many messages for the writer of this name, the oldest first; none if none came in time."""
        found = self._asked(self._fetch(name, most, wait_s), wait_s)
        return [
            Message(
                one.metadata.sequence.stream,
                one.data,
                self._is_again(one),
                one,
            )
            for one in found
        ]

    def settle(self, messages: Sequence[Message]) -> None:
        """These are written: nobody is given them again."""

        async def acknowledge() -> None:
            for message in messages:
                await message.foreign.ack()
            await (await self._connected()).flush()

        self._asked(acknowledge())

    def standing(self, name: str) -> Standing:
        """How the writer of this name stands."""

        async def look() -> Standing:
            await self._pull(name)
            context = await self._jetstream()
            writer = await context.consumer_info(self.address.stream, name)
            first = (await context.stream_info(self.address.stream)).state.first_seq
            reached = writer.delivered.stream_seq if writer.delivered else 0
            lost = max(0, first - 1 - reached)
            return Standing(writer.num_pending or 0, writer.num_ack_pending or 0, lost)

        return self._asked(look())

    def kept(self) -> int:
        """How many messages the stream keeps; none where it is not there, and then it is not begun either."""

        async def look() -> int:
            context = (await self._connected()).jetstream(timeout=self.config.timeout_seconds)
            try:
                return (await context.stream_info(self.address.stream)).state.messages
            except NotFoundError:
                return 0

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
        """Let go of the connection."""
        if self._loop.is_closed():
            return
        try:
            self._call(self._disconnect())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T], extra_s: float = 0.0) -> T:
        """The result of this work; what hangs on a connection that is dead ends with asyncio.TimeoutError."""
        limit_s = 2 * self.config.timeout_seconds + extra_s  # a connection may have to be begun first
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, limit_s), self._loop).result()

    def _asked(self, work: Coroutine[Any, Any, T], extra_s: float = 0.0) -> T:
        try:
            return self._call(work, extra_s)
        except (NatsError, OSError, asyncio.TimeoutError) as error:
            raise StoreError(self.explain(self._answer(error))) from error

    async def _publish(self, pieces: list[bytes]) -> None:
        context = await self._jetstream()
        most = (await self._connected()).max_payload
        if max(map(len, pieces), default=0) > most:
            raise _TooLargeError
        sent = [self._send(context, piece) for piece in pieces]
        for found in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found

    async def _send(self, context: JetStreamContext, piece: bytes) -> None:
        headers = {"Nats-Msg-Id": blake2b(piece, digest_size=16).hexdigest(), **({AGAIN: "1"} if self._doubt else {})}
        subject = _subject(self.address.stream)
        await context.publish(subject, piece, timeout=self.config.timeout_seconds, headers=headers)

    async def _fetch(self, name: str, most: int, wait_s: float) -> list[Any]:
        pull = await self._pull(name)
        try:
            return list(await pull.fetch(most, timeout=wait_s))
        except asyncio.TimeoutError:
            return []

    async def _pull(self, name: str) -> JetStreamContext.PullSubscription:
        context = await self._jetstream()
        if name not in self._pulls:
            how = ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT, ack_wait=self.config.settle_seconds, max_ack_pending=PENDING
            )
            stream = self.address.stream
            # A server that was killed forgets what it has delivered last: only what comes from now on is surely new.
            self._known = (await context.stream_info(stream)).state.last_seq
            self._pulls[name] = await context.pull_subscribe(_subject(stream), name, stream=stream, config=how)
        return self._pulls[name]

    def _is_again(self, one: Any) -> bool:
        """Whether a message may have been taken before, or be in the stream twice."""
        known, told = one.metadata.sequence.stream <= self._known, one.metadata
        return known or (told.num_delivered or 1) > 1 or AGAIN in (one.headers or {})

    async def _jetstream(self) -> JetStreamContext:
        client = await self._connected()
        if self._context is None:
            context = client.jetstream(timeout=self.config.timeout_seconds)
            try:
                await context.stream_info(self.address.stream)
            except NotFoundError:
                await self._begin(context)
            self._context = context
        return self._context

    async def _begin(self, context: JetStreamContext) -> None:
        """Make the stream; where another agent was quicker there is nothing to do."""
        told, stream = self.config, self.address.stream
        try:
            await context.add_stream(
                StreamConfig(
                    stream,
                    subjects=[_subject(stream)],
                    max_age=told.keep_seconds,
                    max_bytes=told.keep_bytes,
                    duplicate_window=min(DUPLICATES_S, told.keep_seconds),
                    discard=DiscardPolicy.OLD,
                    num_replicas=told.replicas,
                )
            )
        except APIError as error:
            if error.err_code != _IN_USE:
                raise
        else:
            log.info("%s is new; it keeps readings for %g s", self.address, told.keep_seconds)

    async def _connected(self) -> Client:
        if self._client is None or not self._client.is_connected:
            await self._disconnect()
            self._trouble = ""
            self._client = Client()  # nats.connect() would not close what it could not fully open
            await self._client.connect(
                list(self.address.servers),
                name="peerwatch",
                error_cb=self._hear,
                connect_timeout=max(1, round(self.config.timeout_seconds)),
                allow_reconnect=False,  # the caller decides when it is time to try again
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                tls=self._tls(),
                **_credentials(self._token),
            )
        return self._client

    async def _disconnect(self) -> None:
        client, self._client, self._context = self._client, None, None
        self._pulls.clear()
        self._doubt = True
        if client is not None:
            await client.close()
            await asyncio.sleep(0)  # lets the transport close its socket

    async def _hear(self, error: Exception) -> None:
        self._trouble = _line(error)

    def _tls(self) -> ssl.SSLContext | None:
        if not self.address.servers[0].startswith("tls://"):
            return None
        return ssl.create_default_context(cafile=self.config.ca_file or None)

    def _answer(self, error: BaseException) -> Answer:
        why = _line(error)
        said = f"{why} {self._trouble}"
        if isinstance(error, _TooLargeError):
            return Answer(413, "a message is larger than the server takes")
        if "authorization" in said.lower():
            return Answer(401, why)
        if isinstance(error, NoStreamResponseError) or getattr(error, "code", None) == 503:
            self._context = None  # the stream is gone, or its server has not yet found its leader
            return Answer(503, why)
        if isinstance(error, APIError):
            return Answer(error.code or 500, error.description or why)
        return Answer(NO_ANSWER, self._trouble if isinstance(error, NoServersError) and self._trouble else why)


class _TooLargeError(NatsError):
    """A piece is larger than the server takes."""


def _subject(stream: str) -> str:
    return f"{stream}.lines"


def _credentials(token: str) -> dict[str, Any]:
    if not token:
        return {}
    user, colon, password = token.partition(":")
    return {"user": user, "password": password} if colon else {"token": token}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
