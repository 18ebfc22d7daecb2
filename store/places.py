"""Where readings are kept, by what a person writes: a .db file, or the folder of a recording."""

from __future__ import annotations

import os.path
from pathlib import Path

from store.contract import Store, StoreError
from store.embedded import Embedded
from store.recording import Recording


def open_store(place: str, create: bool = False) -> Store:
    """The store at this place: a folder is a recording, a .db (or .sqlite) file an embedded store.

    `create` begins the file if it is not there. Raises StoreError with one line that names cause and mend.
    """
    path = Path(place).expanduser()
    if os.path.isdir(path):  # unlike Path.is_dir() also false, not an error, behind a folder that may not be entered
        return Recording(path)
    if os.path.isfile(path) or path.suffix in (".db", ".sqlite", ".sqlite3"):
        return Embedded(path, create)
    raise StoreError(f"{place} is no store: name a .db file or the folder of a recording")
