"""Zoom requests of the detector to agents, rows of the table `event`: read one source of a machine faster for a while.

An agent polls for its own every few seconds, so a poll is one look-up in an index, without Arrow.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from store.influx.config import InfluxConfig, address_of, is_address
from store.schema.contract import StoreError
from store.schema.sample import Sample, Value

SOURCE, CODE = "detector", "zoom"
"""Source and code of the rows."""
_MAX_REQUESTS = 8
_PATIENCE_S = 1.0
_COLUMNS = ("message", "hertz", "until")


@dataclass(frozen=True, slots=True)
class ZoomRequest:
    """One request; times in Unix ns. Nothing of it is validated: the agent that obeys it has to."""

    time: int
    source: str
    hertz: float
    until: int

    def sample(self) -> Sample:
        """The row, as the detector writes it."""
        values: dict[str, Value] = {"source": SOURCE, "code": CODE, "severity": "info", "message": self.source}
        return Sample("event", {**values, "hertz": self.hertz, "until": self.until}, self.time)


class ZoomRequestSource(Protocol):
    """Where an agent finds the zoom requests for its machine."""

    every_s: float
    """How often to ask."""

    def read(self, after: int) -> list[ZoomRequest]:
        """The requests with time > `after` (Unix ns), a few at most. Raises StoreError; waits up to a second."""

    def close(self) -> None:
        """Release the connection."""


class FileZoomRequests:
    """Requests in the file of an embedded store; opened for reading, once the file exists."""

    every_s = 5.0

    def __init__(self, path: Path, machine: str) -> None:
        self.path, self.machine = path, machine
        self._connection: sqlite3.Connection | None = None

    def read(self, after: int) -> list[ZoomRequest]:
        """The newest of the machine's requests later than `after`. Raises StoreError."""
        columns = ", ".join(_COLUMNS)
        query = (
            f"SELECT time, {columns} FROM event WHERE time > ? AND machine = ? AND source = ? AND code = ? "  # noqa: S608
            f"ORDER BY time DESC LIMIT {_MAX_REQUESTS}"
        )
        deadline = time.monotonic() + _PATIENCE_S
        try:
            if self._connection is None:
                address = f"{self.path.absolute().as_uri()}?mode=ro"
                self._connection = sqlite3.connect(address, uri=True, timeout=_PATIENCE_S, check_same_thread=False)
            self._connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
            return _zoom_requests(self._connection.execute(query, (after, self.machine, SOURCE, CODE)).fetchall())
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

    def __init__(self, place: str, config: InfluxConfig, machine: str) -> None:
        from msgspec.structs import replace

        from store.influx.server import Server  # loads urllib3, which an embedded store does not need
        from store.line_protocol.write import tag

        self._server = Server(address_of(place), replace(config, timeout_seconds=_PATIENCE_S))
        # The tag as it is written, without the escapes that only line protocol needs.
        name = tag(machine).decode().replace("\\", "").replace("'", "\\'")
        condition = f"\"machine\" = '{name}' AND \"source\" = '{SOURCE}' AND \"code\" = '{CODE}'"
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


def open_zoom_requests(place: str, config: InfluxConfig, machine: str) -> ZoomRequestSource:
    """The zoom requests for a machine, in a store at this place."""
    return (
        ServerZoomRequests(place, config, machine)
        if is_address(place)
        else FileZoomRequests(Path(place).expanduser(), machine)
    )


def zoom_requests_in(body: bytes) -> list[ZoomRequest]:
    """The requests in an InfluxQL answer, one JSON object a line. Raises StoreError."""
    try:
        answers = [json.loads(line) for line in body.splitlines() if line.strip()]
        series = [one for answer in answers for result in answer["results"] for one in result.get("series", ())]
        return _zoom_requests(row for one in series for row in one["values"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"InfluxDB's answer holds no readable zoom requests: {error}") from error


def _zoom_requests(rows: Iterable[Any]) -> list[ZoomRequest]:
    """The valid requests among these rows, in order of time."""
    found = []
    for when, source, hertz, until in rows:
        numbers = all(isinstance(value, int | float) for value in (when, hertz, until))
        if numbers and isinstance(source, str) and math.isfinite(until):
            found.append(ZoomRequest(int(when), source, float(hertz), int(until)))
    return sorted(found, key=lambda request: request.time)
