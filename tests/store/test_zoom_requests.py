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
from store.signed import Signed, zoom_key
from store.sqlite.embedded import Embedded
from store.zoom_requests import (
    FileZoomRequests,
    ServerZoomRequests,
    ZoomKey,
    ZoomRequest,
    open_zoom_requests,
    zoom_requests_in,
)
from tests.store.conftest import influx

SECOND = 10**9
NOW = time.time_ns()
KEY = b"5" * 40
REQUEST = ZoomRequest(NOW, "rdma", 12.5, NOW + 20 * SECOND)


def batches() -> list[Batch]:
    """Two requests for one machine, one for another, and events that are none."""
    later = replace(REQUEST, time=NOW + 3, source="gpu")
    options = Sample("event", {"source": "operator", "code": "zoom", "severity": "info", "message": "host"})
    return [Batch("m'1 a", NOW, (REQUEST.sample(), later.sample(), options)), Batch("m2", NOW, (REQUEST.sample(),))]


def test_from_a_file(tmp_path: Path) -> None:
    """A machine reads its own requests later than a time, in order of time, and none before the first is written."""
    place = tmp_path / "s.db"
    requests = open_zoom_requests(str(place), InfluxConfig(), ZoomKey("m'1 a"))
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


def test_a_stated_begin_is_signed(tmp_path: Path, database: Callable[[], str]) -> None:
    """A request with a begin comes back with it, also beside those without, and another begin breaks the signature."""
    file, place = str(tmp_path / "s.db"), database()
    key = machines_key(tmp_path / "1", "m3")
    for where, store in ((file, Embedded(tmp_path / "s.db")), (place, influx(place))):
        Signed(store, KEY).write([Batch("m3", NOW, (REQUEST.sample(),))])
        requests = open_zoom_requests(where, InfluxConfig(), key)
        assert requests.read(0) == [REQUEST]
        profile = replace(REQUEST, time=NOW + 5, source="profile", begin=NOW + 11 * SECOND)
        Signed(store, KEY).write([Batch("m3", NOW, (profile.sample(),))])
        found = requests.read(0)
        assert found == [REQUEST, profile]
        assert [key.signed(one) for one in found] == [True, True]
        assert not key.signed(replace(found[1], begin=NOW + 12 * SECOND))
        requests.close()
        store.close()


def test_from_influxdb(database: Callable[[], str]) -> None:
    """The same from a real server, whatever signs the machine's name has."""
    place = database()
    store, requests = influx(place), open_zoom_requests(place, InfluxConfig(), ZoomKey("m'1 a"))
    assert isinstance(requests, ServerZoomRequests)
    assert requests.read(0) == []
    store.write(batches())
    assert requests.read(NOW) == [replace(REQUEST, time=NOW + 3, source="gpu")]
    assert [request.source for request in requests.read(0)] == ["rdma", "gpu"]
    requests.close()
    store.close()


def machines_key(file: Path, machine: str) -> ZoomKey:
    """The key of a machine, as an operator puts it there."""
    file.write_bytes(zoom_key(KEY, machine) + b"\n")
    return ZoomKey(machine, str(file))


def test_the_detector_signs_for_one_machine(tmp_path: Path, database: Callable[[], str]) -> None:
    """In each store a request has a signature that its machine's key confirms, and no key of another machine does."""
    file, place = str(tmp_path / "s.db"), database()
    key = machines_key(tmp_path / "1", "m'1 a")
    for where, store in ((file, Embedded(tmp_path / "s.db")), (place, influx(place))):
        Signed(store, KEY).write(batches())
        store.write([Batch("m'1 a", NOW, (replace(REQUEST, time=NOW + 7, hertz=3.0).sample(),))])
        found = open_zoom_requests(where, InfluxConfig(), key).read(0)
        assert [key.signed(one) for one in found] == [True, True, False]
        assert not any(machines_key(tmp_path / "2", "m2").signed(one) for one in found)
        assert not key.signed(replace(found[0], hertz=12.0))
        store.close()


def test_where_the_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is named comes first, then the credential, then the detector's own key; without one it is said."""
    (tmp_path / "signing").write_bytes(KEY)
    store = Embedded(tmp_path / "s.db")
    Signed(store, KEY).write([Batch("m2", NOW, (REQUEST.sample(),))])
    own = ZoomKey("m2", signing_key_file=str(tmp_path / "signing"))
    (request,) = FileZoomRequests(tmp_path / "s.db", own).read(0)
    assert own.signed(request)
    with pytest.raises(StoreError, match="peerwatch config zoom-key"):
        ZoomKey("m2", signing_key_file=str(tmp_path / "none")).signed(request)
    (tmp_path / "zoom-key").write_bytes(b"0" * 64)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert not own.signed(request)
    assert machines_key(tmp_path / "named", "m2").signed(request)
    store.close()


HUGE = f'{{"results": [{{"series": [{{"values": [[1, "host", 1{"0" * 400}, 2, null, null]]}}]}}]}}'
SHORT = '{"results": [{"series": [{"values": [[1, 2]]}]}]}'


@pytest.mark.parametrize("body", ["[]", "{", '{"results": 3}', HUGE, SHORT])
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
    assert FileZoomRequests(tmp_path / "s.db", ZoomKey("m7")).read(0) == []
    store.close()
