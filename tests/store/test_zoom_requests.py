"""Zoom requests to agents: written as events, read cheaply from a file and from InfluxDB."""

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
from store.zoom_requests import FileZoomRequests, ServerZoomRequests, ZoomRequest, open_zoom_requests, zoom_requests_in
from tests.store.conftest import influx

SECOND = 10**9
NOW = time.time_ns()
REQUEST = ZoomRequest(NOW, "rdma", 12.5, NOW + 20 * SECOND)


def batches() -> list[Batch]:
    """Two requests for one machine, one for another, and events that are none."""
    later = replace(REQUEST, time=NOW + 3, source="gpu")
    options = Sample("event", {"source": "operator", "code": "zoom", "severity": "info", "message": "host"})
    return [Batch("m'1 a", NOW, (REQUEST.sample(), later.sample(), options)), Batch("m2", NOW, (REQUEST.sample(),))]


def test_from_a_file(tmp_path: Path) -> None:
    """A machine reads its own requests later than a time, in order of time, and none before the first is written."""
    place = tmp_path / "s.db"
    requests = open_zoom_requests(str(place), InfluxConfig(), "m'1 a")
    assert isinstance(requests, FileZoomRequests)
    with pytest.raises(StoreError, match="zoom requests cannot be read"):
        requests.read(0)
    store = Embedded(place)
    assert requests.read(0) == []
    store.write(batches())
    assert requests.read(NOW - 1) == [REQUEST, replace(REQUEST, time=NOW + 3, source="gpu")]
    assert requests.read(NOW) == [replace(REQUEST, time=NOW + 3, source="gpu")]
    requests.close()
    store.close()


def test_from_influxdb(database: Callable[[], str]) -> None:
    """The same from a real server, whatever signs the machine's name has."""
    place = database()
    store, requests = influx(place), open_zoom_requests(place, InfluxConfig(), "m'1 a")
    assert isinstance(requests, ServerZoomRequests)
    assert requests.read(0) == []
    store.write(batches())
    assert requests.read(NOW) == [replace(REQUEST, time=NOW + 3, source="gpu")]
    assert [request.source for request in requests.read(0)] == ["rdma", "gpu"]
    requests.close()
    store.close()


@pytest.mark.parametrize("body", ["[]", "{", '{"results": 3}', '{"results": [{"series": [{"values": [[1, 2]]}]}]}'])
def test_a_server_that_answers_nonsense(body: str) -> None:
    """The error is one line."""
    with pytest.raises(StoreError, match="holds no readable zoom requests") as caught:
        zoom_requests_in(body.encode())
    assert "\n" not in str(caught.value)


def test_invalid_rows_are_ignored(tmp_path: Path) -> None:
    """A row without one of its numbers is no request."""
    store = Embedded(tmp_path / "s.db")
    for hertz, until in ((None, NOW), (5.0, None)):
        row = {"source": "detector", "code": "zoom", "message": "gpu", "hertz": hertz, "until": until}
        store.write([Batch("m7", NOW, (Sample("event", row),))])
    assert FileZoomRequests(tmp_path / "s.db", "m7").read(0) == []
    store.close()
