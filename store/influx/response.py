"""InfluxQL's answers, as they stream in, as Arrow tables: whole columns at a time, never a row.

MessagePack, not CSV: in CSV InfluxDB 1 leaves out its errors (a missing database is an empty answer, a query that is
ended early a short one), and an empty text is the same as a missing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store import arrow
from store.influx.msgpack_response import Block, MessagePackReader, flat
from store.line_protocol.write import NTH, ROW, column_of, untag
from store.schema.columns import WIDTH
from store.schema.contract import StoreError

_AT_ONCE = 1 << 15
"""Rows held as Python values before they become arrays."""


@contextmanager
def understood(address: object) -> Iterator[None]:
    """Turn what an answer of another form makes of itself into a StoreError that names the server."""
    try:
        yield
    except StoreError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise StoreError(f"{address} gave an answer that is not InfluxDB's ({words}); is the address right?") from error


_ABSENT = "database not found"


def series_of(kind: str, pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The series of an answer, MessagePack or JSON: name, tags, columns, and values as blocks.

    Raises StoreError with the server's own words, or where the answer is neither.
    """
    try:
        for found in (
            MessagePackReader(pieces).series()
            if "msgpack" in kind
            else (part for message in _jsons(pieces) for part in flat(message))
        ):
            if "error" in found:
                words = " ".join(str(found["error"]).split())[:300]
                mend = "; the first agent, detector or `peerwatch copy` creates it" if words.startswith(_ABSENT) else ""
                raise StoreError(f"the InfluxDB server cannot answer: {words}{mend}")
            if "columns" in found:
                yield found
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError("the answer is no InfluxQL answer: does the address name an InfluxDB server?") from error


def rows_of(series: dict[str, Any]) -> list[list[Any]]:
    """The values of a short series, such as the server's own lists, as rows."""
    return [list(row) for block in series["values"] for row in block.rows or zip(*block.columns, strict=True)]


