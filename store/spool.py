"""The spool: a queue on disk between the agent and a server, so that a reading outlives both of them and the network.

What `put` has taken is there after kill -9. Only the sender takes away, after the server's word; or the bounds do, the
oldest first, counted. Every line that was ever taken is sent, dropped, refused or waiting: `ledger` adds up.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from store.contract import StoreError
from store.line_protocol import pack
from store.sqlite import connect, explain

log = logging.getLogger(__name__)

FILE = "spool.db"
POST_LINES = 5000
"""Lines that are put together at most."""
_VACUUM_PAGES = 500
"""Pages given back to the file system at a time: some milliseconds."""
REFUSED_KEPT = 1000
"""Lines that the server refused are kept for a person to look at: the newest so many."""
_COUNTERS = ("taken", "sent", "dropped", "refused")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS post (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER, lines INTEGER, body BLOB);
CREATE TABLE IF NOT EXISTS refused (time INTEGER, reason TEXT, line BLOB);
CREATE TABLE IF NOT EXISTS ledger (name TEXT PRIMARY KEY, lines INTEGER) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Post:
    """Lines that were put together: packed, and how many."""

    number: int
    lines: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Ledger:
    """What has become of all lines: taken = sent + dropped + refused + waiting."""

    taken: int
    sent: int
    dropped: int
    refused: int
    waiting: int
    waiting_bytes: int


class Spool:
    """The queue in one folder; one process at a time has it. Bounds: bytes of packed lines, and their age.

    Raises StoreError: no such folder may be made, another process has it, or the disk is full.
    """

    def __init__(self, folder: str | Path, most_bytes: int, most_seconds: float) -> None:
        self.path = Path(folder) / FILE
        self._bounds = most_bytes, round(most_seconds * 1e9)
        self._lock = threading.Lock()
        self._held = self._hold()
        try:
            self._connection = self._open()
            with self._explained():
                self._counts: dict[str, int] = dict(self._connection.execute("SELECT name, lines FROM ledger"))
                found = "SELECT coalesce(sum(lines), 0), coalesce(sum(length(body)), 0) FROM post"
                self._waiting, self._bytes = self._connection.execute(found).fetchone()
        except BaseException:
            os.close(self._held)
            raise

    def put(self, lines: list[bytes], now: int) -> None:
        """Keep these lines (Unix ns `now` is when they came). When it returns they are on disk."""
        if not lines:
            return
        pieces = [lines[first : first + POST_LINES] for first in range(0, len(lines), POST_LINES)]
        packed = [(now, len(piece), pack(piece)) for piece in pieces]
        with self._transaction() as changes:
            self._connection.executemany("INSERT INTO post (time, lines, body) VALUES (?, ?, ?)", packed)
            changes["taken"], changes["bytes"] = len(lines), sum(len(body) for _, _, body in packed)
            self._bound(now, changes)

    def take(self, most_bytes: int, most_lines: int = POST_LINES) -> list[Post]:
        """The oldest posts, as many as fit, at least one if there is any. They stay until they are settled."""
        posts: list[Post] = []
        with self._lock, self._explained():
            for row in self._connection.execute("SELECT id, lines, body FROM post ORDER BY id LIMIT 1000"):
                post = Post(*row)
                most_bytes, most_lines = most_bytes - len(post.body), most_lines - post.lines
                if posts and (most_bytes < 0 or most_lines < 0):
                    break
                posts.append(post)
        return posts

    def settle(self, posts: Iterable[Post], refused: Iterable[tuple[bytes, str]] = (), now: int = 0) -> None:
        """The server has the lines of these posts, but those that it refused, each with its reason."""
        rows = [(now, reason, line) for line, reason in refused]
        with self._transaction() as changes:
            delete = "DELETE FROM post WHERE id = ?"
            gone = [post for post in posts if self._connection.execute(delete, (post.number,)).rowcount]
            lines = sum(post.lines for post in gone)
            bad = min(len(rows), lines)  # of posts that the bounds have dropped meanwhile nothing is told twice
            changes["sent"], changes["refused"] = lines - bad, bad
            changes["bytes"] = -sum(len(post.body) for post in gone)
            self._connection.executemany("INSERT INTO refused VALUES (?, ?, ?)", rows)
            last = "SELECT max(rowid) FROM refused"
            self._connection.execute(f"DELETE FROM refused WHERE rowid <= ({last}) - {REFUSED_KEPT}")  # noqa: S608
        self._give_back()

    def ledger(self) -> Ledger:
        """What has become of all lines that were ever taken."""
        with self._lock:
            taken, sent, dropped, refused = (self._counts.get(name, 0) for name in _COUNTERS)
            return Ledger(taken, sent, dropped, refused, self._waiting, self._bytes)

    def refused(self) -> list[tuple[str, bytes]]:
        """The newest lines that the server refused, each after its reason."""
        with self._lock, self._explained():
            return self._connection.execute("SELECT reason, line FROM refused ORDER BY rowid").fetchall()

    def close(self) -> None:
        """Let go of the folder."""
        with self._lock:
            self._connection.close()
            os.close(self._held)

    def _bound(self, now: int, changes: dict[str, int]) -> None:
        """Drop the oldest posts above the bounds, within a transaction."""
        most_bytes, most_ns = self._bounds
        while True:
            oldest = self._connection.execute(
                "SELECT id, time, lines, length(body) FROM post ORDER BY id LIMIT 1"
            ).fetchone()
            held = self._bytes + changes["bytes"]
            if oldest is None or (held <= most_bytes and oldest[1] >= now - most_ns):
                return
            self._connection.execute("DELETE FROM post WHERE id = ?", oldest[:1])
            changes["dropped"] = changes.get("dropped", 0) + oldest[2]
            changes["bytes"] -= oldest[3]

    def _give_back(self) -> None:
        with self._lock, self._explained():
            if self._connection.execute("PRAGMA freelist_count").fetchone()[0] > _VACUUM_PAGES:
                self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    @contextmanager
    def _transaction(self) -> Iterator[dict[str, int]]:
        """All or nothing, the ledger with it; gives what changes in it to be filled in."""
        changes: dict[str, int] = {}
        with self._lock, self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield changes
                for name in _COUNTERS:
                    if changes.get(name):
                        counted = self._counts.get(name, 0) + changes[name]
                        self._connection.execute("REPLACE INTO ledger VALUES (?, ?)", (name, counted))
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled back by itself
                    self._connection.execute("ROLLBACK")
                raise
            for name in _COUNTERS:
                self._counts[name] = self._counts.get(name, 0) + changes.get(name, 0)
            self._waiting += changes.get("taken", 0) - sum(changes.get(name, 0) for name in _COUNTERS[1:])
            self._bytes += changes.get("bytes", 0)

    def _hold(self) -> int:
        """The folder for this process alone, until it closes it or ends."""
        folder = self.path.parent
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
            raise StoreError(
                f"{folder} is in use: stop the other agent, or name another influxdb.spool_folder"
            ) from error
        return held

    def _open(self) -> sqlite3.Connection:
        for last in (False, True):
            connection = None
            try:
                connection = connect(self.path, True)
                connection.executescript(_SCHEMA)
                return connection
            except sqlite3.DatabaseError as error:
                if connection is not None:
                    connection.close()
                if last or isinstance(error, sqlite3.OperationalError):
                    raise StoreError(explain(self.path, error)) from error
                self._move_away(error)
        raise AssertionError

    def _move_away(self, error: sqlite3.Error) -> None:
        """A damaged file must not keep the agent from watching: a new one is begun, the old one kept."""
        damaged = self.path.with_suffix(".damaged")
        log.error("%s; it is kept as %s and a new one is begun", explain(self.path, error), damaged)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.replace(damaged)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(explain(self.path, error)) from error
