"""Configuration of a NATS stream between agents and writers: its address in one line, and the table `[nats]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from store.schema.contract import StoreError
from store.transport.tokens import token_of

TOKEN_VARIABLE = "PEERWATCH_NATS_TOKEN"  # noqa: S105 - a name, no secret
CREDENTIAL = "nats-token"
_FORM = "write nats://SERVER:4222/STREAM"
_STREAM = re.compile(r"[A-Za-z0-9_-]{1,64}")


class NatsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach the servers, and the limits of a stream that Peerwatch creates.

    Raises msgspec.ValidationError, when it is decoded, for a number out of bounds.
    """

    token_file: str = ""
    """File with the token, or user:password, in its first line."""
    ca_file: str = ""
    """Certificates by which a tls server is known; empty: the system's."""
    post_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 1.0
    """How often readings are published; jitter of a quarter is added."""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 10.0
    """How long the server may take to answer."""
    settle_seconds: Annotated[float, Meta(ge=0.1, le=3600.0)] = 10.0
    """How long a writer may take over what it took, before it is given to another."""
    keep_seconds: Annotated[float, Meta(ge=1.0, le=1e9)] = 86400.0
    """How long the stream keeps readings, written on or not."""
    keep_bytes: Annotated[int, Meta(ge=100_000, le=1 << 50)] = 10_000_000_000
    """How much the stream keeps; beyond that the oldest go."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Number of servers of a NATS cluster that store the stream."""

    def token(self) -> str:
        """What `token_of` finds."""
        return token_of("nats", self.token_file, CREDENTIAL, TOKEN_VARIABLE)


class WriterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `peerwatch writer` carries, and where to."""

    stream: str = ""
    """Where agents publish; empty: the configuration's `store`, where that is a stream."""
    store: str = ""
    """Where to write; empty: the configuration's `store`, where that is none."""
    name: str = "writer"
    """Writers of one name share the work; each name is given everything."""

    def ways(self, store: str) -> tuple[str, str]:
        """From where to where, beside the configuration's `store`; either is empty where nothing says it."""
        return self.stream or store * is_stream(store), self.store or store * (not is_stream(store))


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """Where a stream is: the servers of one NATS cluster, and its name."""

    servers: tuple[str, ...]
    stream: str

    def __str__(self) -> str:
        return f"{','.join(self.servers)}/{self.stream}"

    @property
    def subject(self) -> str:
        """What its messages are published under."""
        return f"{self.stream}.lines"


def is_stream(place: str) -> bool:
    """Whether an address names a stream."""
    return place.startswith(("nats://", "tls://"))


def stream_of(place: str) -> StreamAddress:
    """`nats://server:4222/stream` in its parts; further servers follow the first after commas.

    Raises StoreError, which never repeats a password.
    """
    scheme, _, rest = place.partition("://")
    hosts, _, stream = rest.partition("/")
    if "@" in rest:
        raise StoreError(f"the address of a stream holds no token: it belongs in the file of nats.token_file; {_FORM}")
    if not all(hosts.split(",")):
        raise StoreError(f"{place} names no server: {_FORM}")
    if not _STREAM.fullmatch(stream):
        raise StoreError(f"{place} names no stream (letters, digits, _ and -): {_FORM}")
    return StreamAddress(tuple(f"{scheme}://{host}" for host in hosts.split(",")), stream)
