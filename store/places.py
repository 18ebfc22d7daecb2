"""Where readings are kept, by what a person writes: a .db file, or the folder of a recording."""

from __future__ import annotations

from pathlib import Path

from store.contract import Store, StoreError
from store.embedded import Embedded
from store.recording import Recording


def open_store(place: str, create: bool = False) -> Store:
    """The store at this place: a folder is a recording, a .db (or .sqlite) file an embedded store.

    `create` begins the file if it is not there. Raises StoreError with one line that names cause and mend.
    """
    path = Path(place).expanduser()
    if path.is_dir():
        return Recording(path)
    if path.is_file() or path.suffix in (".db", ".sqlite", ".sqlite3"):
        return Embedded(path, create)
    raise StoreError(f"{place} is no store: name a .db file or the folder of a recording")
