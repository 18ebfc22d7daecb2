"""Entry point of the agent: `peerwatch agent` execs it, so that the command line's libraries do not stay in memory.

python -m agent MACHINE STORE SETTINGS      SETTINGS is a JSON file; the others only label the process
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.config import AgentConfig
from agent.sampling import loop
from agent.system import out_of_memory
from agent.system.rights import give_up
from agent.system.service_manager import ServiceManager
from agent.system.shutdown import end_by_signals
from store.exposition.config import MetricsConfig, OtlpConfig
from store.influx.config import InfluxConfig
from store.nats.config import NatsConfig, is_stream
from store.open import open_sink
from store.schema.contract import StoreError
from store.sqlite.embedded import Embedded
from store.zoom_requests import ZoomKey, open_zoom_requests

if TYPE_CHECKING:
    from store.exposition.published import Published

log = logging.getLogger("agent")


class AgentSettings(msgspec.Struct, frozen=True):
    """All settings of an agent process."""

    store: str
    agent: AgentConfig
    influxdb: InfluxConfig
    nats: NatsConfig
    signing_key_file: str = ""
    metrics: MetricsConfig = msgspec.field(default_factory=MetricsConfig)
    otlp: OtlpConfig = msgspec.field(default_factory=OtlpConfig)


def run(settings: AgentSettings) -> None:
    """Read this machine and its training processes until SIGTERM or Ctrl-C."""
    manager = ServiceManager()
    sink = open_sink(settings.store, settings.influxdb, settings.nats)
    # What is on a stream cannot be asked for.
    key = ZoomKey(settings.agent.name, settings.agent.zoom_key_file, settings.signing_key_file)
    orders = None if is_stream(settings.store) else open_zoom_requests(settings.store, settings.influxdb, key)
    stop = threading.Event()
    end_by_signals(stop)

    def prune(now: int) -> None:
        if not isinstance(sink, Embedded):
            return  # what a server keeps is the server's to drop
        try:
            agent = settings.agent
            sink.prune(now, agent.keep_seconds, agent.keep_bytes, agent.keep_history_seconds)
        except StoreError as error:  # readings matter more than room; it is tried again in a minute
            log.error("the store could not be pruned: %s", error)

    shown = _published(settings, sink)
    try:
        loop.run(settings.agent, shown or sink, stop, prune, orders, manager.alive)
    finally:
        manager.close()
        if shown:
            shown.close()
        sink.close()


def _published(settings: AgentSettings, sink: loop.Sink) -> Published | None:
    """The sink with what shows readings to others; None where nothing is configured, so that it costs nothing."""
    if not settings.metrics.listen and not settings.otlp.endpoint:
        return None
    from store.exposition.published import Published

    # The threads that answer others, or send to them, have no rights of ours.
    return Published(sink, settings.agent.name, settings.metrics, settings.otlp, give_up)


def main() -> int:
    """Exit code 0, or 1 with one line on standard error."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        run(msgspec.json.decode(Path(sys.argv[-1]).read_bytes(), type=AgentSettings))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "start new thread" in str(error):
            out_of_memory.end()
        raise
    except (OSError, ValueError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        sys.stderr.write(f"peerwatch: {lines[0]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
