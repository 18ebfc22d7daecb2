"""Opens a store by its name: a .db file, a server's address, or the folder of a recording."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING

from store.influx.config import InfluxConfig, address_of, is_address
from store.nats.config import NatsConfig, is_stream, stream_of
from store.recording import Recording
from store.schema.contract import Store, StoreError
from store.sqlite.embedded import Embedded
from store.transport.tokens import warn_if_readable

if TYPE_CHECKING:
    from store.influx.server import Server
    from store.nats.stream import Stream
    from store.spool.sender import Spooled


def open_store(place: str, create: bool = False, config: InfluxConfig | None = None) -> Store:
    """The store at this place: a folder is a recording, a .db (or .sqlite) file an embedded store.

    `http://server:8086/database` is InfluxDB, reached as `config` says. `create` makes a store that does not exist.
    Raises StoreError with one line that names cause and mend.
    """
    if is_address(place):
        from store.influx.flux import InfluxByFlux
        from store.influx.influxql import Influx

        influx = (InfluxByFlux if config and config.reading == "flux" else Influx)(_server(place, config))
        if create:
            _warn(influx.server)
            influx.begin()
        return influx
    if is_stream(place):
        raise StoreError(f"{place} is on the way to a store: name the store that `peerwatch writer` fills from it")
    path = Path(place).expanduser()
    if os.path.isdir(path):  # unlike Path.is_dir() also false, not an error, behind a folder that may not be entered
        return Recording(path)
    if os.path.isfile(path) or path.suffix in (".db", ".sqlite", ".sqlite3"):
        return Embedded(path, create)
    raise StoreError(
        f"{place} is no store: name a .db file, an address (http://SERVER:8086/DATABASE) or the folder of a recording"
    )


def open_sink(place: str, config: InfluxConfig | None = None, stream: NatsConfig | None = None) -> Embedded | Spooled:
    """What an agent writes to: an embedded store, or the spool on the way to InfluxDB or NATS. Raises StoreError."""
    if not is_address(place) and not is_stream(place):
        return Embedded(Path(place).expanduser())
    from store.spool.queue import Spool
    from store.spool.sender import Spooled

    config = config or InfluxConfig()
    bounds = config.spool_folder, config.spool_bytes, config.spool_seconds
    if is_stream(place):
        return Spooled(open_stream(place, stream), Spool(*bounds))
    server = _server(place, config)
    _warn(server)
    return Spooled(server, Spool(*bounds, config.resend_seconds))


def open_stream(place: str, config: NatsConfig | None = None) -> Stream:
    """The stream at `nats://server:4222/stream`. Raises StoreError where it cannot be named or nats-py is missing."""
    address = stream_of(place)
    try:
        from store.nats.stream import Stream
    except ImportError as error:
        raise StoreError(f"{place} needs nats-py, which is not here: make install EXTRAS=nats") from error
    return Stream(address, config or NatsConfig())


def _server(place: str, config: InfluxConfig | None) -> Server:
    from store.influx.server import Server  # loads urllib3, which an embedded store does not need

    return Server(address_of(place), config or InfluxConfig())


def _warn(server: Server) -> None:
    """Say to the programs that go on for long that the token is sent without encryption; commands that read do not."""
    warn_if_readable(server.address.url, server.config.token())
