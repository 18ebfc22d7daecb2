"""Which form a store has: so that one of another version, or of another program, is named instead of misread."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from store.catalogue import TABLES
from store.columns import key_columns
from store.contract import StoreError
from store.sqlite import declared_types

VERSION = 1
"""Raised when tables or their keys change their meaning. In an SQLite file it is `user_version`."""
KEY = b"peerwatch_schema"
"""Under this name a recording's files carry it, in the metadata of Parquet."""
MEASUREMENT, FIELD = "peerwatch", "schema"
"""In InfluxDB it is this field of a measurement of its own."""


def refuse_other(place: object, version: int) -> None:
    """Raise StoreError for a store of another version than ours."""
    if version != VERSION:
        age, mend = ("a newer", "upgrade it here") if version > VERSION else ("an older", "name a new store")
        raise StoreError(f"{place} was written by {age} Peerwatch (schema {version}, here {VERSION}): {mend}")


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
