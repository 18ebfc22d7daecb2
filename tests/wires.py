"""What stands between a program and a server in tests: a wire that is cut or hangs, a server that follows a script."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, str, dict[str, str]]
"""Status, body, headers."""


class Wire:
    """A TCP proxy on loopback: `through` passes on, `cut` refuses and resets, `hang` takes and gives nothing.

    `half` ends each answer of the server in its midst; `slow_s` lets each wait.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.mode = "through"
        self.slow_s = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset what is open and take nothing new."""
        self.mode = "cut"
        while self._open:
            self._reset(self._open.pop())

    def close(self) -> None:
        """End for good."""
        self.cut()
        self._listener.close()

    @staticmethod
    def _reset(end: socket.socket) -> None:
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other side was quicker
        finally:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._open.append(near)
            if self.mode == "cut":
                self.cut()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                self._reset(near)
                continue
            self._open.append(far)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other, one is far), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, answers: bool) -> None:
        try:
            while piece := one.recv(1 << 16):
                if self.mode == "hang":
                    continue
                if answers and self.mode == "half":
                    other.sendall(piece[: len(piece) // 2])
                    self._reset(one)
                    self._reset(other)
                    return
                time.sleep(self.slow_s if answers else 0.0)
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return  # cut


class Scripted:
    """An HTTP server that answers writes as `reply` says and keeps what it took: for what no real one here does."""

    def __init__(self, reply: Callable[[list[bytes]], Reply] = lambda lines: (204, "", {})) -> None:
        self.reply = reply
        self.received: list[bytes] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            protocol_version = "HTTP/1.1"
            wbufsize = -1  # an answer in two packets would wait for an acknowledgement in between

            def do_POST(self) -> None:
                """A write."""
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append((self.path, dict(self.headers)))
                lines = gzip.decompress(body).splitlines() if self.headers["Content-Encoding"] == "gzip" else [body]
                status, text, headers = outer.reply(lines)
                if status == 204:
                    outer.received += lines
                self._answer(status, text, headers)

            def do_GET(self) -> None:
                """A ping."""
                outer.asked.append((self.path, dict(self.headers)))
                self._answer(204, "", {"X-Influxdb-Version": "v2.7.1"})

            def _answer(self, status: int, text: str, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()
