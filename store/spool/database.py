"""The spool's SQLite file: transactions that change the posts and the counters together, or not at all."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from store.schema.contract import StoreError
from store.spool.file import hold, opened
from store.spool.schema import COUNTERS, FAULTS, FILE, SCHEMA
from store.sqlite.connection import explain

_VACUUM_PAGES = 500
"""Pages given back to the file system at a time: some milliseconds."""


@dataclass(frozen=True, slots=True)
class LineCounts:
    """The fate of all lines: taken = sent + dropped + refused + waiting."""

    taken: int
    sent: int
    dropped: int
    refused: int
    waiting: int
    waiting_bytes: int


@dataclass(slots=True)
class Change:
    """What one transaction changes: counted lines, lines and bytes that wait, bytes that stay after they were sent."""

    counts: dict[str, int]
    lines: int = 0
    waiting: int = 0
    stays: int = 0
    sent: int = 0
    """Number of the last post that was sent."""


class Database:
    """The file of one spool; one process at a time has it. Raises StoreError."""

    def __init__(self, folder: Path) -> None:
        self.path, self.lock = folder / FILE, threading.Lock()
        self._held = hold(folder)
        try:
            self.connection = opened(self.path, SCHEMA, FAULTS)
            with self.explained():
                self._load()
        except BaseException:
            os.close(self._held)
            raise

    def _load(self) -> None:
        ask = self.connection.execute
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0) | dict(ask("SELECT name, lines FROM line_count"))
        self.sent: int = ask("SELECT coalesce(max(post), 0) FROM sent").fetchone()[0]
        sums = "SELECT coalesce(sum(lines), 0), coalesce(sum(length(body)), 0) FROM post WHERE id > ?"
        self.lines, self.waiting = ask(sums, (self.sent,)).fetchone()
        self.server: tuple[str, int, int] = ask("SELECT * FROM server").fetchone() or ("", 0, 0)
        """When the server started, in its own words; the last post sent again, and the last one to be."""
        self.stays: int = ask(sums, (0,)).fetchone()[1] - self.waiting

    def line_counts(self) -> LineCounts:
        """The fate of all lines that were ever put."""
        with self.lock:
            sent, dropped, refused = (self.counts[name] for name in COUNTERS)
            return LineCounts(sent + dropped + refused + self.lines, sent, dropped, refused, self.lines, self.waiting)

    def give_back(self) -> None:
        """Return free pages to the file system."""
        with self.lock, self.explained():
            if self.connection.execute("PRAGMA freelist_count").fetchone()[0] > _VACUUM_PAGES:
                self.connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")

    def close(self) -> None:
        """Release the file and the folder."""
        with self.lock:
            self.connection.close()
            os.close(self._held)

    @contextmanager
    def transaction(self) -> Iterator[Change]:
        """All or nothing, counters included; yields the change to be filled in."""
        change = Change({})
        with self.lock, self.explained():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield change
                totals = {name: self.counts[name] + lines for name, lines in change.counts.items() if lines}
                self.connection.executemany("REPLACE INTO line_count VALUES (?, ?)", totals.items())
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk has rolled back by itself
                    self.connection.execute("ROLLBACK")
                raise
            self.counts |= totals
            self.lines, self.waiting = self.lines + change.lines, self.waiting + change.waiting
            self.stays, self.sent = self.stays + change.stays, max(self.sent, change.sent)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn SQLite's errors into one line that names cause and mend."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StoreError(explain(self.path, error)) from error
