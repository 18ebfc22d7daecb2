"""Zoom requests of the detector to agents, rows of the table `event`: read one source of a machine faster for a while.

An agent polls for its own every few seconds, so a poll is one look-up in an index, without Arrow. The detector signs
them (store/signed.py); an agent checks them with the key of its machine.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from store.influx.config import InfluxConfig, address_of, is_address
from store.schema.contract import StoreError
from store.schema.sample import Sample, Value
from store.signed import ZOOM_CODE, ZOOM_SOURCE, key_of, signature_of, zoom_key

_MAX_REQUESTS = 64
_PATIENCE_S = 1.0
_COLUMNS = ("message", "hertz", "until", "signature", "begin")


@dataclass(frozen=True, slots=True)
class ZoomRequest:
    """One request; times in Unix ns. Nothing of it is validated: the agent that obeys it has to."""

    time: int
    source: str
    hertz: float
    until: int
    signature: str = field(default="", compare=False)
    begin: int = 0
    """When all machines are to begin; 0: at once."""

    def sample(self) -> Sample:
        """The row, as the detector writes it."""
        values: dict[str, Value] = {
            "source": ZOOM_SOURCE,
            "code": ZOOM_CODE,
            "severity": "info",
            "message": self.source,
        }
        begin: dict[str, Value] = {"begin": self.begin} if self.begin else {}
        return Sample("event", {**values, "hertz": self.hertz, "until": self.until, **begin}, self.time)


@dataclass(frozen=True, slots=True)
class ZoomKey:
    """Where an agent finds the key of its machine; it is read at each check, for it may come after the agent."""

    machine: str
    file: str = ""
    """The machine's key; empty: systemd's credential zoom-key."""
    signing_key_file: str = ""
    """The detector's key, which an agent on the detector's own machine can read."""

    def signed(self, request: ZoomRequest) -> bool:
        """Whether the detector has made this request for this machine. Raises StoreError where no key can be read."""
        expected = signature_of(self._read(), "event", request.time, self.machine, request.sample().values)
        return hmac.compare_digest(expected.encode(), request.signature.encode(errors="replace"))

    def _read(self) -> bytes:
        credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / "zoom-key"
        file = Path(self.file) if self.file else credential
        if self.file or credential.is_file():
            return key_of(file)
        if os.access(self.signing_key_file, os.R_OK):
            return zoom_key(key_of(Path(self.signing_key_file)), self.machine)
        raise StoreError(
            "there is no key to check it with: give this machine what `peerwatch config zoom-key` prints on the "
            "detector's, as agent.zoom_key_file or credential"
        )


class ZoomRequestSource(Protocol):
    """Where an agent finds the zoom requests for its machine."""

    every_s: float
    """How often to ask."""
    key: ZoomKey
    """What the requests are to be checked with."""

    def read(self, after: int) -> list[ZoomRequest]:
        """The requests with time > `after` (Unix ns), a few at most. Raises StoreError; waits up to a second."""

    def close(self) -> None:
        """Release the connection."""


class FileZoomRequests:
    """Requests in the file of an embedded store; opened for reading, once the file exists."""

    every_s = 5.0

    def __init__(self, path: Path, key: ZoomKey) -> None:
        self.path, self.key = path, key
        self._connection: sqlite3.Connection | None = None

    def read(self, after: int) -> list[ZoomRequest]:
        """The newest of the machine's requests later than `after`. Raises StoreError."""
        # All columns: a file has `begin` only once a request of that kind was written.
        query = (
            "SELECT * FROM event WHERE time > ? AND machine = ? AND source = ? AND code = ? "  # noqa: S608
            f"ORDER BY time DESC LIMIT {_MAX_REQUESTS}"
        )
        deadline = time.monotonic() + _PATIENCE_S
        try:
            if self._connection is None:
                address = f"{self.path.absolute().as_uri()}?mode=ro"
                self._connection = sqlite3.connect(address, uri=True, timeout=_PATIENCE_S, check_same_thread=False)
            self._connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
            keys = (after, self.key.machine, ZOOM_SOURCE, ZOOM_CODE)
            found = self._connection.execute(query, keys)
            names = [column[0] for column in found.description]
            rows = [dict(zip(names, row, strict=True)) for row in found]
            return _zoom_requests([row.get(name) for name in ("time", *_COLUMNS)] for row in rows)
        except sqlite3.Error as error:
            if str(error).startswith(("no such table", "no such column")):
                return []  # no request was ever written
            self.close()
            raise StoreError(f"{self.path}: zoom requests cannot be read: {error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ServerZoomRequests:
    """Requests in InfluxDB, queried by InfluxQL."""

    every_s = 10.0

    def __init__(self, place: str, config: InfluxConfig, key: ZoomKey) -> None:
        from msgspec.structs import replace

        from store.influx.server import Server  # loads urllib3, which an embedded store does not need
        from store.line_protocol.write import tag

        self.key = key
        self._server = Server(address_of(place), replace(config, timeout_seconds=_PATIENCE_S))
        # The tag as it is written, without the escapes that only line protocol needs.
        name = tag(key.machine).decode().replace("\\", "").replace("'", "\\'")
        condition = f"\"machine\" = '{name}' AND \"source\" = '{ZOOM_SOURCE}' AND \"code\" = '{ZOOM_CODE}'"
        columns = ", ".join(f'"{column}"' for column in _COLUMNS)
        self._query = f'SELECT {columns} FROM "event" WHERE {condition} AND time > '  # noqa: S608 - the name is escaped

    def read(self, after: int) -> list[ZoomRequest]:
        """The newest of the machine's requests later than `after`. Raises StoreError."""
        query = f"{self._query}{after} ORDER BY time DESC LIMIT {_MAX_REQUESTS}"
        with self._server.query(query, "application/json") as (_, pieces):
            return zoom_requests_in(b"".join(pieces))

    def close(self) -> None:
        """Release the connections."""
        self._server.close()


def open_zoom_requests(place: str, config: InfluxConfig, key: ZoomKey) -> ZoomRequestSource:
    """The zoom requests for the key's machine, in a store at this place."""
    if is_address(place):
        return ServerZoomRequests(place, config, key)
    return FileZoomRequests(Path(place).expanduser(), key)


def zoom_requests_in(body: bytes) -> list[ZoomRequest]:
    """The requests in an InfluxQL answer, one JSON object a line. Raises StoreError."""
    try:
        answers = [json.loads(line) for line in body.splitlines() if line.strip()]
        series = [one for answer in answers for result in answer["results"] for one in result.get("series", ())]
        return _zoom_requests(row for one in series for row in one["values"])
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"InfluxDB's answer holds no readable zoom requests: {error}") from error


def _zoom_requests(rows: Iterable[Any]) -> list[ZoomRequest]:
    """The valid requests among these rows, in order of time."""
    found = []
    for when, source, hertz, until, signature, begin in rows:
        times = until, begin or 0
        numbers = all(isinstance(value, int | float) for value in (when, hertz, *times))
        if numbers and isinstance(source, str) and all(map(math.isfinite, times)):
            whole = int(until), str(signature or ""), int(begin or 0)
            found.append(ZoomRequest(int(when), source, float(hertz), *whole))
    return sorted(found, key=lambda request: request.time)
