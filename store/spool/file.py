"""The spool's folder and file: one process at a time has them, and a damaged file is set aside."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from store.schema.contract import StoreError
from store.sqlite.connection import connect, explain, is_damage

log = logging.getLogger(__name__)


def hold(folder: Path) -> int:
    """The folder for this process alone, until it closes what is returned or ends. Raises StoreError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        held = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StoreError(
            f"readings cannot wait in {folder}: {error.strerror}; name another influxdb.spool_folder"
        ) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise StoreError(f"{folder} is in use: stop the other agent, or name another influxdb.spool_folder") from error
    return held


def opened(path: Path, schema: str, faults: Sequence[str]) -> sqlite3.Connection:
    """The file with the tables of this schema, where none of the queries `faults` finds a row.

    Raises StoreError; a damaged file is moved away and a new one begun.
    """
    for last in (False, True):
        connection = None
        try:
            connection = connect(path, True)
            connection.executescript(schema)
            _examine(connection, faults)
            return connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if connection is not None:
                connection.close()
            if last or not is_damage(path, error):
                raise StoreError(explain(path, error)) from error
            _move_away(path, error)
    raise AssertionError


def _examine(connection: sqlite3.Connection, faults: Sequence[str]) -> None:
    """Read all of it once, since damage that only a later step meets would stop that step for good."""
    if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise sqlite3.DatabaseError("its pages are malformed")
    for query in faults:
        if connection.execute(query).fetchone():
            raise sqlite3.DatabaseError("its values are malformed")


def _move_away(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> None:
    """A damaged file must not stop the agent: it is renamed, and a new one is begun."""
    damaged = path.with_suffix(".damaged")
    log.error("%s is damaged (%s): it is renamed to %s and a new one is begun", path, error, damaged)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.replace(damaged)
