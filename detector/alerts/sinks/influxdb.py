"""InfluxDB as a sink: rows of the measurement `statuses`, in the form that its notification rules read.

A row is written at each transition, and for each healthy machine at each heartbeat, since a rule on "ok to crit" needs
an ok row within its own period. Open incidents are repeated slowly, since a rule on "crit" fires for every crit row.
https://docs.influxdata.com/influxdb/v2/monitor-alert/
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from detector.alerts.alert import Alert, Sink
from store.influx.check_statuses import Status, Statuses


class InfluxdbConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `influxdb`. Raises ValueError for an invalid value."""

    store: str = ""
    """Server and database (or bucket) for the rows; empty: that of the readings."""
    heartbeat_seconds: Annotated[float, Meta(ge=1.0, le=1e6)] = 30.0
    """Seconds between rows of healthy machines; less than the shortest period of a notification rule."""
    repeat_seconds: Annotated[float, Meta(ge=0.0, le=1e6)] = 3600.0
    """Seconds between rows of an open incident; 0: no repetition."""


class Influxdb(Sink):
    """Writes statuses; `clock` returns the time of writing (Unix ns), by which rules find a row."""

    def __init__(self, config: InfluxdbConfig, statuses: Statuses, clock: Callable[[], int]) -> None:
        self.statuses, self.clock = statuses, clock
        self.repeat_s, self.heartbeat_s = config.repeat_seconds, config.heartbeat_seconds

    def send(self, alert: Alert) -> str:
        """Write one row at the machine's level. Raises StoreError."""
        self._write([status_of(alert)])
        return f"written to {self.statuses.place}"

    def heartbeat(self, machines: Collection[str]) -> None:
        """Write an ok row for each machine. Raises StoreError."""
        now = self.clock()
        self._write(
            [Status(machine, "ok", f"{machine} is healthy", now, 0.0, {"event": "well"}) for machine in machines]
        )

    def _write(self, rows: Sequence[Status]) -> None:
        self.statuses.write(rows, self.clock())


def status_of(alert: Alert) -> Status:
    """The row of an alert, at the worst level of the open incidents of its machine."""
    verdict = alert.verdict
    texts = {
        "incident": alert.incident,
        "event": alert.event,
        "task": verdict.task,
        "device": verdict.device or "",
        "kind": verdict.kind,
        "metric": verdict.metric,
        **(alert.job.as_json() if alert.job else {}),
    }
    level = verdict.level if alert.event == "test" else alert.standing
    return Status(verdict.machine, level, alert.headline, verdict.time, verdict.score, texts)
