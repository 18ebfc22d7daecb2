"""`peerwatch writer`: from a NATS stream to a store, for fleets with more agents than one server accepts."""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from agent.system.service_manager import Alive, ServiceManager, ignore
from agent.system.shutdown import end_by_signals
from cli.config import open_place, read_settings
from cli.options import ConfigOption
from store.nats.config import is_stream
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from store.transfer.stream_writer import Writer

log = logging.getLogger(__name__)

WAIT_S = 1.0
LOG_S = 60.0
LONGEST_REST_S = 30.0


def writer(
    target: Annotated[
        str | None, typer.Option("--to", help="Target: a .db file or an InfluxDB address; default: as configured.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="The stream, nats://SERVER:4222/STREAM; default: as configured.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Writers with the same name share the messages; each name receives all.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Write the readings in a NATS stream to a store, until SIGTERM or Ctrl-C."""
    settings = read_settings(config)
    configured = settings.writer.ways(settings.store)
    stream_place, store_place = source or configured[0], target or configured[1]
    if not is_stream(stream_place):
        raise StoreError(
            f"{stream_place or settings.store} is not a stream: set writer.stream, or use --from nats://SERVER:4222/STREAM"
        )
    if not store_place:
        raise StoreError(f"no target for the readings of {stream_place}: set writer.store, or use --to")
    from store.open import open_stream
    from store.transfer.stream_writer import Writer

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    end_by_signals(stop)
    with (
        closing(ServiceManager()) as manager,
        closing(open_stream(stream_place, settings.nats)) as stream,
        closing(open_place(store_place, True, settings)) as store,
    ):
        run(Writer(stream, store, name or settings.writer.name), stop, manager.alive)


def run(carrier: Writer, stop: threading.Event, alive: Alive = ignore) -> None:
    """Write until `stop` is set; retry while stream or store fails. `alive` is called at each turn."""
    logged, failures = time.monotonic(), 0
    log.info("%s: writing", carrier.stream.address)
    while not stop.is_set():
        try:
            carrier.step(WAIT_S)
            failures = 0
            alive(f"{carrier.stream.address}: writing")
            if time.monotonic() - logged >= LOG_S:
                logged = time.monotonic()
                waiting = carrier.stream.consumer_state(carrier.name).waiting
                log.info(
                    "%d messages written, %d wait, %d lines refused, %d messages unreadable, %d lost",
                    carrier.written,
                    waiting,
                    carrier.refused,
                    carrier.unread,
                    carrier.lost,
                )
        except StoreError as error:
            if failures == 0:
                log.error("readings wait in the stream: %s", error)
            failures += 1
            alive("stream or store cannot be used, readings wait in the stream")
            stop.wait(min(LONGEST_REST_S, 2.0 ** min(failures, 10) / 2) * random.uniform(0.5, 1.0))
