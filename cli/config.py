"""The configuration file, and the store and key that it names."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import msgspec

from agent.config import AgentConfig
from cli.terminal import say
from detector.alerts.registry import AlertsConfig
from detector.config import OLD_NAMES
from detector.config import Config as DetectorConfig
from store.exposition.config import MetricsConfig, OtlpConfig
from store.influx.config import InfluxConfig, is_address
from store.nats.config import NatsConfig, WriterConfig
from store.open import open_store
from store.schema.contract import Store, StoreError
from store.signed import Marked, Signed, key_of

PLACE = Path("/etc/peerwatch/peerwatch.toml")
STORE = "/var/lib/peerwatch/peerwatch.db"
KEY = "/var/lib/peerwatch/peerwatch.key"
UNITS = (Path("/etc/systemd/system/peerwatch-agent.service"), Path("/lib/systemd/system/peerwatch-agent.service"))
"""Where `make install` and where the Debian package put the agent's unit."""


class ConfigError(ValueError):
    """The configuration is invalid; the message is one line with file and key."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every table and key of the configuration file; each has a default."""

    store: str = STORE
    """The store of the readings: path of a .db file, or address of an InfluxDB; for agents also a NATS stream."""
    signing_key_file: str = ""
    """The key that signs verdicts and operator actions; empty: systemd's credential signing-key, else beside the
    store's file, for a server KEY."""
    topology: str = ""
    """File or folder with leaf and pod of each machine, as `peerwatch placement` reads it: alerts and `show` name a
    switch that faulty machines share."""
    influxdb: InfluxConfig = msgspec.field(default_factory=InfluxConfig)
    nats: NatsConfig = msgspec.field(default_factory=NatsConfig)
    metrics: MetricsConfig = msgspec.field(default_factory=MetricsConfig)
    otlp: OtlpConfig = msgspec.field(default_factory=OtlpConfig)
    writer: WriterConfig = msgspec.field(default_factory=WriterConfig)
    agent: AgentConfig = msgspec.field(default_factory=AgentConfig)
    alerts: AlertsConfig = msgspec.field(default_factory=AlertsConfig)
    detector: DetectorConfig = msgspec.field(default_factory=DetectorConfig)


def read_settings(file: Path | None = None) -> Settings:
    """The settings of this file; without one those of PLACE, or the defaults where PLACE does not exist.

    Raises ConfigError for a file that cannot be read, an unknown key, or an invalid value.
    """
    if file is None and not os.path.isfile(PLACE):
        return Settings()
    place = file or PLACE
    try:
        found = msgspec.toml.decode(place.read_bytes())
        found["detector"] = _detector_keys(found.get("detector", {}))
        return msgspec.convert(found, Settings)
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}; use --config FILE") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        text = str(error).splitlines()[0].replace("Object contains unknown field", "unknown key:")
        raise ConfigError(f"{place}: {text.replace('`', '')}") from error


def detector_config(settings: Settings) -> DetectorConfig:
    """The detector's configuration with its calibration. Raises CalibrationError for an unusable calibration file."""
    from detector.calibration import calibrated  # loads numpy, which the agent's process must not

    return calibrated(settings.detector)


def user_store() -> str:
    """The store of a user who may not write to STORE."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(state) / "peerwatch" / "peerwatch.db")


def default_place(writing: bool = False) -> str:
    """The store if none is named: STORE, or the user's own where STORE is absent or hidden and there is an own one."""
    folder = os.path.dirname(STORE)
    if os.geteuid() == 0 or (os.access(STORE, os.W_OK) if writing else os.path.isfile(STORE)):
        return STORE
    hidden = os.path.isdir(folder) and not os.access(folder, os.X_OK)
    return STORE if hidden and not writing and not os.path.isfile(user_store()) else user_store()


