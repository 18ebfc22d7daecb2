"""The SQLite schema of the spool's file, and the queries that find a damaged file."""

from __future__ import annotations

FILE = "spool.db"
COUNTERS = ("sent", "dropped", "refused")
# Posts up to the newest of `sent` have been sent: these come first, since the oldest are deleted first.
SCHEMA = """
CREATE TABLE IF NOT EXISTS post (id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER, lines INTEGER, body BLOB);
CREATE TABLE IF NOT EXISTS sent (post INTEGER PRIMARY KEY, time INTEGER);
CREATE TABLE IF NOT EXISTS refused (time INTEGER, reason TEXT, line BLOB);
CREATE TABLE IF NOT EXISTS line_count (name TEXT PRIMARY KEY, lines INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS server (began TEXT, reached INTEGER, until INTEGER);
"""
# Only damage explains these: values of a wrong type, numbers beyond any sum, posts sent before they were put.
FAULTS = (
    "SELECT 1 FROM post WHERE typeof(time) != 'integer' OR typeof(body) != 'blob' OR typeof(lines) != 'integer' "
    "OR NOT lines BETWEEN 1 AND 1000000 OR abs(time) > 1 << 62",
    "SELECT 1 FROM sent WHERE typeof(time) != 'integer' OR abs(time) > 1 << 62",
    "SELECT 1 FROM line_count WHERE typeof(lines) != 'integer' OR NOT lines BETWEEN 0 AND 1 << 62",
    "SELECT 1 FROM server WHERE typeof(began) != 'text' OR typeof(reached) != 'integer' OR typeof(until) != 'integer'",
    "SELECT 1 FROM sqlite_sequence WHERE typeof(seq) != 'integer' OR NOT seq BETWEEN 0 AND 1 << 62",
    "SELECT 1 FROM sent WHERE post > (SELECT coalesce(max(seq), 0) FROM sqlite_sequence)",
    "SELECT 1 FROM server WHERE max(reached, until) > (SELECT coalesce(max(seq), 0) FROM sqlite_sequence)",
)
