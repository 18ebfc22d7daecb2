"""Orders to agents: written as events, read cheaply from a file and from InfluxDB."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.influx.config import InfluxConfig
from store.schema.contract import StoreError
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from store.zoom_requests import FileOrders, Order, ServerOrders, open_orders, orders_in
from tests.store.conftest import influx

SECOND = 10**9
NOW = time.time_ns()
ORDER = Order(NOW, "rdma", 12.5, NOW + 20 * SECOND)


def batches() -> list[Batch]:
    """Two orders for one machine, one for another, and events that are none."""
    later = replace(ORDER, time=NOW + 3, source="gpu")
    told = Sample("event", {"source": "operator", "code": "zoom", "severity": "info", "message": "host"})
    return [Batch("m'1 a", NOW, (ORDER.sample(), later.sample(), told)), Batch("m2", NOW, (ORDER.sample(),))]


def test_from_a_file(tmp_path: Path) -> None:
    """A machine's own orders later than a time, in order of time; none before the first one is given."""
    place = tmp_path / "s.db"
    orders = open_orders(str(place), InfluxConfig(), "m'1 a")
    assert isinstance(orders, FileOrders)
    with pytest.raises(StoreError, match="orders cannot be read"):
        orders.read(0)
    store = Embedded(place)
    assert orders.read(0) == []
    store.write(batches())
    assert orders.read(NOW - 1) == [ORDER, replace(ORDER, time=NOW + 3, source="gpu")]
    assert orders.read(NOW) == [replace(ORDER, time=NOW + 3, source="gpu")]
    orders.close()
    store.close()


def test_from_influxdb(database: Callable[[], str]) -> None:
    """The same from a real server, whatever signs the machine's name has."""
    place = database()
    store, orders = influx(place), open_orders(place, InfluxConfig(), "m'1 a")
    assert isinstance(orders, ServerOrders)
    assert orders.read(0) == []
    store.write(batches())
    assert orders.read(NOW) == [replace(ORDER, time=NOW + 3, source="gpu")]
    assert [order.source for order in orders.read(0)] == ["rdma", "gpu"]
    orders.close()
    store.close()


@pytest.mark.parametrize("body", ["[]", "{", '{"results": 3}', '{"results": [{"series": [{"values": [[1, 2]]}]}]}'])
def test_a_server_that_answers_nonsense(body: str) -> None:
    """It is one line, and no order."""
    with pytest.raises(StoreError, match="holds no orders that can be read") as caught:
        orders_in(body.encode())
    assert "\n" not in str(caught.value)


def test_rows_that_are_no_orders(tmp_path: Path) -> None:
    """What lacks a number, or has an absurd one, is passed over."""
    store = Embedded(tmp_path / "s.db")
    for hertz, until in ((None, NOW), (5.0, None)):
        row = {"source": "detector", "code": "zoom", "message": "gpu", "hertz": hertz, "until": until}
        store.write([Batch("m7", NOW, (Sample("event", row),))])
    assert FileOrders(tmp_path / "s.db", "m7").read(0) == []
    store.close()
