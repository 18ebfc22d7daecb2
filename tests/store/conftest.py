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
from store.recording import Recording
from store.schema.contract import Store
from store.schema.sample import Batch
from store.schema.time import LATEST
from store.sqlite.embedded import Embedded
from store.transfer.export import export
from tests import servers
from tests.servers import ServerProcess

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
    """A function that gives the address of a fresh database, whose rows may be of any time."""
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


@pytest.fixture(params=["embedded", "recording", "influx", *(["given"] if GIVEN else [])])
def fill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fill]:
    """A function that gives back a fresh store, of each kind in turn, which holds these batches."""
    opened: list[Store] = []
    database = request.getfixturevalue("database") if request.param == "influx" else None

    given = request.getfixturevalue("given") if request.param == "given" else None

    def make(batches: list[Batch]) -> Store:
        if database is not None or given is not None:
            opened.append(given() if given is not None else influx(database()))
            opened[-1].write(batches)
            return opened[-1]
        place = tmp_path / f"{next(NUMBER)}"
        store: Store = Embedded(place.with_suffix(".db"))
        opened.append(store)
        for batch in batches:
            store.write([batch])
        if request.param == "recording":
            export(store, place, (0, LATEST))
            store = Recording(place)
            opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def rows(store: Store, table: str, after: int = 0, until: int = LATEST) -> list[dict[str, object]]:
    """Rows of a table without what is null."""
    found = store.read(table, after, until).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in found]
