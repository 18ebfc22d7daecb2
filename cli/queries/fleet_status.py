"""FleetStatus: last readings, silence and open verdicts of all machines, from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cli import time_format
from cli.queries.learning import read_learning
from cli.queries.probes import ProbeShare, read_graph_machines, read_probe_share
from detector.model.verdict_rows import since_of
from detector.topology.maintenance import in_maintenance
from store.schema.catalogue import METRICS, UNJUDGED
from store.schema.contract import Store
from store.schema.time import LATEST
from store.signed import UNSIGNED

if TYPE_CHECKING:
    import pyarrow as pa

    from detector.service.lease import Term
    from detector.topology.maintenance import Acknowledgement, Maintenance, OperatorState

LOOK_NS = 5 * 60 * 10**9
"""Machines with a reading within this time are shown; a longer --stale-after extends it."""
FRESH_NS = 30 * 10**9
"""Readings are means over the last 30 s: at least about one training iteration."""

READINGS = tuple((metric.headline, metric.table, metric.name) for metric in METRICS.values() if metric.headline)
"""Name shown, table and column; a counter is shown as its rate. Where a machine has several devices, their mean."""
SEVERITY = ("ok", "unknown", "warn", "crit")
_SILENT = "event.silent"


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: seconds since its last reading, level (unknown: silent), readings by name."""

    age_s: float
    level: str
    readings: Mapping[str, float]
    silent: bool = False


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """All machines at a time (Unix ns); `newest` is the time of the newest reading, None without any."""

    time: int
    level: str
    machines: Mapping[str, Machine]
    verdicts: tuple[Mapping[str, Any], ...]
    newest: int | None
    maintenance: Mapping[str, Maintenance] = field(default_factory=dict)
    without_peers: Mapping[str, str] = field(default_factory=dict)
    """Machine without peers -> reason."""
    acks: Mapping[int, Acknowledgement] = field(default_factory=dict)
    """Index in `verdicts` -> its acknowledgement."""
    lease: Term | None = None
    """Of detectors with standby the one that speaks, or spoke last."""
    probes: ProbeShare | None = None
    """What probes take of training processes, where agents report it."""
    learning: Mapping[str, Any] | None = None
    """How far the detector has learned its thresholds, where it reports it."""
    cuda_graphs: tuple[str, ...] = ()
    """Machines with NCCL operations that CUDA graphs replay."""


def read_fleet_status(store: Store, now: int, silent_ns: int) -> FleetStatus:
    """Read the store as of `now` (Unix ns); a machine without a reading for `silent_ns` is unknown."""
    from detector.service.lease import current

    verdicts = open_verdicts(store, now)
    seen = last_seen(store, now, max(LOOK_NS, silent_ns)) or last_readings(store, now)
    newest = max(seen.values(), default=None)
    readings = latest(store, min(now, max(seen.values(), default=now)))
    held = {str(verdict["machine"]): str(verdict["level"]) for verdict in reversed(verdicts)}
    orders, alone = operator_state_of(store, now)
    idle = in_maintenance(orders)
    # A machine that has been silent for long is known from its open verdict only.
    seen = {str(one["machine"]): since_of(one) for one in verdicts if one.get("metric") == _SILENT} | seen
    machines = {}
    for name in sorted(seen):
        silent = now - seen[name] > silent_ns and name not in idle
        level = max("unknown" if silent else "ok", held.get(name, "ok"), key=SEVERITY.index)
        machines[name] = Machine(max(0, now - seen[name]) / 1e9, level, readings.get(name, {}), silent)
    fresh = newest is not None and now - newest <= silent_ns
    levels = [*(machine.level for machine in machines.values()), *held.values()]
    # Without fresh readings the level is unknown, unless a critical verdict is open.
    level = _worst(levels) if fresh or "crit" in levels else "unknown"
    shown = {name: why for name, why in alone.items() if name in machines and name not in idle}
    acks = {at: ack for at, one in enumerate(verdicts) if (ack := _acknowledged(orders, one))}
    about = current(store), read_probe_share(store, now), read_learning(store, now), read_graph_machines(store, now)
    return FleetStatus(now, level, machines, verdicts, newest, idle, shown, acks, *about)


def _acknowledged(orders: OperatorState, row: Mapping[str, Any]) -> Acknowledgement | None:
    return orders.acknowledged(row["machine"], row.get("device"), row["time"])


def _worst(levels: list[str]) -> str:
    """The worst level; one silent machine among others that are read is a warning."""
    worst = max(levels, key=SEVERITY.index)
    return "warn" if worst == "unknown" else worst


