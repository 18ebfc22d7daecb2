"""The sinks of alerts, opened as the configuration says."""

from __future__ import annotations

import time
from pathlib import Path

from detector.alert import Sink
from detector.alerts import SINKS, AlertsConfig, Room
from detector.desk import Desk
from store.influx_config import InfluxConfig
from store.statuses import open_statuses

FOLDER = "/var/lib/peerwatch/alerts"


def open_desk(config: AlertsConfig, place: str, told: InfluxConfig, but: str = "") -> Desk:
    """The desk with all sinks switched on `but` this one, for the store at `place`. Raises ValueError or OSError."""
    names = [name for name in config.sinks if name != but]
    return Desk({name: open_sink(name, config, place, told) for name in names}, folder_of(config, place))


def open_sink(name: str, config: AlertsConfig, place: str, told: InfluxConfig) -> Sink:
    """One sink. Raises ValueError for a name that nobody knows and for settings that cannot be meant, or OSError."""
    if name not in SINKS:
        raise ValueError(f"there is no sink {name!r}: known are {', '.join(SINKS)}")
    room = Room(time.time_ns, folder_of(config, place), lambda store: open_statuses(store or place, told))
    return SINKS[name](config, room)


def folder_of(config: AlertsConfig, place: str) -> Path:
    """Where the sinks' ledgers are."""
    if config.state_folder:
        return Path(config.state_folder)
    return Path(FOLDER) if "://" in place else Path(place).expanduser().with_suffix(".alerts")
