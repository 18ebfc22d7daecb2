"""The store that needs no server: one SQLite file, write-ahead log, one plain wide table for each kind of row.

A person can ask it with any SQLite client: `select * from gpu order by time desc limit 5`.
Many threads and processes may write and read at once; a committed batch survives a kill of its writer.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from store.schema.columns import key_columns, type_of
from store.schema.contract import StoreError
from store.schema.sample import Batch
from store.schema.time import LATEST
from store.schema.version import VERSION
from store.sqlite import insert, retention
from store.sqlite.connection import DAMAGED, DECLARED, connect, declared_types, explain, is_busy, quote
from store.sqlite.schema_check import check_version

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_PATIENCE_S = 60.0
_CHUNK_ROWS = 16384


class Embedded:
    """A store in one SQLite file. `create` says whether a file that is not there is begun.

    Without it the file is opened for reading, and for writing by the first write.
    """

    def __init__(self, path: str | Path, create: bool = True) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._table_cache = insert.TableCache()
        self._writes, self._stamped = create, False
        self._connection = self._patiently(lambda: connect(self.path, create, create, check_version))

    def write(self, batches: Iterable[Batch]) -> None:
        """Keep these batches in one transaction; tables and columns that are missing are added."""
        groups = insert.group(batches)
        if groups:
            self._transact(lambda connection: insert.insert(connection, groups, self._table_cache))

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until as an Arrow table; the contract has the details."""
        from store import arrow  # pyarrow is large and the agent never reads

        def select(connection: sqlite3.Connection) -> pa.Table:
            found = declared_types(connection, table)
            if not found:
                return arrow.empty(table)
            wanted = found if columns is None else {*key_columns(table), *columns}
            types = {name: type_of(table, name) or kind for name, kind in found.items() if name in wanted}
            cells = ", ".join(
                quote(name) if types[name] == found[name] else f"CAST({quote(name)} AS {DECLARED[types[name]]})"
                for name in types
            )
            query = f"SELECT {cells} FROM {quote(table)} WHERE time > ? AND time <= ? ORDER BY time, rowid"  # noqa: S608 - names are quoted
            with closing(connection.execute(query, (after, until))) as cursor:
                rows = iter(lambda: cursor.fetchmany(_CHUNK_ROWS), [])
                try:
                    return arrow.from_rows(rows, types)
                except (ValueError, TypeError, OverflowError) as error:
                    raise StoreError(f"{self.path} {DAMAGED} (table {table} holds what fits no column)") from error

        return self._patiently(lambda: self._locked(select))

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Times of the oldest and the newest row later than `after`, over all tables."""
        return self._patiently(lambda: self._locked(lambda connection: retention.span(connection, after)))

    def tables(self) -> tuple[str, ...]:
        """Names of the tables, sorted."""
        return self._patiently(lambda: self._locked(retention.tables))

    def prune(self, now: int, age_s: float | None = None, size_bytes: int | None = None, history_s: float = 0.0) -> int:
        """Drop rows older than `age_s` before `now` (Unix ns), then the oldest until the file fits `size_bytes`.

        Rows of the history (verdicts, events, cards, checks) stay for `history_s` where that is longer. Returns the
        number of rows dropped; the space goes back to the file system.
        """
        dropped = 0
        if age_s is not None:
            before, past = now - round(age_s * 1e9), now - round(history_s * 1e9)
            dropped += self._repeat(lambda connection: retention.drop_before(connection, before, past))
        if size_bytes is not None:
            dropped += self._repeat(lambda connection: retention.drop_oldest(connection, size_bytes))
        self._patiently(lambda: self._locked(retention.give_back))
        return dropped

    def size_bytes(self) -> int:
        """Bytes that the file and its write-ahead log take on disk."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def attempt(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if not self._stamped:
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                    self._stamped = True
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                self._stamped = False
                self._table_cache.clear()  # what this transaction added is gone again
                with suppress(sqlite3.Error):  # a full disk has rolled back by itself
                    connection.execute("ROLLBACK")
                raise
            return result

        self._open_to_write()
        return self._patiently(lambda: self._locked(attempt))

    def _open_to_write(self) -> None:
        with self._lock:
            if not self._writes:
                self._connection.close()
                self._connection = self._patiently(lambda: connect(self.path, False, True, check_version))
                self._writes = True

    def _repeat(self, work: Callable[[sqlite3.Connection], int]) -> int:
        """Do a piece of work in short transactions, so that writers get in between, until it drops nothing."""
        total = 0
        while count := self._transact(work):
            total += count
        return total

    def _locked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            return work(self._connection)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Try again while others hold the file: SQLite's own busy handler is not asked in every case."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return attempt()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise StoreError(explain(self.path, error)) from error
            time.sleep(0.02)
