"""The server of /metrics: what it answers, and that clients who mean harm gain nothing."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from agent.system.rights import give_up
from store.exposition import endpoint as module
from store.exposition.config import MetricsConfig, OtlpConfig
from store.exposition.endpoint import CONNECTIONS, REQUEST_BYTES, Endpoint
from tests.servers import free_port


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A server of a large text that gives each client a second."""
    monkeypatch.setattr(module, "LONGEST_S", 1.0)
    monkeypatch.setattr(module, "REUSE_S", 0.0)
    made = Endpoint(
        f"127.0.0.1:{free_port()}", "metrics.listen", lambda form: b"text " * 400_000 if form else b"plain\n"
    )
    yield made
    made.close()


def ask(endpoint: Endpoint, path: str = "/metrics", accept: str = "") -> tuple[int, str, bytes]:
    """Status, type and body."""
    request = urllib.request.Request(f"http://127.0.0.1:{endpoint.port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
        return answer.status, answer.headers["Content-Type"], answer.read()


def raw(endpoint: Endpoint, request: bytes) -> bytes:
    """The whole answer to these bytes."""
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as connection:
        connection.sendall(request)
        found = b""
        while chunk := connection.recv(1 << 16):
            found += chunk
    return found


def test_the_reader_chooses_the_form(endpoint: Endpoint) -> None:
    """OpenMetrics for who asks for it, else the older text; a query string does not matter."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
    status, kind, body = ask(endpoint, accept=accept)
    assert (status, kind, len(body)) == (200, module.OPENMETRICS, 2_000_000)
    assert ask(endpoint, "/metrics?x=1") == (200, module.PLAIN, b"plain\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nx: ".ljust(REQUEST_BYTES, b"y"), b"400"),
    ],
)
def test_other_requests_are_refused(endpoint: Endpoint, request_: bytes, status: bytes) -> None:
    """Another path, another method, no HTTP, and a head without an end each get their answer."""
    assert raw(endpoint, request_).split()[1] == status


def test_head_has_no_body(endpoint: Endpoint) -> None:
    """HEAD tells the length alone."""
    head, _, body = raw(endpoint, b"HEAD /metrics HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Content-Length: 6" in head
    assert body == b""


def test_slow_clients_shut_no_client_out(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three times as many silent and dripping clients as there is room for, a reader is served before they end."""
    monkeypatch.setattr(module, "LONGEST_S", 4.0)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", endpoint.port))) for _ in range(3 * CONNECTIONS)
        ]
        for client in clients[::2]:
            client.send(b"GET /metrics HT")
        begun = time.monotonic()
        assert ask(endpoint)[0] == 200
        assert time.monotonic() - begun < module.LONGEST_S
        time.sleep(module.LONGEST_S + 0.2)  # longer than any of them may take
        for client in clients:
            client.settimeout(5)
            with suppress(ConnectionResetError):  # it had sent something that was not read
                assert client.recv(10) == b""
        assert ask(endpoint)[0] == 200


def test_a_client_that_reads_nothing_is_closed(endpoint: Endpoint) -> None:
    """An answer that is not fetched is given up after the time for an exchange."""
    with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n")
        time.sleep(1.3)
        assert not endpoint._open
        assert ask(endpoint)[0] == 200


def test_at_rest_it_costs_nothing(endpoint: Endpoint) -> None:
    """Without a request its thread does not wake up, once it has finished the last one."""
    ask(endpoint)
    (thread,) = (one for one in threading.enumerate() if one is endpoint._thread)
    status = Path(f"/proc/self/task/{thread.native_id}/status")

    def rests() -> bool:
        before = [line for line in status.read_text().splitlines() if "ctxt_switches" in line]
        time.sleep(1.5)
        return [line for line in status.read_text().splitlines() if "ctxt_switches" in line] == before

    assert any(rests() for _ in range(3))  # the end of the request may come late on a busy computer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")
def test_its_thread_has_no_capabilities() -> None:
    """The agent's server gives up every capability, and the rest of the process keeps them."""
    made = Endpoint(f"127.0.0.1:{free_port()}", "metrics.listen", lambda _: b"x", give_up)
    ask(made)
    effective = [
        next(line for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines() if "CapEff" in line)
        for task in (made._thread.native_id, threading.main_thread().native_id)
    ]
    made.close()
    assert effective[0].split()[1] == "0" * 16
    assert effective[1].split()[1] != "0" * 16


def test_an_address_that_is_taken() -> None:
    """Where it cannot listen, one line says the setting, the address and why."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"metrics.listen: cannot listen on {listen}: Address already in use"):
            Endpoint(listen, "metrics.listen", lambda _: b"")


@pytest.mark.parametrize("listen", ["9464", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000", "a b:1", "http://x:1"])
def test_addresses_are_checked(listen: str) -> None:
    """What is no address and port is refused with the name of the setting."""
    with pytest.raises(ValueError, match=r"metrics\.detector_listen is"):
        MetricsConfig(detector_listen=listen)
    with pytest.raises(ValueError, match=r"otlp\.endpoint is"):
        OtlpConfig(endpoint=f"ftp://{listen}")


def test_an_error_in_the_text_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A defect ends the server with a trace in the log and nothing else."""
    made = Endpoint(f"127.0.0.1:{free_port()}", "metrics.listen", lambda _: b"%d" % int("x"))
    with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
        ask(made)
    made.close()
    assert "metrics can no longer be read here" in caplog.text
