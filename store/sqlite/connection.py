"""The SQLite file itself: how it is opened, what its columns are, and what its errors mean."""

from __future__ import annotations

import errno
import grp
import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

from store.schema.columns import Type
from store.schema.contract import StoreError

DECLARED: dict[Type, str] = {"int64": "INTEGER", "double": "REAL", "string": "TEXT"}
_TYPES: dict[str, Type] = {word: kind for kind, word in DECLARED.items()}

DAMAGED = "is damaged: move it away (a new one is begun), or rescue it with sqlite3 FILE .recover"
# How SQLite words an error (all versions), and what a person can do about it.
_MEANINGS = (
    ("not a database", "is not an SQLite file: name another file, or move this one away"),
    ("malformed", DAMAGED),
    ("decode", DAMAGED),  # a text, or SQLite's own message that quotes one, is not UTF-8
    ("disk is full", "cannot grow, the disk is full: free space or lower the store's size"),
    ("readonly", "may only be read by this user: run as the user who owns it"),
    ("unable to open", "cannot be opened: this user needs the right to read and write the file and its folder"),
    ("locked", "is locked by another program: find it with fuser FILE"),
    ("busy", "is locked by another program: find it with fuser FILE"),
    ("disk i/o", "cannot be read or written, the disk reports an error: look at the kernel log (dmesg)"),
)


def connect(
    path: Path, create: bool, write: bool = True, check: Callable[[Path, sqlite3.Connection], None] | None = None
) -> sqlite3.Connection:
    """A connection in which transactions are begun by hand; `check` sees it before anything is written.

    A file that is not there is begun with `create`; without `write` nothing in it is changed. Raises StoreError and
    sqlite3.Error.
    """
    _reachable(path)
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no regular file: name another place")
    if not path.exists():
        if not create:
            raise StoreError(f"{path} is not there: is the agent running, and does it write to this place?")
        _begin(path)
    write = write and os.access(path, os.W_OK)
    connection = sqlite3.connect(
        _address(path, write), uri=True, timeout=30, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if check is not None:
            check(path, connection)
        if write:
            # Before the first table, or it has no effect; lets pruning give space back without a full rewrite.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            # A power cut may lose the last batches, a kill of the process none; no fsync at each write.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA journal_size_limit = 16777216")
    except BaseException:
        connection.close()
        raise
    return connection


def _reachable(path: Path) -> None:
    folder = path.parent
    if not os.path.isdir(folder):  # Path.is_dir() would be an error behind a folder that may not be entered
        raise StoreError(f"{path}: there is no folder {folder} (or it is hidden from this user); create it first")
    if os.access(folder, os.X_OK):
        return
    status = folder.stat()
    if not status.st_mode & stat.S_IXGRP or status.st_gid == 0:  # the group root is no group to join
        raise StoreError(f"{path} cannot be reached: this user may not enter its folder; use sudo")
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    raise StoreError(
        f"{path} is for members of the group {group}, this user is none: "
        f"sudo usermod -aG {group} $USER, then log in again (or use sudo)"
    )


def _begin(path: Path) -> None:
    """An empty file for user and group; SQLite gives the files beside it the same mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o640))
    except OSError as error:
        raise sqlite3.OperationalError(f"unable to open database file: {error.strerror}") from error


def _address(path: Path, write: bool) -> str:
    address = path.absolute().as_uri()
    if write:
        return address
    # Without its log no process has the file open, so where no log can be begun either it may be taken as unchanging;
    # SQLite insists on that promise.
    idle = not path.with_name(f"{path.name}-wal").exists()
    return f"{address}?mode=ro{'&immutable=1' if idle and not os.access(path, os.W_OK) else ''}"


def declared_types(connection: sqlite3.Connection, table: str) -> dict[str, Type]:
    """Columns of a table and their types; none where there is no such table."""
    rows = connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()
    return {name: _TYPES.get(kind.upper(), "string") for name, kind in rows}


def quote(name: str) -> str:
    """A name as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def is_busy(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether another connection was in the way for a moment."""
    return "locked" in str(error) or "busy" in str(error)


def is_damage(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether the file itself is bad, not what is around it: rights, room, others that use it."""
    text = str(error).lower()
    if "readonly" in text:  # SQLite says so too of a file in which the first bytes claim a form that it cannot write
        return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    return not any(word in text for word in ("full", "unable to open", "locked", "busy", "disk i/o"))


def explain(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> str:
    """One line that names cause and mend."""
    text = str(error).lower()
    if "unable to open" in text and not _has_descriptors():
        return f"{path} cannot be opened: no file descriptor is left; raise the limit (LimitNOFILE, ulimit -n)"
    meaning = next((said for word, said in _MEANINGS if word in text), None)
    return f"{path} {meaning.replace('FILE', str(path))}" if meaning else f"{path}: SQLite says {error}"


def _has_descriptors() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
