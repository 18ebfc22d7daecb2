"""Arrow tables as every store hands them out. Import this only to read: it loads pyarrow, which the agent spares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from store.schema.columns import Type, key_columns, type_of
from store.schema.contract import StoreError
from store.schema.time import LATEST

TYPES: dict[Type, pa.DataType] = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string()}


def empty(table: str) -> pa.Table:
    """A table that is not there: its key columns and no row."""
    return schema({name: type_of(table, name) or "string" for name in key_columns(table)}).empty_table()


def schema(types: Mapping[str, Type]) -> pa.Schema:
    """An Arrow schema from column names and types."""
    return pa.schema([(name, TYPES[kind]) for name, kind in types.items()])


def from_rows(chunks: Iterable[Sequence[tuple[Any, ...]]], types: Mapping[str, Type]) -> pa.Table:
    """A table from chunks of rows that have values of these types."""
    form = schema(types)
    kinds = form.types
    batches = [
        pa.record_batch([pa.array(column, kinds[at]) for at, column in enumerate(zip(*rows, strict=True))], form)
        for rows in chunks
    ]
    return pa.Table.from_batches(batches, form)


def conform(table: str, found: pa.Table) -> pa.Table:
    """The columns of a foreign table in the store's types, keys first; NaN becomes null.

    Fractions stay doubles even where the catalogue expects whole numbers. Columns that are neither numbers nor text
    (lists, structs, dates) are left out. Raises StoreError where a column is twice there, time or machine lack a
    value, or a metric holds text.
    """
    names = found.column_names
    first = [name for name in key_columns(table) if name in names]
    for name in names:
        if names.count(name) > 1:
            raise StoreError(f"column {name} is there twice")
    for name in ("time", "machine"):
        if found.column(name).null_count:
            raise StoreError(f"column {name} has rows without a value")
    order = [*first, *(name for name in names if name not in first)]
    columns = {name: _column(f"{table}.{name}", found.column(name), type_of(table, name)) for name in order}
    return pa.table({name: column for name, column in columns.items() if column is not None})


def _column(name: str, column: pa.ChunkedArray, wanted: Type | None) -> pa.ChunkedArray | None:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    natural = _natural(column.type)
    if natural is None:
        return column.cast(TYPES[wanted or "double"]) if pa.types.is_null(column.type) else None
    if natural == "string" and wanted in ("int64", "double"):
        raise StoreError(f"column {name} must hold numbers, not {column.type}")
    if natural == "double":
        column = column.cast(pa.float64())
        unknown = pc.is_nan(column)
        return pc.if_else(unknown, pa.scalar(None, pa.float64()), column) if pc.any(unknown).as_py() else column
    if pa.types.is_uint64(column.type):
        fits = pc.less_equal(column, pa.scalar(LATEST, pa.uint64()))
        column = pc.if_else(fits, column, pa.scalar(None, pa.uint64()))
    return column.cast(TYPES[wanted or natural], safe=False)


def _natural(kind: pa.DataType) -> Type | None:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "int64"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "double"
    return "string" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def in_time(rows: pa.Table) -> pa.Table:
    """The rows in order of time; rows of one time stay in the order they had."""
    times = rows.column("time").to_numpy()
    return rows if bool((times[1:] >= times[:-1]).all()) else rows.take(pc.sort_indices(rows, [("time", "ascending")]))
