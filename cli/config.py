"""The configuration file: where the readings are, and what agent and detector are told."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import msgspec

from agent.config import AgentConfig
from detector.alerts.registry import AlertsConfig
from detector.config import Config as DetectorConfig
from store.influx.config import InfluxConfig, is_address
from store.nats.config import NatsConfig, WriterConfig
from store.open import open_store
from store.schema.contract import Store, StoreError
from store.signed import Signed, key_of

PLACE = Path("/etc/peerwatch/peerwatch.toml")
STORE = "/var/lib/peerwatch/peerwatch.db"
KEY = "/var/lib/peerwatch/peerwatch.key"
UNIT = Path("/etc/systemd/system/peerwatch-agent.service")


class ConfigError(ValueError):
    """The configuration cannot be used; one line with file and key."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a configuration file can say; every key has a default."""

    store: str = STORE
    """Where readings are kept: the path of a .db file, or an InfluxDB address; for agents also a NATS stream."""
    signing_key_file: str = ""
    """The key by which verdicts and orders are signed; empty: beside the store's file, or KEY where it is a server."""
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


def own_place() -> str:
    """Where a user without the right to write to the usual place keeps readings."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(state) / "peerwatch" / "peerwatch.db")


def default_place(writing: bool = False) -> str:
    """The store where nothing names one: the service's; of a user without rights on it, or without it, his own."""
    folder = os.path.dirname(STORE)
    if os.geteuid() == 0 or (os.access(STORE, os.W_OK) if writing else os.path.isfile(STORE)):
        return STORE
    hidden = os.path.isdir(folder) and not os.access(folder, os.X_OK)
    return STORE if hidden and not writing else own_place()


def located(named: str | None, config: Path | None = None, writing: bool = False) -> tuple[str, Settings]:
    """The store to open, and how: what was named, else the environment's PEERWATCH_STORE, else the configuration's.

    A file that was named needs no configuration, so a wrong one does not keep it from being read. Raises ConfigError.
    """
    place = named or os.environ.get("PEERWATCH_STORE")
    if place and config is None and not is_address(place):
        return place, Settings()
    settings = read_settings(config)
    return place or (default_place(writing) if settings.store == STORE else settings.store), settings


def open_place(place: str, create: bool = False, settings: Settings | None = None) -> Store:
    """The store at this place; an address is spoken to as the configuration says. Raises StoreError.

    `create` begins a file that is not there, and of the usual places the folder too.
    """
    if settings is None and is_address(place):
        settings = read_settings()
    if place in (STORE, own_place()):
        _prepare(Path(place), create)
    return open_store(place, create, settings.influxdb if settings else None)


def open_signed(place: str, create: bool, settings: Settings) -> Signed:
    """The same, in which only verdicts and orders count that bear our signature. The key is begun where there is none.

    An order to a detector on another machine is signed with that one's key. Raises StoreError where there is none.
    """
    return Signed(open_place(place, create, settings), signing_key(place, settings, create or not is_address(place)))


def signing_key(place: str, settings: Settings, create: bool) -> bytes:
    """The key for the store at this place. Raises StoreError."""
    beside = KEY if is_address(place) else str(Path(place).expanduser().with_suffix(".key"))
    return key_of(Path(settings.signing_key_file or beside), create)


def _prepare(place: Path, create: bool) -> None:
    """Make the folder of a usual place, or say what is missing where there is nothing to read."""
    if create:
        try:
            place.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{place.parent} cannot be made: {error.strerror}; name another --store") from error
    elif not place.exists() and (not place.parent.is_dir() or os.access(place.parent, os.X_OK)):
        here = UNIT.exists()
        what = "is installed but has written no readings" if here else "is not installed or not running"
        start = "sudo systemctl start peerwatch-agent" if here else "peerwatch up, or make install"
        raise StoreError(
            f"no readings here: Peerwatch {what} on this machine ({place} is not there); "
            f"start it: {start}; or name a --store"
        )


def _check_keys(detector: object) -> None:
    # The detector's configuration is a dataclass, of which msgspec lets unknown keys pass.
    known = {field.name for field in fields(DetectorConfig)}
    unknown = sorted(set(detector) - known) if isinstance(detector, dict) else []
    if unknown:
        raise ConfigError(f"there is no such key: {unknown[0]} - at $.detector")
