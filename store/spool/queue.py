"""The spool: a queue on disk between the agent and a server, so that samples survive a crash of either and an outage.

What `put` has stored survives kill -9. Only an answer of the server removes posts, or the bounds: the oldest first, and
counted. Sent posts stay for a while, for a server that restarts without them; they are then sent again, uncounted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from store.line_protocol.write import pack
from store.schema.time import SECOND
from store.spool.database import Change, Database, LineCounts

POST_LINES = 5000
"""Most lines of one post."""
MAX_REFUSED_LINES = 1000
"""So many lines that the server refused stay in the file, the newest, for a person to inspect."""
_BULK = 0.1
"""Sent posts are deleted in bulk, once the oldest is this share of `resend_seconds` overdue."""


@dataclass(frozen=True, slots=True)
class Post:
    """Lines that are sent together: packed, and their number."""

    number: int
    lines: int
    body: bytes


class Spool:
    """The queue in one folder; one process at a time has it. Bounds: bytes of packed lines, and their age.

    Sent posts stay for `resend_seconds`, as far as the bytes allow.
    Raises StoreError: the folder cannot be made, another process has it, or the disk is full.
    """

    def __init__(self, folder: str | Path, max_bytes: int, max_seconds: float, resend_seconds: float = 0.0) -> None:
        self.resend_seconds = resend_seconds
        self._bounds = max_bytes, round(max_seconds * SECOND)
        self._db = Database(Path(folder))
        self.path, self._ask = self._db.path, self._db.connection.execute
        self.began, self._reached, self._until = self._db.server

    def put(self, lines: list[bytes], now: int) -> None:
        """Store these lines, which arrived at `now` (Unix ns). When it returns they are on disk."""
        if not lines:
            return
        parts = [lines[first : first + POST_LINES] for first in range(0, len(lines), POST_LINES)]
        packed = [(now, len(part), pack(part)) for part in parts]
        with self._db.transaction() as change:
            self._db.connection.executemany("INSERT INTO post (time, lines, body) VALUES (?, ?, ?)", packed)
            change.lines, change.waiting = len(lines), sum(len(body) for _, _, body in packed)
            self._enforce_bounds(now, change)

    def oldest_posts(self, max_bytes: int, max_lines: int = POST_LINES) -> list[Post]:
        """The oldest posts, as many as fit, at least one if there is any. They stay until they are settled."""
        return self._posts(self._db.sent, None, max_bytes, max_lines)

    def settle(self, posts: Iterable[Post], refused: Iterable[tuple[bytes, str]] = (), now: int = 0) -> None:
        """The server has the lines of these posts, the oldest, except those that it refused, each with its reason."""
        rows = [(now, reason, line) for line, reason in refused]
        with self._db.transaction() as change:
            # Posts that the bounds dropped meanwhile are counted already.
            oldest = self._ask("SELECT min(id) FROM post").fetchone()[0] or 1 << 62
            settled = [post for post in posts if post.number >= max(oldest, self._db.sent + 1)]
            lines = sum(post.lines for post in settled)
            bad = min(len(rows), lines)
            change.counts.update(sent=lines - bad, refused=bad)
            change.stays = sum(len(post.body) for post in settled)
            change.lines, change.waiting = -lines, -change.stays
            if settled:
                change.sent = settled[-1].number
                self._ask("INSERT INTO sent VALUES (?, ?)", (change.sent, now))
            if rows:
                self._db.connection.executemany("INSERT INTO refused VALUES (?, ?, ?)", rows)
                last = "SELECT max(rowid) FROM refused"
                self._ask(f"DELETE FROM refused WHERE rowid <= ({last}) - {MAX_REFUSED_LINES}")  # noqa: S608
            self._delete_expired(now, change)
        self._db.give_back()

    def request_resend(self, began: str) -> None:
        """Have all sent posts that stay sent again, to the server that started at `began`, in its own words."""
        with self._db.lock:
            self._store_resend(began, 0, self._db.sent)

    def posts_to_resend(self, max_bytes: int) -> list[Post]:
        """The oldest of the posts to be sent again, as many as fit."""
        if self._reached == self._until:
            return []
        posts = self._posts(self._reached, self._until, max_bytes, POST_LINES)
        if not posts:
            self._resent_until(self._until)
        return posts

    def settle_resent(self, posts: list[Post]) -> None:
        """The server has these posts again."""
        self._resent_until(posts[-1].number)

    def line_counts(self) -> LineCounts:
        """The fate of all lines that were ever put."""
        return self._db.line_counts()

    def refused(self) -> list[tuple[str, bytes]]:
        """The newest lines that the server refused, each after its reason."""
        with self._db.lock, self._db.explained():
            return self._ask("SELECT reason, line FROM refused ORDER BY rowid").fetchall()

    def close(self) -> None:
        """Release the folder."""
        self._db.close()

    def _resent_until(self, number: int) -> None:
        with self._db.lock:
            self._store_resend(self.began, number, self._until)

    def _store_resend(self, began: str, reached: int, until: int) -> None:
        with self._db.explained():
            query = "REPLACE INTO server (rowid, began, reached, until) VALUES (1, ?, ?, ?)"
            self._ask(query, (began, reached, until))
        self.began, self._reached, self._until = began, reached, until

    def _posts(self, after: int, until: int | None, max_bytes: int, max_lines: int) -> list[Post]:
        posts: list[Post] = []
        query = "SELECT id, lines, body FROM post WHERE id > ? AND id <= ? ORDER BY id LIMIT 1000"
        with self._db.lock, self._db.explained():
            for row in self._ask(query, (after, 1 << 62 if until is None else until)):
                post = Post(*row)
                max_bytes, max_lines = max_bytes - len(post.body), max_lines - post.lines
                if posts and (max_bytes < 0 or max_lines < 0):
                    break
                posts.append(post)
        return posts

    def _enforce_bounds(self, now: int, change: Change) -> None:
        """Delete the oldest posts beyond the bounds, within a transaction; those already sent are no loss."""
        max_bytes, max_ns = self._bounds
        while True:
            oldest = self._ask("SELECT id, time, lines, length(body) FROM post ORDER BY id LIMIT 1").fetchone()
            size = self._db.waiting + self._db.stays + change.waiting + change.stays
            if oldest is None or (size <= max_bytes and oldest[1] >= now - max_ns):
                return
            if not self._ask("DELETE FROM post WHERE id = ?", oldest[:1]).rowcount:
                raise sqlite3.DatabaseError("malformed: a post cannot be found by its number")
            if oldest[0] <= self._db.sent:
                change.stays -= oldest[3]
                continue
            change.counts["dropped"] = change.counts.get("dropped", 0) + oldest[2]
            change.lines, change.waiting = change.lines - oldest[2], change.waiting - oldest[3]

    def _delete_expired(self, now: int, change: Change) -> None:
        """Delete posts that were sent long ago, within a transaction, except those to be sent again."""
        stay_ns = round(self.resend_seconds * SECOND)
        first = self._ask("SELECT time FROM sent ORDER BY post LIMIT 1").fetchone()
        if first is None or first[0] > now - stay_ns * (1 + _BULK):
            return
        last = self._ask("SELECT max(post) FROM sent WHERE time <= ?", (now - stay_ns,)).fetchone()[0]
        if self._reached < self._until:
            last = min(last, self._reached)
        size = "SELECT coalesce(sum(length(body)), 0) FROM post WHERE id <= ?"
        change.stays -= self._ask(size, (last,)).fetchone()[0]
        self._ask("DELETE FROM post WHERE id <= ?", (last,))
        self._ask("DELETE FROM sent WHERE post <= ?", (last,))
