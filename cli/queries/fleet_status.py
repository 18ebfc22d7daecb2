"""How the machines stand, from what the store holds: last readings, silence, open verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cli import time_format
from detector.topology.maintenance import in_maintenance
from store.schema.catalogue import METRICS
from store.schema.contract import Store
from store.schema.time import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

    from detector.topology.maintenance import Acknowledgement, Maintenance, OperatorState

LOOK_NS = 5 * 60 * 10**9
"""Machines that were read within this time are shown, or longer ago where a longer silence is no silence."""
FRESH_NS = 30 * 10**9
"""Readings are means over the last half minute: about an iteration or more of training."""

READINGS = tuple((metric.headline, metric.table, metric.name) for metric in METRICS.values() if metric.headline)
"""Name shown, table and column; a counter is shown as its rate. Where a machine has several devices, their mean."""
SEVERITY = ("ok", "unknown", "warn", "crit")
_SILENT = "event.silent"


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: seconds since its last reading, its level (unknown: silent), readings by name."""

    age_s: float
    level: str
    readings: Mapping[str, float]
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """All machines at a time (Unix ns); `newest` is the newest reading there is at all, if there is one."""

    time: int
    level: str
    machines: Mapping[str, Machine]
    verdicts: tuple[Mapping[str, Any], ...]
    newest: int | None
    maintenance: Mapping[str, Maintenance] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)
    """Machines that are compared with nobody, and by what."""
    acks: Mapping[int, Acknowledgement] = field(default_factory=dict)
    """Acknowledgements of open verdicts, by their place among them."""


def standing(store: Store, now: int, silent_ns: int) -> Standing:
    """Read the store as of `now` (Unix ns); a machine without a reading for `silent_ns` is unknown."""
    verdicts = open_verdicts(store, now)
    seen = last_seen(store, now, max(LOOK_NS, silent_ns)) or last_readings(store, now)
    newest = max(seen.values(), default=None)
    readings = latest(store, min(now, max(seen.values(), default=now)))
    held = {str(verdict["machine"]): str(verdict["level"]) for verdict in reversed(verdicts)}
    orders, alone = said_of(store, now)
    idle = in_maintenance(orders)
    # Of a machine that went silent long ago, while others go on, only the detector's word is left.
    seen = {str(one["machine"]): int(one["since"]) for one in verdicts if one.get("metric") == _SILENT} | seen
    machines = {}
    for name in sorted(seen):
        silent = now - seen[name] > silent_ns and name not in idle
        level = max("unknown" if silent else "ok", held.get(name, "ok"), key=SEVERITY.index)
        machines[name] = Machine(max(0, now - seen[name]) / 1e9, level, readings.get(name, {}), silent)
    fresh = newest is not None and now - newest <= silent_ns
    levels = [*(machine.level for machine in machines.values()), *held.values()]
    # Without fresh readings nobody knows, but for what was found and is not over.
    level = _worst(levels) if fresh or "crit" in levels else "unknown"
    shown = {name: why for name, why in alone.items() if name in machines and name not in idle}
    acks = {at: ack for at, one in enumerate(verdicts) if (ack := _acknowledged(orders, one))}
    return Standing(now, level, machines, verdicts, newest, idle, shown, acks)


def _acknowledged(orders: OperatorState, row: Mapping[str, Any]) -> Acknowledgement | None:
    return orders.acknowledged(row["machine"], row.get("device"), row["time"])


def _worst(levels: list[str]) -> str:
    """The worst level; the silence of a machine whose peers are read is a warning."""
    worst = max(levels, key=SEVERITY.index)
    return "warn" if worst == "unknown" else worst


def open_verdicts(store: Store, now: int) -> tuple[Mapping[str, Any], ...]:
    """The last word on each machine of each task where that is no "ok": the worst first."""
    last: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in store.read("verdict", 0, now).to_pylist():
        last[row["task"], row["machine"]] = row
    still = [row for row in last.values() if row.get("level") in ("warn", "crit")]
    return tuple(sorted(still, key=lambda row: (row["level"] != "crit", row["time"])))


def said_of(store: Store, now: int) -> tuple[OperatorState, dict[str, str]]:
    """The operator's orders as of `now` (Unix ns), and the machines that the detector compares with nobody."""
    from detector.methods.peers.coverage import told
    from detector.timeseries.rows import rows_of
    from detector.topology.maintenance import OperatorState, orders_in  # numpy, which the agent's process must not load

    events = store.read("event", 0, now, ("device", "message", "begin", "until", "every", "times"))
    rows = rows_of("event", events)
    return (orders_in(rows, now), told(rows)) if events.num_rows else (OperatorState(), {})


def in_words(period: Maintenance) -> str:
    """Since when and until when, how often, and why."""
    if period.until == LATEST:
        span = f"since {time_format.shown(period.since)} UTC, until it is ended"
    else:
        span = f"from {time_format.shown(period.since)} to {time_format.shown(period.until)} UTC"
    often = f", every {time_format.ago(period.every / 1e9)}, {period.times} times" if period.every else ""
    return f"{span}{often}" + (f": {period.reason}" if period.reason else "")


def last_seen(store: Store, now: int, back: int) -> dict[str, int]:
    """Time of each machine's last reading, `back` ns at most; what detector and operator wrote about it is none."""
    there = [table for table in store.tables() if table not in ("verdict", "event")]
    # Our agent writes these at each reading; only where others wrote the store must all tables be asked.
    usual = [table for table in ("host", "source") if table in there]
    seen: dict[str, int] = {}
    for table in usual or there:
        rows = store.read(table, now - back, now + FRESH_NS, ())
        for row in rows.group_by("machine").aggregate([("time", "max")]).to_pylist():
            seen[row["machine"]] = max(row["time_max"], seen.get(row["machine"], 0))
    return seen


def last_readings(store: Store, now: int) -> dict[str, int]:
    """Of a fleet that is silent: each machine's last reading, as far back as it takes to find any."""
    ends, back = store.span(), LOOK_NS
    if ends is None or ends[0] > now:
        return {}
    end = min(ends[1], now)
    while not (seen := last_seen(store, end, back)) and back <= end - ends[0]:
        back *= 12
    return seen


def latest(store: Store, now: int) -> dict[str, dict[str, float]]:
    """The key readings of each machine over the last half minute; what was not read is left out."""
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
    """Growth per second, the mean over a machine's devices; a device whose counter was reset is left out."""
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