def open_verdicts(store: Store, now: int) -> tuple[Mapping[str, Any], ...]:
    """The last verdict of each machine and task, unless it is ok; the worst first.

    One that is unsigned ends or lowers none that is signed.
    """
    last: dict[tuple[str, str, bool], Mapping[str, Any]] = {}
    for row in store.read("verdict", 0, now).to_pylist():
        last[row["task"], row["machine"], str(row.get("message")).startswith(UNSIGNED)] = row
    still = [row for row in last.values() if row.get("level") in ("warn", "crit")]
    return tuple(sorted(still, key=lambda row: (row["level"] != "crit", row["time"])))


def operator_state_of(store: Store, now: int) -> tuple[OperatorState, dict[str, str]]:
    """The operator's actions as of `now` (Unix ns), and the machines without peers with the reason."""
    import numpy as np

    from detector.methods.peers.groups.coverage import uncompared_from_events
    from detector.timeseries.rows import rows_of
    from detector.topology.maintenance import (  # loads numpy, which the agent's process must not
        OperatorState,
        orders_in,
    )

    events = store.read("event", 0, now, ("device", "message", "begin", "until", "every", "times"))
    if "message" in events.column_names:  # what is unsigned puts no machine into maintenance
        texts = events.column("message").to_pylist()
        events = events.filter(np.array([not str(text).startswith(UNSIGNED) for text in texts], bool))
    rows = rows_of("event", events)
    return (orders_in(rows, now), uncompared_from_events(rows)) if events.num_rows else (OperatorState(), {})


def in_words(period: Maintenance) -> str:
    """Begin, end, repetition and reason of a maintenance."""
    if period.until == LATEST:
        span = f"since {time_format.shown(period.since)} UTC, without end"
    else:
        span = f"from {time_format.shown(period.since)} to {time_format.shown(period.until)} UTC"
    often = f", every {time_format.ago(period.every / 1e9)}, {period.times} times" if period.every else ""
    return f"{span}{often}" + (f": {period.reason}" if period.reason else "")


def last_seen(store: Store, now: int, back: int) -> dict[str, int]:
    """Time of each machine's last reading within `back` ns; verdicts and events do not count."""
    there = [table for table in store.tables() if table not in ("event", *UNJUDGED)]
    # The agent writes these at each reading; a store from another source needs all tables.
    usual = [table for table in ("host", "source") if table in there]
    seen: dict[str, int] = {}
    for table in usual or there:
        rows = store.read(table, now - back, now + FRESH_NS, ())
        for row in rows.group_by("machine").aggregate([("time", "max")]).to_pylist():
            seen[row["machine"]] = max(row["time_max"], seen.get(row["machine"], 0))
    return seen


def last_readings(store: Store, now: int) -> dict[str, int]:
    """Time of each machine's last reading in a silent fleet, as far back as needed to find any."""
    ends, back = store.span(), LOOK_NS
    if ends is None or ends[0] > now:
        return {}
    end = min(ends[1], now)
    while not (seen := last_seen(store, end, back)) and back <= end - ends[0]:
        back *= 12
    return seen


def latest(store: Store, now: int) -> dict[str, dict[str, float]]:
    """The key readings of each machine over the last 30 s; missing ones are left out."""
    found: dict[str, dict[str, float]] = {}
    wanted = {table: [reading[2] for reading in READINGS if reading[1] == table] for _, table, _ in READINGS}
    tables = {table: store.read(table, now - FRESH_NS, now + FRESH_NS, names) for table, names in wanted.items()}
    for name, table, column in READINGS:
        rows = tables[table]
        if column in rows.column_names:
            for machine, value in (_rates if column.endswith("_total") else _means)(rows, column).items():
                found.setdefault(machine, {})[name] = value
    return found


def _means(rows: pa.Table, column: str) -> dict[str, float]:
    means = rows.group_by("machine").aggregate([(column, "mean")]).to_pylist()
    return {row["machine"]: row[f"{column}_mean"] for row in means if row[f"{column}_mean"] is not None}


def _rates(rows: pa.Table, column: str) -> dict[str, float]:
    """Growth per second, mean over a machine's devices; a device with a counter reset is left out."""
    keys = ["machine", *(key for key in ("gpu", "slot") if key in rows.column_names)]
    whole = rows.select([*keys, "time", column]).drop_null()
    wanted = [("time", "min"), ("time", "max"), (column, "min"), (column, "max"), (column, "first"), (column, "last")]
    rates: dict[str, list[float]] = {}
    for row in whole.group_by(keys, use_threads=False).aggregate(wanted).to_pylist():
        seconds = (row["time_max"] - row["time_min"]) / 1e9
        first, last = row[f"{column}_first"], row[f"{column}_last"]
        if seconds > 0 and (first, last) == (row[f"{column}_min"], row[f"{column}_max"]):
            rates.setdefault(row["machine"], []).append((last - first) / seconds)
    return {machine: sum(found) / len(found) for machine, found in rates.items()}
