"""Which form a store has: so that one of another version, or of another program, is named instead of misread."""

from __future__ import annotations

from store.schema.contract import StoreError

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
