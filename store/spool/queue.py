"""The spool: a queue on disk between the agent and a server, so that a reading outlives both of them and the network.

What `put` has taken is there after kill -9. Only the sender takes away, after the server's word; or the bounds do, the
oldest first, counted. Every line that was ever taken is sent, dropped, refused or waiting: `ledger` adds up.

What was sent stays for a while, for a server that comes back without it: `again` has it sent once more, uncounted.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from store.line_protocol.write import pack
from store.schema.contract import StoreError
from store.spool.file import hold, opened
from store.sqlite.connection import explain

FILE = "spool.db"
POST_LINES = 5000
"""Lines that are put together at most."""
_VACUUM_PAGES = 500
"""Pages given back to the file system at a time: some milliseconds."""
_BULK = 0.1
"""What was sent goes from the disk by that part of its time at once."""
REFUSED_KEPT = 1000
"""Lines that the server refused are kept for a person to look at: the newest so many."""
_COUNTERS = ("taken", "sent", "dropped", "refused")
# Posts up to the newest of `sent` have been sent: these come first, since the oldest go first.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS post (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER, lines INTEGER, body BLOB);
CREATE TABLE IF NOT EXISTS sent (post INTEGER PRIMARY KEY, time INTEGER);
CREATE TABLE IF NOT EXISTS refused (time INTEGER, reason TEXT, line BLOB);
CREATE TABLE IF NOT EXISTS ledger (name TEXT PRIMARY KEY, lines INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS server (began TEXT, reached INTEGER, until INTEGER);
"""
# What can only be damage: values of a wrong type, numbers that no sum holds, posts that count as sent before they came.
_FAULTS = (
    "SELECT 1 FROM post WHERE typeof(time) != 'integer' OR typeof(body) != 'blob' OR typeof(lines) != 'integer' "
    "OR NOT lines BETWEEN 1 AND 1000000 OR abs(time) > 1 << 62",
    "SELECT 1 FROM sent WHERE typeof(time) != 'integer' OR abs(time) > 1 << 62",
    "SELECT 1 FROM ledger WHERE typeof(lines) != 'integer' OR NOT lines BETWEEN 0 AND 1 << 62",
    "SELECT 1 FROM server WHERE typeof(began) != 'text' OR typeof(reached) != 'integer' OR typeof(until) != 'integer'",
    "SELECT 1 FROM sqlite_sequence WHERE typeof(seq) != 'integer' OR NOT seq BETWEEN 0 AND 1 << 62",
    "SELECT 1 FROM sent WHERE post > (SELECT coalesce(max(seq), 0) FROM sqlite_sequence)",
    "SELECT 1 FROM server WHERE max(reached, until) > (SELECT coalesce(max(seq), 0) FROM sqlite_sequence)",
)


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


@dataclass(slots=True)
class _Change:
    """What a transaction changes: lines of the ledger, bytes that wait, and that stay after they were sent."""

    lines: dict[str, int]
    waiting: int = 0
    stays: int = 0
    sent: int = 0
    """Number of the last post that was sent."""


