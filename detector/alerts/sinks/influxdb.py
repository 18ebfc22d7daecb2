"""InfluxDB as a sink: rows of the measurement `statuses`, in the form that its notification rules read.

A row comes on each transition; a machine that is well is told at each heartbeat, since a rule on "ok to crit" needs an
ok row within its own period; what lasts is told again slowly, since a rule on "crit" fires for every crit row.
https://docs.influxdata.com/influxdb/v2/monitor-alert/
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from detector.alerts.alert import Alert, Sink
from store.config_checks import refuse_outside
from store.influx.check_statuses import Status, Statuses


class InfluxdbConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink `influxdb`. Raises ValueError for a value that cannot be meant."""

    store: str = ""
    """Server and database (or bucket) for the rows; empty: where the readings are kept."""
    heartbeat_seconds: float = 30.0
    """How often machines that are well are told; less than the shortest period of a notification rule."""
    repeat_seconds: float = 3600.0
    """How often an incident that lasts is told again; 0: never."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant, naming the key."""
        bounds = (("heartbeat_seconds", 1.0, 1e6), ("repeat_seconds", 0.0, 1e6))
        refuse_outside(self, "alerts.influxdb", bounds)


class Influxdb(Sink):
    """Writes statuses; `clock` gives the time of writing (Unix ns), which a row must have to be seen by a rule."""

    def __init__(self, config: InfluxdbConfig, statuses: Statuses, clock: Callable[[], int]) -> None:
        self.statuses, self.clock = statuses, clock
        self.repeat_s, self.beat_s = config.repeat_seconds, config.heartbeat_seconds

    def send(self, alert: Alert) -> str:
        """Write one row at the machine's level. Raises StoreError."""
        self._write([status_of(alert)])
        return f"written to {self.statuses.place}"

    def beat(self, machines: Collection[str]) -> None:
        """Write an ok row for each machine. Raises StoreError."""
        now = self.clock()
        self._write([Status(machine, "ok", f"{machine} is well", now, 0.0, {"event": "well"}) for machine in machines])

    def _write(self, rows: Sequence[Status]) -> None:
        self.statuses.write(rows, self.clock())


def status_of(alert: Alert) -> Status:
    """The row of an alert; where something else is still open on the machine, at that one's level."""
    verdict = alert.verdict
    texts = {
        "incident": alert.incident,
        "event": alert.event,
        "task": verdict.task,
        "device": verdict.device or "",
        "kind": verdict.kind,
        "metric": verdict.metric,
    }
    level = verdict.level if alert.event == "test" else alert.standing
    return Status(verdict.machine, level, alert.headline, verdict.time, verdict.score, texts)
