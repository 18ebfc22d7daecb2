"""InfluxQL's answers, as they stream in, as Arrow tables: whole columns at a time, never a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store import arrow
from store.columns import WIDTH
from store.contract import StoreError
from store.line_protocol import NTH, ROW, column_of, untag

_AT_ONCE = 1 << 15
"""Rows held as Python values before they become arrays."""


def series_of(kind: str, pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The series of an answer, MessagePack or JSON, each with name, tags, columns and values (rows).

    Raises StoreError with the server's own words, or where the answer is neither.
    """
    for found in _packed(pieces) if "msgpack" in kind else _jsons(pieces):
        for result in [found, *found.get("results", ())]:
            if "error" in result:
                raise StoreError(f"the InfluxDB server cannot answer: {' '.join(str(result['error']).split())[:300]}")
            yield from result.get("series") or ()


def _packed(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    import msgpack

    unpacker = msgpack.Unpacker(raw=False, unicode_errors="replace", max_buffer_size=1 << 30)
    for piece in pieces:
        unpacker.feed(piece)
        yield from unpacker


def _jsons(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """One object a line."""
    decoder, rest = msgspec.json.Decoder(dict[str, Any]), b""
    try:
        for piece in pieces:
            *whole, rest = (rest + piece).split(b"\n")
            yield from (decoder.decode(line) for line in whole if line.strip())
        if rest.strip():
            yield decoder.decode(rest)
    except msgspec.DecodeError as error:
        raise StoreError("the answer is no InfluxQL answer: does the address name an InfluxDB server?") from error


class Collector:
    """Series of one table on their way to an Arrow table."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._fields: list[str] = []
        self._chunks: dict[str, list[pa.Array]] = {}
        self._rows: list[list[Any]] = []
        self._tags: list[dict[str, str]] = []
        self._counts: list[int] = []

    def add(self, series: dict[str, Any]) -> None:
        """Take the rows of one series; those without a machine are none of ours."""
        tags, rows = series.get("tags") or {}, series["values"]
        if not tags.get("machine") or not rows:
            return
        self._fields = series["columns"]
        self._rows += rows
        self._tags.append(tags)
        self._counts.append(len(rows))
        if len(self._rows) >= _AT_ONCE:
            self._settle()

    def table_of(self) -> pa.Table:
        """All rows taken, in order of time, in the store's types."""
        self._settle()
        if not self._counts:
            return arrow.empty(self.table)
        fields = {name: _joined(chunks) for name, chunks in self._chunks.items()}
        self._chunks.clear()
        times = fields["time"].to_numpy()
        order = None if bool((times[1:] >= times[:-1]).all()) else pa.array(np.argsort(times, kind="stable"))
        columns: dict[str, pa.ChunkedArray] = {}
        for name in list(fields):  # one by one, so that a column is never there twice for long
            column = fields.pop(name)
            columns[name] = column if order is None else column.take(order)
        columns |= self._tag_columns(order)
        return arrow.conform(self.table, pa.table(_merged(self.table, columns)))

    def _settle(self) -> None:
        for field, cells in zip(self._fields, zip(*self._rows, strict=True), strict=True) if self._rows else ():
            kind = column_of(self.table, field)[1]
            self._chunks.setdefault(field, []).append(_array(cells, arrow.TYPES[kind] if kind else None))
        self._rows = []

    def _tag_columns(self, order: pa.Array | None) -> dict[str, pa.Array]:
        owner = pa.array(np.repeat(np.arange(len(self._counts)), self._counts))
        owner = owner if order is None else owner.take(order)
        keys = dict.fromkeys(key for tags in self._tags for key in tags)
        return {
            key: pa.array([untag(tags.get(key, "")) for tags in self._tags], pa.string()).take(owner)
            for key in keys
            if key != NTH
        }


def _array(cells: tuple[Any, ...], kind: pa.DataType | None) -> pa.Array:
    """Cells of one column; where they are not of the type that was expected, of the type they have."""
    try:
        return pa.array(cells, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([str(cell) if isinstance(cell, str) else cell for cell in cells])


def _joined(chunks: list[pa.Array]) -> pa.ChunkedArray:
    """Chunks of one column in the widest of their types."""
    kinds = {chunk.type for chunk in chunks}
    if len(kinds) > 1:
        chunks = [chunk.cast(_widest(kinds)) for chunk in chunks]
    return pa.chunked_array(chunks)


def _widest(kinds: Iterable[pa.DataType]) -> pa.DataType:
    known = [name for name, kind in arrow.TYPES.items() if kind in set(kinds)]
    return arrow.TYPES[max(known, key=WIDTH.index)] if known else pa.string()


def _merged(table: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Columns out of fields: several that hold one column become one; what is all unknown is left out."""
    columns: dict[str, Any] = {}
    for field, cells in fields.items():
        name, _ = column_of(table, field)
        if name == ROW or (cells.null_count == len(cells) and column_of(table, name)[1] is None):
            continue
        if name in columns:
            kind = _widest({columns[name].type, cells.type})
            cells = pc.coalesce(columns[name].cast(kind), cells.cast(kind))
        columns[name] = cells
    return columns
