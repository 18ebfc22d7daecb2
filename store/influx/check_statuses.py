"""Statuses of machines in the form of InfluxDB's own checks, in an ordinary database or bucket.

Tags are those of a check and the machine; in a series only `_level` may differ between rows, so all else is a field.
Form as in InfluxData's Flux package influxdata/influxdb/monitor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from store.influx.config import InfluxConfig, address_of, is_address
from store.line_protocol.write import pack, tag, text
from store.schema.contract import StoreError
from store.schema.job import JOB
from store.schema.time import LATEST

if TYPE_CHECKING:
    from store.influx.server import Server

MEASUREMENT = "statuses"
CHECK_ID = "00000070ee57a7c4"
"""16 hexadecimal digits, as every check has; none of InfluxDB's own has this one."""
CHECK_NAME = "peerwatch"
TAGS = ("_check_id", "_check_name", "_level", "_source_measurement", "_type", "machine")
FIELDS = ("_message", "_source_timestamp", "score", "incident", "event", "task", "device", "kind", "metric", *JOB)
_POST_LINES = 5000


@dataclass(frozen=True, slots=True)
class Status:
    """The status of one machine; `source_time` (Unix ns) is the time of the samples behind it."""

    machine: str
    level: str
    message: str
    source_time: int
    score: float
    texts: Mapping[str, str]
    """Further fields, each a text."""


class Statuses:
    """Writes statuses to one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.place = str(server.address)
        self._last = 0

    def write(self, rows: Sequence[Status], now: int) -> None:
        """Write the rows at `now` (Unix ns), each 1 ns later than the one before. Raises StoreError."""
        first = max(now, self._last + 1)
        lines = [line_of(row, first + at) for at, row in enumerate(rows)]
        self._last = first + len(lines) - 1
        for at in range(0, len(lines), _POST_LINES):
            answer = self.server.write(pack(lines[at : at + _POST_LINES]))
            if not answer.good:
                raise StoreError(self.server.explain(answer))


def open_statuses(place: str, config: InfluxConfig | None = None) -> Statuses:
    """The statuses at an address. Raises StoreError where it is none."""
    if not is_address(place):
        raise StoreError(
            f"{place} takes no alerts in InfluxDB's form: alerts.influxdb.store must name http://SERVER:8086/DATABASE"
        )
    from store.influx.server import Server  # loads urllib3

    return Statuses(Server(address_of(place), config or InfluxConfig()))


def line_of(status: Status, now: int) -> bytes:
    """The row in line protocol."""
    score = status.score if math.isfinite(status.score) else 0.0
    source = min(status.source_time, LATEST)
    fields = [
        b"_message=" + text(status.message),
        b"_source_timestamp=%di" % source,
        b"score=%b" % repr(score).encode(),
    ]
    fields += [name.encode() + b"=" + text(value) for name, value in status.texts.items()]
    return b"%b %b %d" % (_head(status.machine, status.level), b",".join(fields), now)


@lru_cache(maxsize=1 << 16)
def _head(machine: str, level: str) -> bytes:
    """Measurement and tags."""
    about = (CHECK_ID, CHECK_NAME, level, "verdict", "custom", machine)
    tags = b",".join(name.encode() + b"=" + tag(value) for name, value in zip(TAGS, about, strict=True))
    return MEASUREMENT.encode() + b"," + tags
