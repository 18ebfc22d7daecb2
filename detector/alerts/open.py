"""The sinks of alerts, opened as the configuration says."""

from __future__ import annotations

import logging
import time

from detector.alerts.alert import Alert, RetryLaterError, Sink
from detector.alerts.briefing import Briefing
from detector.alerts.dispatcher import AlertDispatcher
from detector.alerts.registry import SINKS, AlertsConfig, Room, folder_of
from store.influx.check_statuses import open_statuses
from store.influx.config import InfluxConfig
from store.open import open_store

log = logging.getLogger(__name__)


class Shut(Sink):
    """Stands in for a sink that cannot be opened: its alerts wait, and are told after the next start."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def send(self, alert: Alert) -> str:
        """Raises LaterError with the reason."""
        raise RetryLaterError(self.reason)


def open_dispatcher(config: AlertsConfig, place: str, told: InfluxConfig, but: str = "") -> AlertDispatcher:
    """The desk with all sinks switched on `but` one, for the store at `place`; what cannot be opened stops nothing."""
    sinks: dict[str, Sink] = {}
    for name in config.sinks:
        if name != but:
            try:
                sinks[name] = open_sink(name, config, place, told)
            except (OSError, ValueError) as error:
                log.error("sink %s cannot be opened, mend it and start again: %s", name, error)
                sinks[name] = Shut(str(error))
    briefing = Briefing(lambda: open_store(place, False, told))
    return AlertDispatcher(sinks, folder_of(config, place), config.blind_seconds, briefing)


def open_sink(name: str, config: AlertsConfig, place: str, told: InfluxConfig) -> Sink:
    """One sink. Raises ValueError for a name that nobody knows and for settings that cannot be meant, or OSError."""
    if name not in SINKS:
        raise ValueError(f"there is no sink {name!r}: known are {', '.join(SINKS)}")
    room = Room(time.time_ns, folder_of(config, place), lambda store: open_statuses(store or place, told))
    return SINKS[name](config, room)
