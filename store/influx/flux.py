"""InfluxDB by Flux, through influxdb-client: for servers that answer no InfluxQL.

The server turns fields into columns (`pivot`), so that a row comes once and not once for each value.
https://docs.influxdata.com/flux/v0/stdlib/universe/pivot/
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from store.influx.influxql import Influx, bound
from store.line_protocol.write import FIELD_KEYS, ROW, field_name, untag
from store.schema.columns import WIDTH, key_columns
from store.schema.contract import StoreError
from store.schema.time import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

_BETWEEN = b"\r\n\r\n#"
"""What stands between two tables of an answer; within quotes it would have to be written on purpose."""


class InfluxByFlux(Influx):
    """A bucket that is read by Flux; Flux does not distinguish an empty text from a missing one."""

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until as an Arrow table; the contract has the details."""
        from store import arrow
        from store.influx.response import table_of

        if bound(after) >= bound(until):
            return arrow.empty(table)
        wanted = None if columns is None else {*key_columns(table), *columns}
        ours = f"r._measurement == {_text(table)}{_chosen(table, wanted)}"
        query = (
            f"{self._range(after, until)} |> filter(fn: (r) => {ours})"
            ' |> drop(columns: ["_start", "_stop", "_measurement"])'
            ' |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")'
        )
        found = table_of(table, list(_tables(self.server.flux(query))))
        return found if wanted is None else found.select([name for name in found.column_names if name in wanted])

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Times of the oldest and the newest row later than `after`, over all tables."""
        if bound(after) >= bound(LATEST):
            return None
        rows = f"{self._range(after, LATEST)} |> filter(fn: (r) => r._field == {_text(ROW)})"
        ends = []
        for end, down in (("first", "false"), ("last", "true")):
            sort = f'sort(columns: ["_time"], desc: {down}) |> limit(n: 1)'
            query = f'{rows} |> {end}() |> keep(columns: ["_time"]) |> group() |> {sort}'
            ends += [time for one in _tables(self.server.flux(query)) for time in _column(one, "time")]
        return (min(ends), max(ends)) if ends else None

    def tables(self) -> tuple[str, ...]:
        """Names of the measurements that Peerwatch has written, sorted."""
        query = (
            f'import "influxdata/influxdb/schema" schema.tagValues(bucket: {_text(self.server.address.database)}, '
            f'tag: "_measurement", predicate: (r) => r._field == {_text(ROW)}, start: {_time(0)})'
        )
        found = _tables(self.server.flux(query))
        return tuple(sorted(name for one in found for name in _column(one, "_value")))

    def _range(self, after: int, until: int) -> str:
        start, stop = _time(bound(after) + 1), _time(bound(until) + 1)  # Flux has the start in and the stop out
        return f"from(bucket: {_text(self.server.address.database)}) |> range(start: {start}, stop: {stop})"


def _chosen(table: str, wanted: Collection[str] | None) -> str:
    if wanted is None:
        return ""
    names = {name for name in wanted if name not in key_columns(table) or name in FIELD_KEYS}
    fields = sorted({ROW, *(field_name(table, name, kind) for name in names for kind in WIDTH)})
    return f" and ({' or '.join(f'r._field == {_text(field)}' for field in fields)})"


def _text(value: str) -> str:
    """A text as Flux takes it: as JSON does, but that ${ begins an expression."""
    return json.dumps(value, ensure_ascii=False).replace("${", "\\${")


def _time(ns: int) -> str:
    return f"time(v: {ns})"


def _tables(answer: bytes) -> Iterator[pa.Table]:
    """The tables of an annotated CSV answer. Raises StoreError."""
    import pyarrow as pa

    for number, part in enumerate(answer.strip().split(_BETWEEN) if answer.strip() else ()):
        text = part if number == 0 else b"#" + part
        said = " ".join(text[:300].decode(errors="replace").split())
        if not text.startswith(b"#datatype,"):
            raise StoreError(f"the InfluxDB server gives no Flux answer, but: {said}")
        if b"\r\n,error,reference" in text[:300]:
            raise StoreError(f"the InfluxDB server cannot answer: {said.partition('reference')[2].strip(' ,')}")
        try:
            yield _table(text)
        except (ValueError, LookupError, pa.ArrowException) as error:
            raise _unreadable(error) from error


def _unreadable(error: Exception) -> StoreError:
    return StoreError(f"the Flux answer cannot be read: {' '.join(str(error).split())[:300]}")


def _column(table: pa.Table, name: str) -> list[Any]:
    """The values of a column. Raises StoreError where there is none of that name."""
    try:
        values: list[Any] = table.column(name).to_pylist()
    except (ValueError, LookupError) as error:
        raise _unreadable(error) from error
    return values


def _table(text: bytes) -> pa.Table:
    from pyarrow import csv

    lines = text.decode(errors="replace").split("\r\n", 3)
    kinds, groups, names = (line.split(",")[1:] for line in lines[:3])
    form = csv.ConvertOptions(
        column_types={name: _type(kind) for name, kind in zip(names, kinds, strict=True)},
        include_columns=[name for name in names if name not in ("result", "table")],
        null_values=[""],
        strings_can_be_null=True,
    )
    read = csv.ReadOptions(column_names=["", *names], skip_rows=3)
    found = csv.read_csv(io.BytesIO(text), read, csv.ParseOptions(newlines_in_values=True), form)
    return _plain(found, [name for name, group in zip(names, groups, strict=True) if group == "true"])


def _type(kind: str) -> pa.DataType:
    import pyarrow as pa

    known = {"double": pa.float64(), "long": pa.int64(), "unsignedLong": pa.uint64(), "boolean": pa.bool_()}
    return pa.timestamp("ns", "UTC") if kind.startswith("dateTime") else known.get(kind, pa.string())


def _plain(found: pa.Table, tags: list[str]) -> pa.Table:
    """Time as Unix nanoseconds, tags as what they stand for."""
    import pyarrow as pa

    columns = {}
    for name in found.column_names:
        column = found.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        elif name in tags:
            words = column.combine_chunks().dictionary_encode()
            words = words.combine_chunks() if isinstance(words, pa.ChunkedArray) else words
            plain = pa.array([untag(word) for word in words.dictionary.to_pylist()], pa.string())
            column = plain.take(words.indices)
        columns["time" if name == "_time" else name] = column
    return pa.table(columns)
