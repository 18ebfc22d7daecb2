"""The sinks of alerts, opened as the configuration says."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detector.alert import Alert, LaterError, Sink
from detector.alerts import SINKS, AlertsConfig, Room
from detector.briefing import Briefing
from detector.desk import Desk
from store.influx_config import InfluxConfig
from store.places import open_store
from store.statuses import open_statuses

log = logging.getLogger(__name__)

FOLDER = "/var/lib/peerwatch/alerts"


class Shut(Sink):
    """Stands in for a sink that cannot be opened: its alerts wait, and are told after the next start."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def send(self, alert: Alert) -> str:
        """Raises LaterError with the reason."""
        raise LaterError(self.reason)


def open_desk(config: AlertsConfig, place: str, told: InfluxConfig, but: str = "") -> Desk:
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
    return Desk(sinks, folder_of(config, place), config.blind_seconds, briefing)


@contextmanager
def alone(config: AlertsConfig, place: str) -> Iterator[None]:
    """Judge alone: two detectors on one machine would say everything twice. Raises OSError where there is one."""
    folder = folder_of(config, place)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        # Whoever may open it can lock it, and keep the detector from starting.
        held = open(folder / "detector.lock", "a", opener=lambda name, how: os.open(name, how, 0o640))  # noqa: SIM115
    except OSError as error:  # what was said cannot be kept either, and the ledger tells of it
        log.warning("whether another detector judges cannot be seen: %s", error)
        yield
        return
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"another detector judges what is in {place} (`peerwatch up`, or the service): stop that one first"
            ) from None
        yield


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
