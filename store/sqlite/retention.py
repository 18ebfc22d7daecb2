"""What an SQLite store forgets: rows too old, then the oldest rows until the file is small enough."""

from __future__ import annotations

import sqlite3

from store.schema.catalogue import HISTORY
from store.sqlite.connection import quote

_AT_ONCE = 5000
"""Rows dropped, or pages given back, in one transaction: some 50 ms, so that no writer waits long."""
_FEW = 0.1
"""Share of the largest table's rows up to which a table of the history is spared where the file is too large."""


def tables(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Names of the tables that have a time, sorted."""
    query = (
        "SELECT m.name FROM sqlite_master m, pragma_table_info(m.name) c "
        "WHERE m.type = 'table' AND c.name = 'time' ORDER BY m.name"
    )
    return tuple(name for (name,) in connection.execute(query))


def span(connection: sqlite3.Connection, after: int) -> tuple[int, int] | None:
    """Times of the oldest and the newest row later than `after`, over all tables."""
    query = " UNION ALL ".join(
        f"SELECT (SELECT min(time) FROM {quote(name)} WHERE time > :after), "  # noqa: S608 - quoted
        f"(SELECT max(time) FROM {quote(name)} WHERE time > :after)"
        for name in tables(connection)
    )
    found = connection.execute(query, {"after": after}).fetchall() if query else []
    ends = [(first, last) for first, last in found if first is not None]
    return (min(first for first, _ in ends), max(last for _, last in ends)) if ends else None


def drop_before(connection: sqlite3.Connection, before: int, history_before: int) -> int:
    """Drop up to a few thousand rows of each table with time < before (Unix ns); returns how many.

    Of the tables of the history those with time < history_before.
    """
    return sum(
        _drop(connection, table, min(before, history_before) if table in HISTORY else before)
        for table in tables(connection)
    )


def drop_oldest(connection: sqlite3.Connection, size_bytes: int) -> int:
    """Drop a slice of the oldest rows of all tables if the file holds more than this; returns how many.

    A table of the history is spared as long as it is small beside the others.
    """
    if _held_bytes(connection) <= size_bytes:
        return 0
    rows = {name: _rows(connection, name) for name in tables(connection)}
    few = _FEW * max(rows.values(), default=0)
    names = [name for name, count in rows.items() if name not in HISTORY or count > few]
    # The table that fills fastest sets the pace, so that small tables keep their rows as long as it does.
    for nth in (_AT_ONCE, 500, 50, 5, 0):
        times = [time for name in names if (time := _time_at(connection, name, nth)) is not None]
        if times:
            return sum(_drop(connection, name, min(times) + 1) for name in names)
    return 0


def give_back(connection: sqlite3.Connection) -> None:
    """Return free pages to the file system and shorten the write-ahead log, if no reader is in the way."""
    # As a script: this pragma gives rows without columns, at the first of which execute() would stop.
    while connection.execute("PRAGMA freelist_count").fetchone()[0]:
        connection.executescript(f"PRAGMA incremental_vacuum({_AT_ONCE})")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _held_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _rows(connection: sqlite3.Connection, table: str) -> int:
    """About how many rows a table has, from its first and last rowid."""
    query = f"SELECT (SELECT max(rowid) FROM {quote(table)}) - (SELECT min(rowid) FROM {quote(table)})"  # noqa: S608
    return int(connection.execute(query).fetchone()[0] or 0)


def _time_at(connection: sqlite3.Connection, table: str, nth: int) -> int | None:
    """Time of the nth oldest row; None where there is no such row."""
    query = f"SELECT time FROM {quote(table)} ORDER BY time LIMIT 1 OFFSET {nth}"  # noqa: S608 - quoted
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def _drop(connection: sqlite3.Connection, table: str, before: int) -> int:
    name = quote(table)
    chosen = f"SELECT rowid FROM {name} WHERE time < ? ORDER BY time LIMIT {_AT_ONCE}"  # noqa: S608 - quoted
    return connection.execute(f"DELETE FROM {name} WHERE rowid IN ({chosen})", (before,)).rowcount  # noqa: S608 - quoted
