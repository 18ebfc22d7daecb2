"""What a command about logs is given: one of our own stores, or files that others wrote."""

from __future__ import annotations

from pathlib import Path

from store.influx.config import is_address

_STORES = (".db", ".sqlite", ".sqlite3")


def is_store(place: str) -> bool:
    """Whether it is a recording, a database or a server of Peerwatch's own."""
    path = Path(place)
    return is_address(place) or path.suffix in _STORES or (path.is_dir() and any(path.glob("*.parquet")))


def is_kineto(place: Path) -> bool:
    """Whether these are logs of a profiler: JSON, also gzip, or a folder of them."""
    return place.is_dir() or place.name.endswith((".json", ".json.gz"))
