"""Samples on their way into SQLite: grouped into rows, tables and columns made to fit, values converted."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable

from store.schema.catalogue import METRICS, TABLES
from store.schema.columns import WIDTH, Type, check_name, converter, fitted, key_columns, type_found, type_of
from store.schema.contract import UnfitError
from store.schema.sample import Batch, Value
from store.sqlite.connection import DECLARED, declared_types, quote

MOST_COLUMNS = 500
"""Of one table. SQLite takes 2,000; what writes new names without end is refused before."""

Row = tuple[Value, ...]
Groups = dict[tuple[str, tuple[str, ...]], list[Row]]
Converter = tuple[str, Type, Callable[[Value], Value]]


class TableCache:
    """Column types and statements of the tables seen so far: saves a query and a statement at each write."""

    def __init__(self) -> None:
        self.types: dict[str, dict[str, Type]] = {}
        """Columns of each table, and their types."""
        self.plans: dict[tuple[str, tuple[str, ...]], tuple[str, list[Converter]]] = {}
        """Statements for rows that fit for good, since the catalogue knows each of their columns."""

    def clear(self) -> None:
        """Drop the cache."""
        self.types.clear()
        self.plans.clear()


def group(batches: Iterable[Batch]) -> Groups:
    """Rows by table and columns, so that each group is one statement."""
    groups: Groups = defaultdict(list)
    for batch in batches:
        for sample in batch.samples:
            when = batch.time if sample.time is None else sample.time
            columns = ("time", "machine", *sample.values)
            groups[sample.table, columns].append((when, batch.machine, *sample.values.values()))
    return dict(groups)


def insert(connection: sqlite3.Connection, groups: Groups, cache: TableCache) -> None:
    """Insert all rows, adding what tables and columns are missing; call it within a transaction."""
    for (table, columns), rows in groups.items():
        statement, converters = cache.plans.get((table, columns)) or _plan(connection, table, columns, rows, cache)
        if table in TABLES and TABLES[table].replaced:
            gone = f"DELETE FROM {quote(table)} WHERE time = ? AND machine = ?"  # noqa: S608 - quoted
            connection.executemany(gone, [row[:2] for row in rows])
        connection.executemany(statement, [_converted(table, converters, row) for row in rows])


def _plan(
    connection: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: list[Row], cache: TableCache
) -> tuple[str, list[Converter]]:
    """How rows of these columns are inserted; the table is made to hold them. Raises UnfitError."""
    for name in (table, *columns):
        check_name(name)
    if len(set(columns)) < len(columns):
        raise UnfitError(f"a sample of table {table} has a value named time or machine: give it another name")
    needs = _needs(table, columns, rows)
    types = cache.types.get(table, {})
    if not all(name in types and _fits(need, types[name]) for name, need in needs.items()):
        types = cache.types[table] = _adapt(connection, table, needs)
    names = ", ".join(map(quote, columns))
    statement = f"INSERT INTO {quote(table)} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - checked
    plan = statement, [(name, types[name], converter(types[name])) for name in columns]
    if all(type_of(table, name) for name in columns):
        cache.plans[table, columns] = plan
    return plan


def _needs(table: str, columns: tuple[str, ...], rows: list[Row]) -> dict[str, Type | None]:
    """The type that each column must have; None where any will do."""
    return {name: type_of(table, name) or type_found([row[at] for row in rows]) for at, name in enumerate(columns)}


def _adapt(connection: sqlite3.Connection, table: str, needs: dict[str, Type | None]) -> dict[str, Type]:
    """Make the table hold these columns; returns the types of all it has."""
    types = declared_types(connection, table) or _create(connection, table)
    if len(types | needs) > MOST_COLUMNS:
        raise UnfitError(f"table {table} has {len(types)} columns and takes no more than {MOST_COLUMNS}")
    for name, need in needs.items():
        if name not in types:
            types[name] = need or "int64"  # nothing seen yet: wider types may follow
            connection.execute(f"ALTER TABLE {quote(table)} ADD COLUMN {quote(name)} {DECLARED[types[name]]}")
        elif need is not None and not _fits(need, types[name]):
            types[name] = need
            _widen(connection, table, name, need)
    return types


def _converted(table: str, converters: list[tuple[str, Type, Callable[[Value], Value]]], row: Row) -> tuple[Value, ...]:
    try:
        return tuple([convert(value) for (_, _, convert), value in zip(converters, row, strict=True)])
    except (ValueError, TypeError):
        cells = zip(converters, row, strict=True)
        return tuple([fitted(table, name, kind, value) for (name, kind, _), value in cells])


def _fits(need: Type | None, have: Type) -> bool:
    return need is None or WIDTH.index(need) <= WIDTH.index(have)


def _create(connection: sqlite3.Connection, table: str) -> dict[str, Type]:
    """A new table with all columns that the catalogue knows, and its index by time."""
    metrics = [metric.name for metric in METRICS.values() if metric.table == table] if table in TABLES else []
    types = {name: type_of(table, name) or "double" for name in (*key_columns(table), *metrics)}
    columns = ", ".join(f"{quote(name)} {DECLARED[kind]}" for name, kind in types.items())
    connection.execute(f"CREATE TABLE {quote(table)} ({columns})")
    # With the machine in it, the index alone answers when each machine was seen.
    connection.execute(f"CREATE INDEX {quote(f'{table}_time')} ON {quote(table)} (time, machine)")
    return types


def _widen(connection: sqlite3.Connection, table: str, column: str, kind: Type) -> None:
    """Give a column a wider type and copy its values: the type of an unknown column shows only as values arrive."""
    place, old, new = quote(table), quote(column), quote(f"{column}_wider")
    connection.execute(f"ALTER TABLE {place} ADD COLUMN {new} {DECLARED[kind]}")
    connection.execute(f"UPDATE {place} SET {new} = {old}")  # noqa: S608 - names are checked
    connection.execute(f"ALTER TABLE {place} DROP COLUMN {old}")
    connection.execute(f"ALTER TABLE {place} RENAME COLUMN {new} TO {old}")
