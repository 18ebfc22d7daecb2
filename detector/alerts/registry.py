"""The registry of sinks (one file each in sinks/) and the settings of the table `[alerts]`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from detector.alerts.alert import Sink
from detector.alerts.sinks.command import Command, CommandConfig
from detector.alerts.sinks.heartbeat import Heartbeat, HeartbeatConfig
from detector.alerts.sinks.influxdb import Influxdb, InfluxdbConfig
from detector.alerts.sinks.log import Log
from detector.alerts.sinks.webhook import Webhook, WebhookConfig
from store.influx.check_statuses import Statuses


class AlertsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the table `[alerts]`. Raises ValueError for an invalid value."""

    sinks: tuple[str, ...] = ("log",)
    """Where alerts go: log, influxdb, webhook, command, heartbeat."""
    state_folder: str = ""
    """Folder of the delivery logs; empty: beside the store's file, or /var/lib/peerwatch/alerts."""
    min_level: Literal["note", "warn", "crit"] = "warn"
    """note, warn or crit: the lowest level that is sent; a note is a difference that slows no task."""
    blind_seconds: Annotated[float, Meta(ge=10.0, le=86400.0)] = 60.0
    """Seconds without readings after which every sink is alerted that Peerwatch is blind."""
    influxdb: InfluxdbConfig = msgspec.field(default_factory=InfluxdbConfig)
    webhook: WebhookConfig = msgspec.field(default_factory=WebhookConfig)
    command: CommandConfig = msgspec.field(default_factory=CommandConfig)
    heartbeat: HeartbeatConfig = msgspec.field(default_factory=HeartbeatConfig)

    def __post_init__(self) -> None:
        """Refuse an unknown sink, naming the known ones."""
        for word in self.sinks:
            if word not in SINKS:
                raise ValueError(f"alerts.sinks names {word!r}: known are {', '.join(SINKS)}")


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is opened with: a clock (Unix ns), a state folder, and a function that opens statuses."""

    clock: Callable[[], int]
    folder: Path
    statuses: Callable[[str], Statuses]


SINKS: dict[str, Callable[[AlertsConfig, SinkContext], Sink]] = {
    "log": lambda config, context: Log(),
    "influxdb": lambda config, context: Influxdb(
        config.influxdb, context.statuses(config.influxdb.store), context.clock
    ),
    "webhook": lambda config, context: Webhook(config.webhook, context.clock),
    "command": lambda config, context: Command(config.command, context.folder / "command-runs.json", context.clock),
    "heartbeat": lambda config, context: Heartbeat(config.heartbeat, context.folder / "heartbeat"),
}
"""Name of a sink -> function that opens it; raises ValueError or OSError for invalid settings."""


FOLDER = "/var/lib/peerwatch/alerts"


def folder_of(config: AlertsConfig, place: str) -> Path:
    """Folder of the delivery logs."""
    if config.state_folder:
        return Path(config.state_folder)
    return Path(FOLDER) if "://" in place else Path(place).expanduser().with_suffix(".alerts")
