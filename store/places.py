"""Where readings are kept, by what a person writes: a .db file, an InfluxDB address, or the folder of a recording."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING

from store.contract import Store, StoreError
from store.embedded import Embedded
from store.influx_config import InfluxConfig, address_of, is_address
from store.recording import Recording

if TYPE_CHECKING:
    from store.influx_sender import Spooled
    from store.influx_server import Server


def open_store(place: str, create: bool = False, told: InfluxConfig | None = None) -> Store:
    """The store at this place: a folder is a recording, a .db (or .sqlite) file an embedded store.

    `http://server:8086/database` is InfluxDB, spoken to as it is `told`. `create` begins a file that is not there.
    Raises StoreError with one line that names cause and mend.
    """
    if is_address(place):
        from store.influx import Influx
        from store.influx_flux import InfluxByFlux

        return (InfluxByFlux if told and told.reading == "flux" else Influx)(_server(place, told))
    path = Path(place).expanduser()
    if os.path.isdir(path):  # unlike Path.is_dir() also false, not an error, behind a folder that may not be entered
        return Recording(path)
    if os.path.isfile(path) or path.suffix in (".db", ".sqlite", ".sqlite3"):
        return Embedded(path, create)
    raise StoreError(
        f"{place} is no store: name a .db file, an address (http://SERVER:8086/DATABASE) or the folder of a recording"
    )


def open_sink(place: str, told: InfluxConfig | None = None) -> Embedded | Spooled:
    """What an agent writes to: an embedded store, or the spool on the way to InfluxDB. Raises StoreError."""
    if not is_address(place):
        return Embedded(Path(place).expanduser())
    from store.influx_sender import Spooled
    from store.spool import Spool

    told = told or InfluxConfig()
    return Spooled(_server(place, told), Spool(told.spool_folder, told.spool_bytes, told.spool_seconds))


def _server(place: str, told: InfluxConfig | None) -> Server:
    from store.influx_server import Server  # loads urllib3, which an embedded store does not need

    return Server(address_of(place), told or InfluxConfig())
