"""Whether an SQLite file is a store of this version."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from store.schema.catalogue import TABLES
from store.schema.columns import key_columns
from store.schema.contract import StoreError
from store.schema.version import VERSION, refuse_other
from store.sqlite.connection import declared_types


def check_version(path: Path, connection: sqlite3.Connection) -> None:
    """Raise StoreError where an SQLite file is no store of this version. Files of before there was one count as it."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if not tables:
        return
    columns = {name: declared_types(connection, name).keys() for name in tables if not name.startswith("sqlite_")}
    if not any({"time", "machine"} <= found for found in columns.values()):
        raise StoreError(f"{path} is the database of another program, not of Peerwatch: name another file")
    refuse_other(path, version or VERSION)
    for name, found in columns.items():
        if name in TABLES and not set(key_columns(name)) <= found:
            missing = ", ".join(sorted(set(key_columns(name)) - found))
            raise StoreError(f"{path} was written by another Peerwatch: table {name} lacks {missing}; name a new store")
