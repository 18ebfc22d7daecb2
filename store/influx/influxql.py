"""InfluxDB as a store: one measurement a table, read by InfluxQL, which all of InfluxDB 1, 2 and 3 understand."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from store.influx.server import Server
from store.line_protocol.write import FIELD_KEYS, NTH, ROW, field_name, lines_of, pack
from store.schema.columns import WIDTH, check_name, key_columns
from store.schema.contract import StoreError
from store.schema.sample import Batch
from store.schema.time import LATEST
from store.schema.version import FIELD, MEASUREMENT, VERSION, refuse_other

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_POST_LINES = 5000
_EARLIEST, _LATEST = -(2**63) + 2, LATEST - 1
"""The times that InfluxDB has; our own last one is just outside."""
_LISTS = ("SHOW TAG KEYS", "SHOW FIELD KEYS")
_HALVES = ('"machine" =~ /[13579]$/', '"machine" !~ /[13579]$/')
"""A server answers a query with one core, so the machines are read in two halves of about the same size."""
_FRESH_S = 5.0
"""Seconds for which the list of tables and fields is cached."""


class Influx:
    """A database or bucket. A row written again takes the place of that of its time, machine and device."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._shape: dict[str, frozenset[str]] = {}
        self._asked = -_FRESH_S
        self._checked = self._stamped = False

    def begin(self) -> None:
        """Create the database if it does not exist; does nothing if the server does not answer."""
        try:
            self._measurements()
        except StoreError as error:
            if "database not found" in str(error):
                self.server.begin()

    def write(self, batches: Iterable[Batch]) -> None:
        """Store these batches; rows that a server took before it failed are replaced by a second write."""
        lines = lines_of(batches)
        if lines and not self._stamped:
            lines.append(f"{MEASUREMENT} {FIELD}={VERSION}i {time.time_ns()}".encode())
        for first in range(0, len(lines), _POST_LINES):
            answer = self.server.write(pack(lines[first : first + _POST_LINES]))
            if not answer.good:
                raise StoreError(self.server.explain(answer))
            self._stamped = True
            self._asked = -_FRESH_S

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until as an Arrow table; the contract has the details."""
        from store import arrow
        from store.influx.response import TableBuilder, understood

        if bound(after) >= bound(until):
            return arrow.empty(table)
        self._check()
        wanted = None if columns is None else {*key_columns(table), *columns}
        fields = self._fields(table, wanted)

        def collect(half: str) -> TableBuilder:
            rows = TableBuilder(table)
            span = _between(after, until)
            query = f"SELECT {fields} FROM {_quoted(table)} WHERE {half} AND {span} GROUP BY *"  # noqa: S608 - quoted
            for series in self._ask(query):
                rows.add(series)
            return rows

        with understood(self.server.address):
            with ThreadPoolExecutor(len(_HALVES), "influx") as threads:
                first, second = threads.map(collect, _HALVES)
            found = first.joined(second).table_of()
        return found if wanted is None else found.select([name for name in found.column_names if name in wanted])

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """First and last time (Unix ns) later than `after`, over all tables."""
        if bound(after) >= _LATEST:
            return None
        from store.influx.response import understood

        with understood(self.server.address):
            ends = [self._end(after, end) for end in ("ASC", "DESC")]
        return (min(ends[0]), max(ends[1])) if ends[0] and ends[1] else None

    def _end(self, after: int, end: str) -> list[int]:
        """Times of the first (ASC) or last (DESC) rows of the tables."""
        from store.influx.response import rows_of

        ours = [table for table, fields in self._measurements().items() if ROW in fields]
        others = [table for table in self._measurements() if table not in ours]
        asked = [(_quoted(ROW), ours)] * bool(ours) + [("*", others)] * bool(others)
        queries = [
            f"SELECT {what} FROM {', '.join(map(_quoted, names))} WHERE {_between(after, LATEST)} "  # noqa: S608 - quoted
            f"ORDER BY time {end} LIMIT 1"
            for what, names in asked
        ]
        found = self._ask("; ".join(queries)) if queries else ()
        return [time for series in found for time, *_ in rows_of(series)]

    def tables(self) -> tuple[str, ...]:
        """Names of the measurements that can be tables of readings, sorted."""
        return tuple(self._measurements())

    def close(self) -> None:
        """Release the connections."""
        self.server.close()

    def _fields(self, table: str, wanted: Collection[str] | None) -> str:
        if wanted is None or ROW not in self._measurements().get(table, ()):
            return "*::field"
        names = {name for name in wanted if name not in key_columns(table) or name in FIELD_KEYS}
        fields = {field_name(table, name, kind) for name in names for kind in WIDTH}
        return ", ".join(map(_quoted, (ROW, *sorted(fields))))

    def _check(self) -> None:
        """Warn if another version has written here. No error: any agent's token can write that row."""
        from store.influx.response import rows_of, understood

        if not self._checked:
            query = f'SELECT last("{FIELD}") FROM "{MEASUREMENT}"'  # noqa: S608 - our own names
            with understood(self.server.address):
                versions = [int(rows_of(series)[0][1]) for series in self._ask(query)]
            for version in versions:
                try:
                    refuse_other(self.server.address, version)
                except StoreError as error:
                    log.warning("%s", error)
            self._checked = True

    def _measurements(self) -> dict[str, frozenset[str]]:
        """The tables and their fields."""
        from store.influx.response import rows_of, understood

        self._check()
        if time.monotonic() - self._asked >= _FRESH_S:
            with understood(self.server.address):
                tags, fields = (
                    {one["name"]: {row[0] for row in rows_of(one)} for one in self._ask(asked)} for asked in _LISTS
                )
            # Other programs' measurements, and our own alerts, have no machine or names that no column can have.
            self._shape = {
                name: frozenset(fields[name])
                for name in sorted(tags.keys() & fields.keys())
                if "machine" in tags[name] and all(map(_is_name, {name, *tags[name], *fields[name]} - {ROW, NTH}))
            }
            self._asked = time.monotonic()
        return self._shape

    def _ask(self, query: str) -> Iterator[dict[str, Any]]:
        from store.influx.response import series_of

        with self.server.query(query) as (kind, pieces):
            yield from series_of(kind, pieces)


def _is_name(name: str) -> bool:
    try:
        check_name(name.partition(".")[0])
    except StoreError:
        return False
    return True


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def bound(when: int) -> int:
    """The nearest time that InfluxDB has."""
    return min(max(when, _EARLIEST), _LATEST)


def _between(after: int, until: int) -> str:
    return f"time > {bound(after)} AND time <= {bound(until)}"