class Spool:
    """The queue in one folder; one process at a time has it. Bounds: bytes of packed lines, and their age.

    What was sent stays for `resend_seconds`, as far as the bytes allow.
    Raises StoreError: no such folder may be made, another process has it, or the disk is full.
    """

    def __init__(self, folder: str | Path, most_bytes: int, most_seconds: float, resend_seconds: float = 0.0) -> None:
        self.path, self.resend_seconds = Path(folder) / FILE, resend_seconds
        self._bounds = most_bytes, round(most_seconds * 1e9)
        self._lock = threading.Lock()
        self._held = hold(self.path.parent)
        try:
            self._connection = opened(self.path, _SCHEMA, _FAULTS)
            with self._explained():
                self._recall()
        except BaseException:
            os.close(self._held)
            raise

    def put(self, lines: list[bytes], now: int) -> None:
        """Keep these lines (Unix ns `now` is when they came). When it returns they are on disk."""
        if not lines:
            return
        pieces = [lines[first : first + POST_LINES] for first in range(0, len(lines), POST_LINES)]
        packed = [(now, len(piece), pack(piece)) for piece in pieces]
        with self._transaction() as change:
            self._connection.executemany("INSERT INTO post (time, lines, body) VALUES (?, ?, ?)", packed)
            change.lines["taken"], change.waiting = len(lines), sum(len(body) for _, _, body in packed)
            self._bound(now, change)

    def take(self, most_bytes: int, most_lines: int = POST_LINES) -> list[Post]:
        """The oldest posts, as many as fit, at least one if there is any. They stay until they are settled."""
        return self._posts(self._sent, None, most_bytes, most_lines)

    def settle(self, posts: Iterable[Post], refused: Iterable[tuple[bytes, str]] = (), now: int = 0) -> None:
        """The server has the lines of these posts, the oldest, but those that it refused, each with its reason."""
        rows = [(now, reason, line) for line, reason in refused]
        with self._transaction() as change:
            # Of posts that the bounds have dropped meanwhile nothing is told twice.
            oldest = self._connection.execute("SELECT min(id) FROM post").fetchone()[0] or 1 << 62
            gone = [post for post in posts if post.number >= max(oldest, self._sent + 1)]
            lines = sum(post.lines for post in gone)
            bad = min(len(rows), lines)
            change.lines.update(sent=lines - bad, refused=bad)
            change.stays = sum(len(post.body) for post in gone)
            change.waiting = -change.stays
            if gone:
                change.sent = gone[-1].number
                self._connection.execute("INSERT INTO sent VALUES (?, ?)", (change.sent, now))
            if rows:
                self._connection.executemany("INSERT INTO refused VALUES (?, ?, ?)", rows)
                last = "SELECT max(rowid) FROM refused"
                self._connection.execute(f"DELETE FROM refused WHERE rowid <= ({last}) - {REFUSED_KEPT}")  # noqa: S608
            self._let_go(now, change)
        self._give_back()

    def again(self, began: str) -> None:
        """All that stays is to be sent again, to the server that began then, as it says."""
        with self._lock:
            self._remember(began, 0, self._sent)

    def take_again(self, most_bytes: int) -> list[Post]:
        """Of the posts to be sent again the oldest, as many as fit."""
        if self._reached == self._until:
            return []
        posts = self._posts(self._reached, self._until, most_bytes, POST_LINES)
        if not posts:
            self._again_until(self._until)
        return posts

    def settle_again(self, posts: list[Post]) -> None:
        """The server has these posts again."""
        self._again_until(posts[-1].number)

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

    def _recall(self) -> None:
        ask = self._connection.execute
        self._counts: dict[str, int] = dict(ask("SELECT name, lines FROM ledger"))
        self._sent: int = ask("SELECT coalesce(max(post), 0) FROM sent").fetchone()[0]
        found = "SELECT coalesce(sum(lines), 0), coalesce(sum(length(body)), 0) FROM post WHERE id > ?"
        self._waiting, self._bytes = ask(found, (self._sent,)).fetchone()
        self._stays: int = ask(found, (0,)).fetchone()[1] - self._bytes
        self.began: str
        self._reached: int
        self._until: int
        self.began, self._reached, self._until = ask("SELECT * FROM server").fetchone() or ("", 0, 0)

    def _again_until(self, number: int) -> None:
        with self._lock:
            self._remember(self.began, number, self._until)

    def _remember(self, began: str, reached: int, until: int) -> None:
        with self._explained():
            noted = "REPLACE INTO server (rowid, began, reached, until) VALUES (1, ?, ?, ?)"
            self._connection.execute(noted, (began, reached, until))
        self.began, self._reached, self._until = began, reached, until

    def _posts(self, after: int, until: int | None, most_bytes: int, most_lines: int) -> list[Post]:
        posts: list[Post] = []
        asked = "SELECT id, lines, body FROM post WHERE id > ? AND id <= ? ORDER BY id LIMIT 1000"
        with self._lock, self._explained():
            for row in self._connection.execute(asked, (after, 1 << 62 if until is None else until)):
                post = Post(*row)
                most_bytes, most_lines = most_bytes - len(post.body), most_lines - post.lines
                if posts and (most_bytes < 0 or most_lines < 0):
                    break
                posts.append(post)
        return posts

    def _bound(self, now: int, change: _Change) -> None:
        """Drop the oldest posts above the bounds, within a transaction; those that were sent are no loss."""
        most_bytes, most_ns = self._bounds
        while True:
            oldest = self._connection.execute(
                "SELECT id, time, lines, length(body) FROM post ORDER BY id LIMIT 1"
            ).fetchone()
            held = self._bytes + self._stays + change.waiting + change.stays
            if oldest is None or (held <= most_bytes and oldest[1] >= now - most_ns):
                return
            if not self._connection.execute("DELETE FROM post WHERE id = ?", oldest[:1]).rowcount:
                raise sqlite3.DatabaseError("malformed: a post cannot be found by its number")
            if oldest[0] <= self._sent:
                change.stays -= oldest[3]
                continue
            change.lines["dropped"] = change.lines.get("dropped", 0) + oldest[2]
            change.waiting -= oldest[3]

    def _let_go(self, now: int, change: _Change) -> None:
        """Delete what was sent long ago, within a transaction; not what is to be sent again."""
        stay_ns = round(self.resend_seconds * 1e9)
        first = self._connection.execute("SELECT time FROM sent ORDER BY post LIMIT 1").fetchone()
        if first is None or first[0] > now - stay_ns * (1 + _BULK):
            return
        last = self._connection.execute("SELECT max(post) FROM sent WHERE time <= ?", (now - stay_ns,)).fetchone()[0]
        if self._reached < self._until:
            last = min(last, self._reached)
        size = "SELECT coalesce(sum(length(body)), 0) FROM post WHERE id <= ?"
        change.stays -= self._connection.execute(size, (last,)).fetchone()[0]
        self._connection.execute("DELETE FROM post WHERE id <= ?", (last,))
        self._connection.execute("DELETE FROM sent WHERE post <= ?", (last,))

    def _give_back(self) -> None:
        with self._lock, self._explained():
            if self._connection.execute("PRAGMA freelist_count").fetchone()[0] > _VACUUM_PAGES:
                self._connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    @contextmanager
    def _transaction(self) -> Iterator[_Change]:
        """All or nothing, the ledger with it; gives what changes in it to be filled in."""
        change = _Change({})
        with self._lock, self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield change
                for name, lines in change.lines.items():
                    if lines:
                        counted = self._counts.get(name, 0) + lines
                        self._connection.execute("REPLACE INTO ledger VALUES (?, ?)", (name, counted))
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled back by itself
                    self._connection.execute("ROLLBACK")
                raise
            for name, lines in change.lines.items():
                self._counts[name] = self._counts.get(name, 0) + lines
            self._waiting += change.lines.get("taken", 0) - sum(change.lines.get(name, 0) for name in _COUNTERS[1:])
            self._bytes, self._stays = self._bytes + change.waiting, self._stays + change.stays
            self._sent = max(self._sent, change.sent)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(explain(self.path, error)) from error
