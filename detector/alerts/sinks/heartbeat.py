"""A heartbeat (dead man's switch): it stops when the detector dies, hangs, or reads nothing.

While machines are judged, each beat sends a GET to an address, as healthchecks.io, Uptime Kuma and Cronitor expect,
and writes a file, of which a node exporter or a cron job can check the age.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from detector.alerts.alert import Alert, RetryLaterError, Sink
from detector.alerts.http_post import Address, address_of, checked

CREDENTIAL, TABLE = "heartbeat-url", "alerts.heartbeat"


class HeartbeatConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `heartbeat`. Raises ValueError for an invalid value."""

    url: str = ""
    """Address of the GET at each beat; empty: only the file is written."""
    url_file: str = ""
    """File with the address in its first line; empty: systemd's credential heartbeat-url, if there is one."""
    ca_file: str = ""
    """CA certificates for https; empty: the system's."""
    every_seconds: Annotated[float, Meta(ge=1.0, le=86400.0)] = 60.0
    """Seconds between beats."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=600.0)] = 10.0
    """Seconds until a request fails."""

    def __post_init__(self) -> None:
        """Refuse invalid values, naming the key and never the address."""
        if self.url:
            checked(self.url, TABLE)

    def __repr__(self) -> str:
        """Without the address."""
        return f"HeartbeatConfig(every_seconds={self.every_seconds})"


class Heartbeat(Sink):
    """Beats while the detector judges; writes `file` at each beat. It receives no alerts."""

    takes_alerts = False

    def __init__(self, config: HeartbeatConfig, file: Path) -> None:
        self.file, self.heartbeat_s = file, config.every_seconds
        url = address_of(config.url, config.url_file, CREDENTIAL, TABLE)
        self.to = Address(url, TABLE, config.timeout_seconds, config.ca_file) if url else None

    def send(self, alert: Alert) -> str:
        """Beat once, as a test. Raises OSError."""
        self.heartbeat(())
        return f"{self.to.place} was asked, {self.file} written" if self.to else f"{self.file} written"

    def heartbeat(self, machines: Collection[str]) -> None:
        """Write the file, then send the GET. Raises OSError."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(f"{len(machines)} machines are healthy\n")
        if self.to is not None:
            answer = self.to.get()
            if not answer.good:
                raise RetryLaterError(f"{self.to.place} answers {answer.status}", answer.rest_s)
