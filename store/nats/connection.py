"""A connection to the servers of a JetStream stream, begun when it is needed. The one door to nats-py.

https://docs.nats.io/nats-concepts/jetstream
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, DiscardPolicy, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from store.nats.config import NatsConfig, StreamAddress
from store.transport.answers import NO_ANSWER, Answer
from store.transport.tokens import warn_if_readable

log = logging.getLogger(__name__)
T = TypeVar("T")

FAILURES = (NatsError, OSError, asyncio.TimeoutError)
"""What `call` raises for all that servers and network do."""
DUPLICATES_S = 120.0
"""For so long the server remembers ids, in its memory."""
PENDING = 20_000
_IN_USE = 10058
"""JetStream's word for: a stream of this name is there, and keeps its messages in another way."""


class TooLargeError(NatsError):
    """A message is larger than the server takes."""


class Connection:
    """A connection to one stream, in a thread of its own. The next call reconnects after a loss.

    Raises StoreError: no such token.
    """

    def __init__(self, address: StreamAddress, config: NatsConfig) -> None:
        self.address, self.config = address, config
        self.fresh = True
        """Whether nothing was said yet to be published on it."""
        self.known = 0
        """The newest message of the time when the writer began to take from it."""
        self._token = config.token()
        for server in address.servers[:1]:  # all have one scheme
            warn_if_readable(server, self._token)
        self._client: Client | None = None
        self._context: JetStreamContext | None = None
        self._pulls: dict[str, JetStreamContext.PullSubscription] = {}
        self._trouble = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nats", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], extra_s: float = 0.0) -> T:
        """The result of this work; what hangs on a connection that is dead ends with asyncio.TimeoutError."""
        limit_s = 2 * self.config.timeout_seconds + extra_s  # a connection may have to be begun first
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, limit_s), self._loop).result()

    def answer(self, error: BaseException) -> Answer:
        """What went wrong, as the answer of a server."""
        why = _line(error)
        said = f"{why} {self._trouble}"
        if isinstance(error, TooLargeError):
            return Answer(413, "a message is larger than the server takes")
        if "authorization" in said.lower():
            return Answer(401, why)
        if isinstance(error, NoStreamResponseError) or getattr(error, "code", None) == 503:
            self._context = None  # the stream is gone, or its server has not yet found its leader
            return Answer(503, why)
        if isinstance(error, APIError):
            return Answer(error.code or 500, error.description or why)
        return Answer(NO_ANSWER, self._trouble if isinstance(error, NoServersError) and self._trouble else why)

    def close(self) -> None:
        """Release the connection."""
        if self._loop.is_closed():
            return
        try:
            self.call(self._disconnect())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def client(self) -> Client:
        """The connection itself."""
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

    async def jetstream(self) -> JetStreamContext:
        """What publishes and asks; the stream is there, or was begun."""
        client = await self.client()
        if self._context is None:
            context = client.jetstream(timeout=self.config.timeout_seconds)
            try:
                await context.stream_info(self.address.stream)
            except NotFoundError:
                await self._begin(context)
            self._context = context
        return self._context

    async def if_there(self) -> JetStreamContext | None:
        """The same where the stream is there, and None where it is not: it is not begun."""
        context = (await self.client()).jetstream(timeout=self.config.timeout_seconds)
        try:
            await context.stream_info(self.address.stream)
        except NotFoundError:
            return None
        return context

    async def pull(self, name: str) -> JetStreamContext.PullSubscription:
        """What takes messages for the writer of this name."""
        context = await self.jetstream()
        if name not in self._pulls:
            how = ConsumerConfig(
                ack_policy=AckPolicy.EXPLICIT, ack_wait=self.config.settle_seconds, max_ack_pending=PENDING
            )
            stream = self.address.stream
            # A server that was killed forgets what it has delivered last: only what comes from now on is surely new.
            self.known = (await context.stream_info(stream)).state.last_seq
            self._pulls[name] = await context.pull_subscribe(self.address.subject, name, stream=stream, config=how)
        return self._pulls[name]

    async def pull_from(self, number: int) -> JetStreamContext.PullSubscription:
        """What gives all messages from this one on, whoever had them; it is gone soon after the last question."""
        how = ConsumerConfig(
            ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=number
        )
        context = await self.jetstream()
        return await context.pull_subscribe(self.address.subject, stream=self.address.stream, config=how)

    async def _begin(self, context: JetStreamContext) -> None:
        """Make the stream; where another agent was quicker there is nothing to do."""
        config = self.config
        how = StreamConfig(
            self.address.stream,
            subjects=[self.address.subject],
            max_age=config.keep_seconds,
            max_bytes=config.keep_bytes,
            duplicate_window=min(DUPLICATES_S, config.keep_seconds),
            discard=DiscardPolicy.OLD,
            num_replicas=config.replicas,
        )
        try:
            await context.add_stream(how)
        except APIError as error:
            if error.err_code != _IN_USE:
                raise
        else:
            log.info("%s is new; it keeps readings for %g s", self.address, config.keep_seconds)

    async def _disconnect(self) -> None:
        client, self._client, self._context = self._client, None, None
        self._pulls.clear()
        self.fresh = True
        if client is not None:
            await client.close()
            await asyncio.sleep(0)  # lets the transport close its socket

    async def _hear(self, error: Exception) -> None:
        self._trouble = _line(error)

    def _tls(self) -> ssl.SSLContext | None:
        if not self.address.servers[0].startswith("tls://"):
            return None
        return ssl.create_default_context(cafile=self.config.ca_file or None)


def _credentials(token: str) -> dict[str, Any]:
    if not token:
        return {}
    user, colon, password = token.partition(":")
    return {"user": user, "password": password} if colon else {"token": token}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