def _jsons(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """One object a line."""
    decoder, rest = msgspec.json.Decoder(dict[str, Any]), b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (decoder.decode(line) for line in whole if line.strip())
    if rest.strip():
        yield decoder.decode(rest)


def table_of(table: str, parts: list[pa.Table]) -> pa.Table:
    """The rows of all parts, fields and tags as columns, in order of time, in the store's types."""
    found = pa.concat_tables(parts, promote_options="permissive") if parts else None
    if found is None or "machine" not in found.column_names:
        return arrow.empty(table)
    if "time" not in found.column_names:
        raise StoreError("the answer has rows without times: does the address name an InfluxDB server?")
    found = arrow.in_time(found.filter(pc.is_valid(found.column("machine"))))
    fields = {name: found.column(name) for name in found.column_names if name != NTH}
    return arrow.conform(table, pa.table(merged(table, fields)))


class TableBuilder:
    """Series of one table on their way to an Arrow table."""

    def __init__(self, table: str) -> None:
        self.table = table
        self._fields: list[str] = []
        self._chunks: dict[str, list[pa.Array]] = {}
        self._rows: list[list[Any]] = []
        self._kinds: list[np.dtype[Any] | None] = []
        self._open: list[NDArray[Any] | None] = []
        self._filled = 0
        self._tags: list[dict[str, str]] = []
        self._counts: list[int] = []

    def add(self, series: dict[str, Any]) -> None:
        """Take the rows of one series; those without a machine are none of ours."""
        tags = series.get("tags") or {}
        if not tags.get("machine"):
            return
        self._fields = series["columns"]
        for block in series["values"]:
            self._tags.append(tags)
            self._counts.append(block.count)
            if block.columns:
                self._settle()
                self._fill(block)
            else:
                self._close()
                self._rows += block.rows
            if len(self._rows) >= _AT_ONCE:
                self._settle()

    def joined(self, other: TableBuilder) -> TableBuilder:
        """This one with the rows of another behind its own."""
        parts = (self, other)
        for part in parts:
            part._settle()
            part._close()
        found = TableBuilder(self.table)
        for name in {**self._chunks, **other._chunks}:
            found._chunks[name] = [c for part in parts for c in part._chunks.pop(name, [pa.nulls(sum(part._counts))])]
        found._tags, found._counts = self._tags + other._tags, self._counts + other._counts
        return found

    def table_of(self) -> pa.Table:
        """All rows taken, in order of time, in the store's types."""
        self._settle()
        self._close()
        if not self._counts:
            return arrow.empty(self.table)
        times = self._joined("time").to_numpy()
        order = None if bool((times[1:] >= times[:-1]).all()) else pa.array(np.argsort(times, kind="stable"))
        columns = {"time": pa.array(times if order is None else times[order.to_numpy()])}

        def ordered(name: str) -> pa.Array:
            column = self._joined(name)
            return column if order is None else column.take(order)

        names = list(self._chunks)
        with ThreadPoolExecutor(2, "columns") as threads:  # two at once, so that few columns are there twice
            columns |= zip(names, threads.map(ordered, names), strict=True)
        if len(times) >= _AT_ONCE:
            pa.default_memory_pool().release_unused()  # or it keeps what the chunks took
        columns |= self._tag_columns(order)
        return arrow.conform(self.table, pa.table(merged(self.table, columns)))

    def _settle(self) -> None:
        for field, cells in zip(self._fields, zip(*self._rows, strict=True), strict=True) if self._rows else ():
            kind = column_of(self.table, field)[1]
            self._chunks.setdefault(field, []).append(_array(cells, arrow.TYPES[kind] if kind else None))
        self._rows = []

    def _fill(self, block: Block) -> None:
        """Copy the columns of a block behind those of the blocks before, once and in this machine's byte order."""
        kinds = [None if column is None else _native(column.dtype) for column in block.columns]
        if kinds != self._kinds or self._filled + block.count > _AT_ONCE:
            self._close()
            self._kinds, self._open = kinds, [None if kind is None else _room(kind) for kind in kinds]
        until = self._filled + block.count
        for place, column in zip(self._open, block.columns, strict=True):
            if place is not None and column is not None:
                place[self._filled : until] = column
        self._filled = until

    def _close(self) -> None:
        """End the columns that are being filled: they become chunks."""
        if self._filled:
            for name, place in zip(self._fields, self._open, strict=True):
                cells = pa.nulls(self._filled) if place is None else pa.array(_trimmed(place, self._filled))
                self._chunks.setdefault(name, []).append(cells)
        self._filled, self._kinds = 0, []

    def _joined(self, field: str) -> pa.Array:
        """All of one column, in the widest of the types that its chunks have."""
        chunks = self._chunks.pop(field)
        expected = column_of(self.table, field)[1]
        kinds = {chunk.type for chunk in chunks} - {pa.null()}
        if expected and all(map(pa.types.is_integer, kinds)):
            kinds = {arrow.TYPES[expected]}
        kind = kinds.pop() if len(kinds) == 1 else _widest(kinds)
        return pa.concat_arrays([chunk if chunk.type == kind else chunk.cast(kind) for chunk in chunks])

    def _tag_columns(self, order: pa.Array | None) -> dict[str, pa.Array]:
        owner = pa.array(np.repeat(np.arange(len(self._counts)), self._counts))
        owner = owner if order is None else owner.take(order)
        keys = dict.fromkeys(key for tags in self._tags for key in tags)
        return {
            key: pa.array([untag(tags.get(key, "")) for tags in self._tags], pa.string()).take(owner)
            for key in keys
            if key != NTH
        }


def _room(kind: np.dtype[Any]) -> NDArray[Any]:
    """An array to be filled, of memory that goes back to the system with it; Arrow's own takes five times as long."""
    return np.frombuffer(mmap(-1, _AT_ONCE * kind.itemsize, MAP_PRIVATE | MAP_ANONYMOUS), kind)


def _trimmed(place: NDArray[Any], filled: int) -> NDArray[Any]:
    """What is filled of an array; a small part is copied, so that the rest of the memory is released."""
    return place[:filled] if filled > len(place) / 2 else place[:filled].copy()


def _native(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The type of this machine that holds these numbers; whole numbers of any width are int64, if they fit."""
    return np.dtype(np.int64) if kind.kind in "iu" and kind != np.dtype(">u8") else kind.newbyteorder("=")


def _array(cells: tuple[Any, ...], kind: pa.DataType | None) -> pa.Array:
    """Cells of one column; where they are not of the type that was expected, of the type they have."""
    try:
        return pa.array(cells, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([str(cell) if isinstance(cell, str) else cell for cell in cells])


def _widest(kinds: Iterable[pa.DataType]) -> pa.DataType:
    """The type that holds all of these; whole numbers of any width are int64."""
    found = {pa.int64() if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else kind for kind in kinds}
    known = [name for name, kind in arrow.TYPES.items() if kind in found]
    return arrow.TYPES[max(known, key=WIDTH.index)] if known else pa.null()


def merged(table: str, fields: dict[str, Any]) -> dict[str, Any]:
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
