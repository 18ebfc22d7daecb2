"""A heartbeat that something outside watches: it goes silent when the detector dies, hangs, or reads nothing any more.

While machines are judged, an address is asked for at each beat, as healthchecks.io, Uptime Kuma and Cronitor expect it
of a job, and a file is written anew, whose age a node exporter or a cron job can look at.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from detector.alerts.alert import Alert, RetryLaterError, Sink
from detector.alerts.http_post import Address, address_of, checked
from store.config_checks import refuse_outside

CREDENTIAL, TABLE = "heartbeat-url", "alerts.heartbeat"


class HeartbeatConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `heartbeat`. Raises ValueError for a value that cannot be meant."""

    url: str = ""
    """What to ask for at each beat; empty: only the file is written."""
    url_file: str = ""
    """File whose first line is the address; empty: systemd's credential heartbeat-url, if there is one."""
    ca_file: str = ""
    """Certificates by which an https server is known; empty: the system's."""
    every_seconds: float = 60.0
    """Seconds between beats."""
    timeout_seconds: float = 10.0
    """How long the server may be silent."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, naming the key and never the address."""
        refuse_outside(self, TABLE, (("every_seconds", 1.0, 86400.0), ("timeout_seconds", 0.1, 600.0)))
        if self.url:
            checked(self.url, TABLE)

    def __repr__(self) -> str:
        """Without the address."""
        return f"HeartbeatConfig(every_seconds={self.every_seconds})"


class Heartbeat(Sink):
    """Beats while the detector judges; `file` is written at each beat. It takes no alerts."""

    hears = False

    def __init__(self, config: HeartbeatConfig, file: Path) -> None:
        self.file, self.beat_s = file, config.every_seconds
        url = address_of(config.url, config.url_file, CREDENTIAL, TABLE)
        self.to = Address(url, TABLE, config.timeout_seconds, config.ca_file) if url else None

    def send(self, alert: Alert) -> str:
        """Beat once, as a test. Raises OSError."""
        self.beat(())
        return f"{self.to.place} was asked, {self.file} written" if self.to else f"{self.file} written"

    def beat(self, machines: Collection[str]) -> None:
        """Write the file, then ask for the address. Raises OSError."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(f"{len(machines)} machines are well\n")
        if self.to is not None:
            answer = self.to.get()
            if not answer.good:
                raise RetryLaterError(f"{self.to.place} answers {answer.status}", answer.rest_s)
