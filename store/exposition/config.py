"""Settings of what monitoring systems read and get: the tables `[metrics]` and `[otlp]` of the configuration."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from store.transport.tokens import token_of

TOKEN_VARIABLE = "PEERWATCH_OTLP_TOKEN"  # noqa: S105 - a name, no secret
CREDENTIAL = "otlp-token"
_LISTEN = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([A-Za-z0-9.-]{1,253})):([0-9]{1,5})")


def host_and_port(listen: str, key: str) -> tuple[str, int]:
    """The parts of an address such as 127.0.0.1:9464 or [::1]:9464. Raises ValueError, which names the key."""
    found = _LISTEN.fullmatch(listen)
    if not found or not 0 < int(found[3]) < 65536:
        raise ValueError(f"{key} is {listen!r}: write an address and a port, such as 127.0.0.1:9464")
    return found[1] or found[2], int(found[3])


class MetricsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where Prometheus reads. Raises ValueError for an invalid address."""

    listen: str = ""
    """Address and port of the agent's /metrics, such as 127.0.0.1:9464; empty: none."""
    detector_listen: str = ""
    """Address and port of the detector's /metrics, such as 127.0.0.1:9465; empty: none."""

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        for key in ("listen", "detector_listen"):
            if value := getattr(self, key):
                host_and_port(value, f"metrics.{key}")


class OtlpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where agent and detector send metrics by OTLP/HTTP. Raises ValueError for an invalid address."""

    endpoint: str = ""
    """Base address of an OpenTelemetry collector, such as http://127.0.0.1:4318; /v1/metrics is added. Empty: none."""
    every_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 10.0
    """How often the newest readings are sent."""
    token_file: str = ""
    """File with the token of `Authorization: Bearer …` in its first line; else systemd's credential otlp-token."""
    ca_file: str = ""
    """Certificates by which an https server is known; empty: the system's."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=600.0)] = 10.0
    """How long the server may take to answer."""
    queue_bytes: Annotated[int, Meta(ge=10_000, le=1 << 32)] = 8_000_000
    """Packed requests that wait in memory while the server cannot be reached; beyond that the oldest are dropped."""

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        if self.endpoint:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
                raise ValueError(f"otlp.endpoint is {self.endpoint!r}: write http://SERVER:4318, without user")

    def token(self) -> str:
        """What `token_of` finds."""
        return token_of("otlp", self.token_file, CREDENTIAL, TOKEN_VARIABLE)