def locate_store(named: str | None, config: Path | None = None, writing: bool = False) -> tuple[str, Settings]:
    """The store to open and the settings: `named`, else PEERWATCH_STORE of the environment, else the configuration's.

    A named file is read without the configuration, so an invalid configuration does not matter. Raises ConfigError.
    """
    place = named or os.environ.get("PEERWATCH_STORE")
    if place and config is None and not is_address(place):
        return place, Settings()
    settings = read_settings(config)
    return place or (default_place(writing) if settings.store == STORE else settings.store), settings


def open_place(place: str, create: bool = False, settings: Settings | None = None) -> Store:
    """Open the store at this path or address, a server with the configuration's settings. Raises StoreError.

    `create` creates a missing file, and the folder of a default place.
    """
    if settings is None and is_address(place):
        settings = read_settings()
    if place in (STORE, user_store()):
        _prepare(Path(place), create)
    return open_store(place, create, settings.influxdb if settings else None)


def open_marked(place: str, settings: Settings) -> Store:
    """Open the store to show it: rows that lack the signature say so, where this user may read the key."""
    opened = open_place(place, settings=settings)
    try:
        return Marked(opened, signing_key(place, settings, False))
    except StoreError:  # there is none, or it is the detector's alone
        return opened


def open_signed(place: str, create: bool, settings: Settings) -> Signed:
    """Open the store with signatures: rows of verdicts and operator actions without ours are ignored.

    A missing key is created beside a file; for a server the detector's key is needed. Raises StoreError, also for a
    recording, which is read-only.
    """
    opened = open_place(place, create, settings)
    if Path(place).is_dir():
        raise StoreError(f"{place} is a recording and is read-only; name a .db file to write to")
    return Signed(opened, signing_key(place, settings, create or not is_address(place)))


def signing_key(place: str, settings: Settings, create: bool) -> bytes:
    """The key for the store at this place. Raises StoreError."""
    return key_of(Path(signing_key_file(place, settings)), create)


def signing_key_file(place: str, settings: Settings) -> str:
    """Where the key for the store at this place is: as configured, systemd's credential, else beside the store."""
    beside = KEY if is_address(place) else str(Path(place).expanduser().with_suffix(".key"))
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent")) / "signing-key"
    return settings.signing_key_file or (str(credential) if credential.is_file() else beside)


def _prepare(place: Path, create: bool) -> None:
    """Create the folder of a default place, or raise StoreError that says what is missing there."""
    if create:
        try:
            place.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{place.parent} cannot be created: {error.strerror}; use another --store") from error
    # Path.exists() would be an error behind a folder that this user may not enter: opening the store says what to do.
    elif not os.path.exists(place) and (not os.path.isdir(place.parent) or os.access(place.parent, os.X_OK)):
        here = any(unit.exists() for unit in UNITS)
        what = "is installed but has written no readings" if here else "is not installed or not running"
        start = "sudo systemctl start peerwatch-agent" if here else "peerwatch up, or make install"
        raise StoreError(
            f"no readings here: Peerwatch {what} on this machine ({place} does not exist); "
            f"start it: {start}; or use --store"
        )


def _detector_keys(table: object) -> object:
    """The table `[detector]` with today's names. Raises ConfigError for an unknown key, or one that is there twice."""
    if not isinstance(table, dict):
        return table
    for old in sorted(OLD_NAMES.keys() & table):
        new = OLD_NAMES[old]
        if new in table:
            raise ConfigError(f"detector.{old} is the old name of detector.{new}: keep one of them")
        say(f"peerwatch: detector.{old} is deprecated: use detector.{new}", err=True)
    renamed = {OLD_NAMES.get(str(key), str(key)): value for key, value in table.items()}
    # msgspec accepts unknown keys of a dataclass, such as the detector's configuration.
    unknown = sorted(renamed.keys() - {field.name for field in fields(DetectorConfig)})
    if unknown:
        raise ConfigError(f"unknown key: {unknown[0]} - at $.detector")
    return renamed
