"""`peerwatch agent`: what peerwatch-agent.service starts."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.config import read_settings
from store.contract import StoreError
from store.embedded import Embedded
from store.nats_config import is_stream
from store.orders import open_orders
from store.places import open_sink

log = logging.getLogger(__name__)


def agent(
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    store: Annotated[str | None, typer.Option(help="Where readings are kept, instead of the configuration's.")] = None,
    root: Annotated[str | None, typer.Option(help="Where the machine's /sys and /dev are seen, instead of /.")] = None,
) -> None:
    """Read this machine and its training processes until told to stop (SIGTERM or Ctrl-C)."""
    from agent import loop

    settings = read_settings(config)
    told = msgspec.structs.replace(settings.agent, root=root) if root else settings.agent
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    place = store or settings.store
    sink = open_sink(place, settings.influxdb, settings.nats)
    # What is on a stream cannot be asked for.
    orders = None if is_stream(place) else open_orders(place, settings.influxdb, told.name)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def prune(now: int) -> None:
        if not isinstance(sink, Embedded):
            return  # what a server keeps is the server's to drop
        try:
            sink.prune(now, told.keep_seconds, told.keep_bytes)
        except StoreError as error:  # readings matter more than room; it is tried again in a minute
            log.error("the store could not be pruned: %s", error)

    try:
        loop.run(told, sink, stop, prune, orders)
    finally:
        sink.close()
