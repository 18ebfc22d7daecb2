"""Orders of the detector to agents, as rows of the table `event`: read one source of a machine faster for a while.

An agent asks for its own every few seconds, so the question is as cheap as can be: no Arrow, one look into an index.
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
_MOST = 8
_PATIENCE_S = 1.0
_COLUMNS = ("message", "hertz", "until")


@dataclass(frozen=True, slots=True)
class Order:
    """What a row says; times in Unix ns. Nothing of it is checked: who obeys has to."""

    time: int
    source: str
    hertz: float
    until: int

    def sample(self) -> Sample:
        """The row, as the detector writes it."""
        values: dict[str, Value] = {"source": SOURCE, "code": CODE, "severity": "info", "message": self.source}
        return Sample("event", {**values, "hertz": self.hertz, "until": self.until}, self.time)


class Orders(Protocol):
    """Where an agent finds the orders for its machine."""

    every_s: float
    """How often to ask."""

    def read(self, after: int) -> list[Order]:
        """The orders with time > `after` (Unix ns), a few at most. Raises StoreError; waits a second for an answer."""

    def close(self) -> None:
        """Let go of it."""


class FileOrders:
    """Orders in the file of an embedded store; opened for reading, and only once it is there."""

    every_s = 5.0

    def __init__(self, path: Path, machine: str) -> None:
        self.path, self.machine = path, machine
        self._connection: sqlite3.Connection | None = None

    def read(self, after: int) -> list[Order]:
        """The newest of the machine's orders later than `after`. Raises StoreError."""
        columns = ", ".join(_COLUMNS)
        query = (
            f"SELECT time, {columns} FROM event WHERE time > ? AND machine = ? AND source = ? AND code = ? "  # noqa: S608
            f"ORDER BY time DESC LIMIT {_MOST}"
        )
        deadline = time.monotonic() + _PATIENCE_S
        try:
            if self._connection is None:
                address = f"{self.path.absolute().as_uri()}?mode=ro"
                self._connection = sqlite3.connect(address, uri=True, timeout=_PATIENCE_S, check_same_thread=False)
            self._connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
            return _orders(self._connection.execute(query, (after, self.machine, SOURCE, CODE)).fetchall())
        except sqlite3.Error as error:
            if str(error).startswith(("no such table", "no such column")):
                return []  # nobody has ordered anything yet
            self.close()
            raise StoreError(f"{self.path}: orders cannot be read: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ServerOrders:
    """Orders in InfluxDB, asked for in InfluxQL."""

    every_s = 10.0

    def __init__(self, place: str, told: InfluxConfig, machine: str) -> None:
        from msgspec.structs import replace

        from store.influx.server import Server  # loads urllib3, which an embedded store does not need
        from store.line_protocol.write import tag

        self._server = Server(address_of(place), replace(told, timeout_seconds=_PATIENCE_S))
        # As the tag is written, but for the signs that only a line needs.
        name = tag(machine).decode().replace("\\", "").replace("'", "\\'")
        whose = f"\"machine\" = '{name}' AND \"source\" = '{SOURCE}' AND \"code\" = '{CODE}'"
        columns = ", ".join(f'"{column}"' for column in _COLUMNS)
        self._query = f'SELECT {columns} FROM "event" WHERE {whose} AND time > '  # noqa: S608 - the name is escaped

    def read(self, after: int) -> list[Order]:
        """The newest of the machine's orders later than `after`. Raises StoreError."""
        query = f"{self._query}{after} ORDER BY time DESC LIMIT {_MOST}"
        with self._server.query(query, "application/json") as (_, pieces):
            return orders_in(b"".join(pieces))

    def close(self) -> None:
        """Let go of the connections."""
        self._server.close()


def open_orders(place: str, told: InfluxConfig, machine: str) -> Orders:
    """Where the orders for a machine are, in a store at this place."""
    return ServerOrders(place, told, machine) if is_address(place) else FileOrders(Path(place).expanduser(), machine)


def orders_in(body: bytes) -> list[Order]:
    """The orders of an answer of InfluxQL, a JSON object a line. Raises StoreError."""
    try:
        answers = [json.loads(line) for line in body.splitlines() if line.strip()]
        series = [one for answer in answers for result in answer["results"] for one in result.get("series", ())]
        return _orders(row for one in series for row in one["values"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"InfluxDB's answer holds no orders that can be read: {error}") from error


def _orders(rows: Iterable[Any]) -> list[Order]:
    """Rows that can be orders, in order of time."""
    found = []
    for when, source, hertz, until in rows:
        numbers = all(isinstance(value, int | float) for value in (when, hertz, until))
        if numbers and isinstance(source, str) and math.isfinite(until):
            found.append(Order(int(when), source, float(hertz), int(until)))
    return sorted(found, key=lambda order: order.time)
