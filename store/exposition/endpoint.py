"""A small HTTP server for /metrics: one thread that sleeps until somebody asks.

It reads requests of whoever can reach the address, so everything is bounded: connections, bytes, and the time that one
may take. Where all connections are taken the oldest is closed for a new one, so that clients that send nothing cannot
shut others out.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from store.exposition.config import host_and_port
from store.exposition.openmetrics import OPENMETRICS, PLAIN

log = logging.getLogger(__name__)

CONNECTIONS = 16
REQUEST_BYTES = 8192
LONGEST_S = 5.0
"""For a whole exchange; a reader of metrics sends its request at once."""
REUSE_S = 0.5
"""For so long a text is given out again: a flood of requests does not make a flood of work."""


@dataclass(slots=True)
class _Exchange:
    socket: socket.socket
    deadline: float
    request: bytes = b""
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


class Endpoint:
    """Serves what `text` returns for OpenMetrics (True) and plain text (False). Raises OSError: it cannot listen.

    `prepare` is called first in the server's thread, such as to give up rights.
    """

    def __init__(
        self, listen: str, key: str, text: Callable[[bool], bytes], prepare: Callable[[], None] = lambda: None
    ) -> None:
        host, port = host_and_port(listen, key)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, port), family=family, backlog=CONNECTIONS)
        except OSError as error:
            raise OSError(f"{key}: cannot listen on {listen}: {error.strerror or error}") from error
        self.port: int = self._listening.getsockname()[1]
        self._text, self._prepare = text, prepare
        self._made: dict[bool, tuple[float, bytes]] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._open: dict[int, _Exchange] = {}
        for one in (self._listening, self._woken):
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and close all connections."""
        self._wake.close()
        self._thread.join(LONGEST_S)

    def _run(self) -> None:
        try:
            self._prepare()
            while self._round():
                pass
        except Exception:
            log.exception("metrics can no longer be read here")
        finally:
            for one in (self._listening, self._woken, *(each.socket for each in self._open.values())):
                one.close()
            self._selector.close()

    def _round(self) -> bool:
        """Wait and serve what is ready; False: the end. Without connections it waits without a limit."""
        deadline = min((one.deadline for one in self._open.values()), default=None)
        ready = self._selector.select(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        for key, _ in ready:
            if key.fileobj is self._woken:
                return False
            if key.fileobj is self._listening:
                self._accept()
            elif (exchange := self._open.get(key.fd)) is not None:
                self._advance(exchange)
        now = time.monotonic()
        for exchange in [one for one in self._open.values() if one.deadline <= now]:
            self._drop(exchange)
        return True

    def _accept(self) -> None:
        with suppress(OSError):  # the client is gone already, or no descriptor is left: the next one may do
            connection, _ = self._listening.accept()
            if len(self._open) >= CONNECTIONS:
                self._drop(min(self._open.values(), key=lambda one: one.deadline))
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._open[connection.fileno()] = _Exchange(connection, time.monotonic() + LONGEST_S)

    def _drop(self, exchange: _Exchange) -> None:
        del self._open[exchange.socket.fileno()]
        self._selector.unregister(exchange.socket)
        exchange.socket.close()

    def _advance(self, exchange: _Exchange) -> None:
        try:
            if exchange.answer:
                exchange.answer = exchange.answer[exchange.socket.send(exchange.answer) :]
                if not exchange.answer:
                    self._drop(exchange)
                return
            chunk = exchange.socket.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._drop(exchange)
            return
        exchange.request += chunk
        if not chunk:
            self._drop(exchange)
        elif b"\r\n\r\n" in exchange.request or len(exchange.request) >= REQUEST_BYTES:
            exchange.answer = memoryview(self._answer(exchange.request))
            self._selector.modify(exchange.socket, selectors.EVENT_WRITE)

    def _answer(self, request: bytes) -> bytes:
        head, ended, _ = request.partition(b"\r\n\r\n")
        line, *headers = head.decode("latin-1").split("\r\n")
        words = line.split(" ")
        if not ended or len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response("400 Bad Request", b"not an HTTP request that this server understands\n")
        if words[0] not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n", "Allow: GET, HEAD\r\n")
        if words[1].split("?")[0] != "/metrics":
            return _response("404 Not Found", b"there is /metrics\n")
        accepted = (
            value.lower() for name, _, value in (one.partition(":") for one in headers) if name.lower() == "accept"
        )
        openmetrics = any("application/openmetrics-text" in value for value in accepted)
        answer = _response("200 OK", self._made_text(openmetrics), kind=OPENMETRICS if openmetrics else PLAIN)
        return answer if words[0] == "GET" else answer[: answer.index(b"\r\n\r\n") + 4]

    def _made_text(self, openmetrics: bool) -> bytes:
        made, text = self._made.get(openmetrics, (0.0, b""))
        if time.monotonic() - made > REUSE_S:
            text = self._text(openmetrics)
            self._made[openmetrics] = time.monotonic(), text
        return text


def _response(status: str, body: bytes, more: str = "", kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode("latin-1") + body
