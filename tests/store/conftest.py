"""Stores of every kind behind one way to fill them, and rows as plain dictionaries."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.influx.config import InfluxConfig, address_of
from store.influx.influxql import Influx
from store.influx.server import Server
from store.line_protocol.write import lines_of, pack
from store.machine_filter import MachineFilter
from store.nats.config import NatsConfig, stream_of
from store.nats.stream import Stream
from store.recording import Recording
from store.schema.contract import Store
from store.schema.sample import Batch, Sample
from store.schema.time import LATEST
from store.signed import Signed
from store.sqlite.embedded import Embedded
from store.transfer.export import export
from store.transfer.stream_writer import Writer
from tests import servers
from tests.servers import NatsProcess, ServerProcess

NUMBER = itertools.count()
Fill = Callable[[list[Batch]], Store]


@pytest.fixture(scope="session")
def influx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A real InfluxDB 1 for the whole session."""
    server = servers.influxd(tmp_path_factory.mktemp("influxd"))
    server.start()
    yield server
    server.kill(signal.SIGTERM)


GIVEN = os.environ.get("PEERWATCH_TEST_INFLUXDB", "")
"""A server of somebody's own, http://server:8086, on which the store's contract is tried too; its token is taken from
PEERWATCH_TOKEN, and of InfluxDB 2 its organisation from PEERWATCH_TEST_ORG. Databases or buckets of the tests' own
(peerwatch_test_…) are made there and removed."""
ORG = os.environ.get("PEERWATCH_TEST_ORG", "")


@pytest.fixture
def given() -> Iterator[Callable[[], Influx]]:
    """A function that opens a fresh database or bucket of that server."""
    stores: list[Influx] = []

    def make() -> Influx:
        name = f"peerwatch_test_{os.getpid()}_{next(NUMBER)}"
        store = influx(f"{GIVEN}/{name}", org=ORG, keep_days=36500)
        if store.server.dialect() == "v2" and ORG:
            store.server._through_client().buckets_api().create_bucket(bucket_name=name, org=ORG)
        stores.append(store)
        return store

    yield make
    for store in stores:
        name = store.server.address.database
        if store.server.dialect() == "v2" and ORG:
            buckets = store.server._through_client().buckets_api()
            buckets.delete_bucket(buckets.find_bucket_by_name(name))
        else:
            store.server._pool.request("POST", f"{GIVEN}/query", fields={"q": f'DROP DATABASE "{name}"'})


@pytest.fixture
def database(influx_server: ServerProcess) -> Iterator[Callable[[], str]]:
    """A function that gives the address of a fresh database for rows of any time."""
    made: list[str] = []

    def make() -> str:
        made.append(f"d{next(NUMBER)}")
        # One shard for all times, or each row of a made-up time would begin one.
        influx_server.ask(f"CREATE DATABASE {made[-1]} WITH DURATION INF SHARD DURATION 106751d")
        return f"{influx_server.url}/{made[-1]}"

    yield make
    for name in made:
        influx_server.ask(f"DROP DATABASE {name}")


def influx(place: str, **options: Any) -> Influx:
    """The store at this address."""
    return Influx(Server(address_of(place), InfluxConfig(**options)))


def embedded(place: Path, batches: list[Batch]) -> Embedded:
    """An embedded store, written batch by batch."""
    store = Embedded(place.with_suffix(".db"))
    for batch in batches:
        store.write([batch])
    return store


def recording(place: Path, batches: list[Batch]) -> Recording:
    """A recording, exported from an embedded store."""
    source = embedded(place, batches)
    export(source, place, (0, LATEST))
    source.close()
    return Recording(place)


def signed(place: Path, batches: list[Batch]) -> Signed:
    """An embedded store with signed verdicts and orders."""
    store = Signed(Embedded(place.with_suffix(".db")), b"k" * 64)
    store.write(batches)
    return store


def one_part(place: Path, batches: list[Batch]) -> MachineFilter:
    """The part of an embedded store that holds these machines; another machine is beside it."""
    others = [Batch(batch.machine + "?", batch.time, (Sample("host", {}),)) for batch in batches]
    machines = frozenset(batch.machine.encode(errors="replace").decode() for batch in batches)
    return MachineFilter(embedded(place, [*batches, *(one for one in others if one.machine not in machines)]), machines)


def by_nats(server: NatsProcess, place: Path, batches: list[Batch]) -> Embedded:
    """An embedded store, written by way of a JetStream stream."""
    stream = Stream(stream_of(f"{server.url}/c{place.name}"), NatsConfig(keep_bytes=1_000_000, timeout_seconds=5.0))
    store = Embedded(place.with_suffix(".db"))
    lines = lines_of(batches)
    writer = Writer(stream, store, "w")
    stream.consumer_state("w")
    assert stream.write(pack(lines)).good
    while not writer.written:
        writer.step(1.0)
    stream.close()
    return store


def by_influx(address: str, batches: list[Batch]) -> Influx:
    """A database of a real InfluxDB."""
    store = influx(address)
    store.write(batches)
    return store


MAKERS: dict[str, Callable[[Path, list[Batch]], Store]] = {
    "embedded": embedded,
    "recording": recording,
    "signed": signed,
    "machine_filter": one_part,
}


@pytest.fixture(params=[*MAKERS, "influx", "nats", *(["given"] if GIVEN else [])])
def fill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fill]:
    """A function that returns a fresh store, of each kind in turn, which holds these batches."""
    opened: list[Store] = []
    needs = {"influx": "database", "nats": "nats_server", "given": "given"}.get(request.param)
    given = request.getfixturevalue(needs) if needs else None

    def make(batches: list[Batch]) -> Store:
        place = tmp_path / f"{next(NUMBER)}"
        if request.param == "given":
            opened.append(given())
            opened[-1].write(batches)
        elif request.param == "influx":
            opened.append(by_influx(given(), batches))
        elif request.param == "nats":
            opened.append(by_nats(given, place, batches))
        else:
            opened.append(MAKERS[request.param](place, batches))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsProcess]:
    """A real nats-server for the whole session."""
    server = servers.nats(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


def rows(store: Store, table: str, after: int = 0, until: int = LATEST) -> list[dict[str, object]]:
    """Rows of a table without what is null."""
    found = store.read(table, after, until).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in found]
