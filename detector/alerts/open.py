"""Opens the sinks and the dispatcher from the configuration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from detector.alerts.alert import Alert, RetryLaterError, Sink
from detector.alerts.briefing import Briefing, Notes
from detector.alerts.dispatcher import AlertDispatcher
from detector.alerts.registry import SINKS, AlertsConfig, SinkContext, folder_of
from detector.alerts.shared_log import SharedLog
from store.influx.check_statuses import open_statuses
from store.influx.config import InfluxConfig
from store.open import open_store

log = logging.getLogger(__name__)


class UnavailableSink(Sink):
    """Replaces a sink that cannot be opened: its alerts wait, and the next start delivers them."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def send(self, alert: Alert) -> str:
        """Raises RetryLaterError with the reason."""
        raise RetryLaterError(self.reason)


def open_dispatcher(
    config: AlertsConfig,
    place: str,
    influxdb: InfluxConfig,
    but: str = "",
    held: Callable[[], bool] = lambda: True,
    shared: SharedLog | None = None,
    notes: Notes = lambda store, verdict: (),
) -> AlertDispatcher:
    """The dispatcher with every configured sink `but` one, for the store at `place`.

    A sink that cannot be opened is logged and replaced; the others work. Nothing is sent unless `held`; `shared` is
    what other detectors on the same store have delivered. `notes` adds to what alerts say of their cause.
    """
    sinks: dict[str, Sink] = {}
    for name in config.sinks:
        if name != but:
            try:
                sinks[name] = open_sink(name, config, place, influxdb)
            except (OSError, ValueError) as error:
                log.error("sink %s cannot be opened; correct it and restart the detector: %s", name, error)
                sinks[name] = UnavailableSink(str(error))
    for sink in sinks.values():
        sink.min_level = sink.own_level or config.min_level
    briefing = Briefing(lambda: open_store(place, False, influxdb), notes)
    folder = folder_of(config, place)
    return AlertDispatcher(sinks, folder, config.blind_seconds, briefing, held=held, shared=shared)


def open_sink(name: str, config: AlertsConfig, place: str, influxdb: InfluxConfig) -> Sink:
    """Open one sink. Raises ValueError for an unknown name or invalid settings, or OSError."""
    if name not in SINKS:
        raise ValueError(f"there is no sink {name!r}: known are {', '.join(SINKS)}")
    context = SinkContext(time.time_ns, folder_of(config, place), lambda store: open_statuses(store or place, influxdb))
    return SINKS[name](config, context)
