"""What a stream between agents and the store costs: on a real server, readings of machines with 8 GPUs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from store.line_protocol.write import lines_of, pack
from store.nats.config import NatsConfig, stream_of
from store.nats.stream import Stream
from store.schema.contract import Store
from store.schema.sample import Batch
from store.spool.queue import Spool
from store.spool.sender import Sender
from store.sqlite.embedded import Embedded
from store.transfer.stream_writer import Writer
from tests import servers
from tests.servers import ServerProcess
from tests.store.bench.test_bench import reading, spent, timed
from tests.store.conftest import influx

pytestmark = pytest.mark.bench

MACHINES, SECONDS, CALLERS = 100, 40, 1000


def resident(server: ServerProcess) -> int:
    """Bytes of memory that a server holds."""
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_bench_nats(tmp_path: Path) -> None:
    """Readings from a spool through a stream into InfluxDB and into a file: all of them, and the times are printed."""
    begin = time.time_ns()
    batches = [
        Batch(f"m{machine:03}", begin + second * 10**9, reading(machine, second).samples)
        for second in range(SECONDS)
        for machine in range(MACHINES)
    ]
    server, database = servers.nats(tmp_path), servers.influxd(tmp_path)
    server.start()
    database.start()
    stream = Stream(stream_of(f"{server.url}/s"), NatsConfig(keep_bytes=10**9))
    spool = Spool(tmp_path / "spool", 10**9, 1e6)
    print()
    with timed("encode and put into the spool", len(batches), "reading"):
        for batch in batches:
            spool.put(lines_of([batch]), batch.time)
    size = spool.line_counts().waiting_bytes / len(batches)
    print(f"{size:.0f} bytes a reading, packed, of {len(lines_of(batches[:1]))} rows")
    before = spent(server)
    with timed("publish from the spool", len(batches), "reading"):
        Sender(spool, stream, 1.0).send()
    print(f"nats-server: {(spent(server) - before) / len(batches) * 1e6:.0f} µs of CPU a reading")
    assert spool.line_counts().sent == sum(len(batch.samples) for batch in batches)
    before = spent(database), spent(server)
    _carry(stream, influx(f"{database.url}/metrics"), "influxdb", len(batches))
    print(f"influxd: {(spent(database) - before[0]) / len(batches) * 1e6:.0f} µs of CPU a reading", end="; ")
    print(f"nats-server: {(spent(server) - before[1]) / len(batches) * 1e6:.0f} µs")
    _carry(stream, Embedded(tmp_path / "a.db"), "file", len(batches))
    for one in (stream, spool):
        one.close()
    for process in (server, database):
        process.kill()


def _carry(stream: Stream, store: Store, name: str, count: int) -> None:
    writer = Writer(stream, store, name)
    with timed(f"write into {name}", count, "reading"):
        while writer.step(0.2):
            pass
    assert writer.written == count
    assert store.read("host").num_rows == count
    store.close()


def test_bench_nats_callers(tmp_path: Path) -> None:
    """A thousand agents that are connected and publish one after the other; what each takes of the server's memory."""
    server = servers.nats(tmp_path)
    server.start()
    body = pack(lines_of([reading(1, 3)]))
    stream = Stream(stream_of(f"{server.url}/s"), NatsConfig(keep_bytes=10**9))
    assert stream.write(body).good
    idle = resident(server)
    callers = [_caller(server.port) for _ in range(CALLERS)]
    before = spent(server)
    print()
    with timed("publish, an agent a connection", CALLERS, "reading"):
        for number, caller in enumerate(callers):
            _published(caller, number, body)
    print(f"nats-server: {(spent(server) - before) / CALLERS * 1e6:.0f} µs of CPU a reading", end="; ")
    print(f"{(resident(server) - idle) / CALLERS / 1e3:.0f} kB an agent, its connection and {len(body)} bytes stored")
    assert stream.consumer_state("w").waiting == CALLERS + 1
    for caller in callers:
        caller.close()
    stream.close()
    server.kill()


def _caller(port: int) -> socket.socket:
    caller = socket.create_connection(("127.0.0.1", port))
    caller.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB answer%d 1\r\nPING\r\n' % caller.fileno())
    _until(caller, lambda said: b"PONG" in said)
    return caller


def _published(caller: socket.socket, number: int, body: bytes) -> None:
    head = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number
    sizes = b"%d %d" % (len(head), len(head) + len(body))
    caller.sendall(b"HPUB s.lines answer%d %b\r\n%b%b\r\n" % (caller.fileno(), sizes, head, body))
    _until(caller, lambda said: b'"seq"' in said)


def _until(caller: socket.socket, enough: Callable[[bytes], bool]) -> None:
    said = b""
    while not enough(said):
        said += caller.recv(65536)
