"""The configuration file: where the readings are, and what agent and detector are told."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import msgspec

from agent.config import AgentConfig
from detector.alerts import AlertsConfig
from detector.config import Config as DetectorConfig
from store.contract import Store
from store.influx_config import InfluxConfig, is_address
from store.nats_config import NatsConfig, WriterConfig
from store.places import open_store

PLACE = Path("/etc/peerwatch/peerwatch.toml")
STORE = "/var/lib/peerwatch/peerwatch.db"


class ConfigError(ValueError):
    """The configuration cannot be used; one line with file and key."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a configuration file can say; every key has a default."""

    store: str = STORE
    """Where readings are kept: the path of a .db file, or an InfluxDB address; for agents also a NATS stream."""
    influxdb: InfluxConfig = msgspec.field(default_factory=InfluxConfig)
    nats: NatsConfig = msgspec.field(default_factory=NatsConfig)
    writer: WriterConfig = msgspec.field(default_factory=WriterConfig)
    agent: AgentConfig = msgspec.field(default_factory=AgentConfig)
    alerts: AlertsConfig = msgspec.field(default_factory=AlertsConfig)
    detector: DetectorConfig = msgspec.field(default_factory=DetectorConfig)


def read_settings(file: Path | None = None) -> Settings:
    """The settings of this file; of the usual place if none is named, and the defaults if nothing is there.

    Raises ConfigError for a file that cannot be read, a key that is unknown, or a value that cannot be meant.
    """
    if file is None and not os.path.isfile(PLACE):
        return Settings()
    place = file or PLACE
    try:
        found = msgspec.toml.decode(place.read_bytes())
        _check_keys(found.get("detector", {}))
        return msgspec.convert(found, Settings)
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}; name the configuration with --config") from error
    except (msgspec.MsgspecError, ValueError) as error:
        text = str(error).splitlines()[0].replace("Object contains unknown field", "there is no such key:")
        raise ConfigError(f"{place}: {text.replace('`', '')}") from error


def judging(settings: Settings) -> DetectorConfig:
    """What the detector is told, its calibration included. Raises CalibrationError: that file cannot be used."""
    from detector.calibration import calibrated  # numpy, which the agent's process must not load for it

    return calibrated(settings.detector)


def store_place(named: str | None) -> str:
    """The store to open: the one that was named, else the environment's PEERWATCH_STORE, else the configuration's."""
    return named or os.environ.get("PEERWATCH_STORE") or read_settings().store


def open_place(place: str, create: bool = False, settings: Settings | None = None) -> Store:
    """The store at this place; an address is spoken to as the configuration says."""
    if settings is None and is_address(place):
        settings = read_settings()
    return open_store(place, create, settings.influxdb if settings else None)


def _check_keys(detector: object) -> None:
    # The detector's configuration is a dataclass, of which msgspec lets unknown keys pass.
    known = {field.name for field in fields(DetectorConfig)}
    unknown = sorted(set(detector) - known) if isinstance(detector, dict) else []
    if unknown:
        raise ConfigError(f"there is no such key: {unknown[0]} - at $.detector")
