"""Configuration of an InfluxDB server: its address in one line, and the table `[influxdb]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from store.schema.contract import StoreError
from store.transport.tokens import token_of

DIALECTS = ("auto", "v1", "v2")
READINGS = ("auto", "influxql", "flux")
TOKEN_VARIABLE = "PEERWATCH_TOKEN"  # noqa: S105 - a name, no secret
CREDENTIAL = "influxdb-token"


class InfluxConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach the server, and the limits of the spool; used where `store` is an address.

    Raises ValueError for an unknown word; msgspec.ValidationError, when it is decoded, for a number out of bounds.
    """

    org: str = ""
    """Organisation (InfluxDB 2 only)."""
    token_file: str = ""
    """File with the token, or user:password, in its first line for InfluxDB 1."""
    ca_file: str = ""
    """Certificates by which an https server is known; empty: the system's."""
    dialect: str = "auto"
    """How to write: v1 (/write), v2 (/api/v2/write), or auto: the server is asked."""
    reading: str = "auto"
    """How to read: influxql, flux, or auto: InfluxQL, which all of InfluxDB 1, 2 and 3 understand."""
    post_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 1.0
    """How often readings are sent; jitter of a quarter is added."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 30.0
    """How long the server may take to answer."""
    keep_days: Annotated[int, Meta(ge=1, le=36500)] = 30
    """Retention of a database that Peerwatch creates (InfluxDB 1 only)."""
    spool_folder: str = "/var/lib/peerwatch/spool"
    """Folder in which samples wait for the server."""
    spool_bytes: Annotated[int, Meta(ge=100_000, le=1 << 50)] = 500_000_000
    """How many bytes may wait."""
    spool_seconds: Annotated[float, Meta(ge=1.0, le=1e10)] = 7 * 86400.0
    """How long samples may wait."""
    resend_seconds: Annotated[float, Meta(ge=0.0, le=1e6)] = 600.0
    """How long sent samples stay in the spool; a server that restarts gets them again."""

    def __post_init__(self) -> None:
        """Refuse an unknown word, naming the key and the known words."""
        for key, words in (("dialect", DIALECTS), ("reading", READINGS)):
            if getattr(self, key) not in words:
                raise ValueError(f"influxdb.{key} is {getattr(self, key)!r}: known are {', '.join(words)}")

    def token(self) -> str:
        """What `token_of` finds."""
        return token_of("influxdb", self.token_file, CREDENTIAL, TOKEN_VARIABLE)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database (InfluxDB 1 and 3) or bucket (2) is."""

    url: str
    """Scheme, host, port, and the path before the API's, without a slash at its end."""
    database: str

    def __str__(self) -> str:
        return f"{self.url}/{self.database}"


def is_address(place: str) -> bool:
    """Whether a store is named by an address."""
    return place.startswith(("http://", "https://"))


def address_of(place: str) -> Address:
    """`http://server:8086/database` in its parts. Raises StoreError, which never repeats a password."""
    try:
        parts = urlsplit(place)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise StoreError("the store's address cannot be understood: write http://SERVER:8086/DATABASE") from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise StoreError(
            f"the address of the store on {host} holds more than http://SERVER:8086/DATABASE: "
            f"a token or user:password belongs in the file that influxdb.token_file names"
        )
    path, _, database = parts.path.rstrip("/").rpartition("/")
    if not host or not database:
        raise StoreError(f"{place} names no database: write http://SERVER:8086/DATABASE (of InfluxDB 2: a bucket)")
    where = f"[{host}]" if ":" in host else host
    return Address(f"{parts.scheme}://{where}{f':{port}' if port else ''}{path}", unquote(database))
