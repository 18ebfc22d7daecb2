"""Where alerts go: one file a sink; here is the list of them, and their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from detector.alerts.alert import Sink
from detector.alerts.sinks.command import Command, CommandConfig
from detector.alerts.sinks.heartbeat import Heartbeat, HeartbeatConfig
from detector.alerts.sinks.influxdb import Influxdb, InfluxdbConfig
from detector.alerts.sinks.log import Log
from detector.alerts.sinks.webhook import Webhook, WebhookConfig
from store.config_checks import refuse_outside
from store.influx.check_statuses import Statuses


class AlertsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the table `[alerts]`. Raises ValueError for a value that cannot be meant."""

    sinks: tuple[str, ...] = ("log",)
    """Where alerts go: log, influxdb, webhook, command, heartbeat."""
    state_folder: str = ""
    """Where it is kept what each sink was told; empty: beside the store's file, or /var/lib/peerwatch/alerts."""
    blind_seconds: float = 60.0
    """After so long without readings every sink hears that Peerwatch is blind."""
    influxdb: InfluxdbConfig = msgspec.field(default_factory=InfluxdbConfig)
    webhook: WebhookConfig = msgspec.field(default_factory=WebhookConfig)
    command: CommandConfig = msgspec.field(default_factory=CommandConfig)
    heartbeat: HeartbeatConfig = msgspec.field(default_factory=HeartbeatConfig)

    def __post_init__(self) -> None:
        """Refuse a sink that nobody knows, and a time that cannot be meant."""
        refuse_outside(self, "alerts", (("blind_seconds", 10.0, 86400.0),))
        for word in self.sinks:
            if word not in SINKS:
                raise ValueError(f"alerts.sinks names {word!r}: known are {', '.join(SINKS)}")


@dataclass(frozen=True, slots=True)
class Room:
    """What sinks are given: a clock (Unix ns), a folder of their own, and a way to open statuses at an address."""

    clock: Callable[[], int]
    folder: Path
    statuses: Callable[[str], Statuses]


SINKS: dict[str, Callable[[AlertsConfig, Room], Sink]] = {
    "log": lambda config, room: Log(),
    "influxdb": lambda config, room: Influxdb(config.influxdb, room.statuses(config.influxdb.store), room.clock),
    "webhook": lambda config, room: Webhook(config.webhook, room.clock),
    "command": lambda config, room: Command(config.command, room.folder / "command-runs.json", room.clock),
    "heartbeat": lambda config, room: Heartbeat(config.heartbeat, room.folder / "heartbeat"),
}
"""Every sink by its name, and how it is opened; raises ValueError or OSError for settings that cannot be meant."""


FOLDER = "/var/lib/peerwatch/alerts"


def folder_of(config: AlertsConfig, place: str) -> Path:
    """Where the sinks' ledgers are."""
    if config.state_folder:
        return Path(config.state_folder)
    return Path(FOLDER) if "://" in place else Path(place).expanduser().with_suffix(".alerts")
