"""Families of metrics, as Prometheus and OpenTelemetry know them, made from the catalogue."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from store.schema.catalogue import METRICS, TABLES
from store.schema.job import JOB
from store.schema.sample import Value

Labels = tuple[tuple[str, str], ...]
UNITS = ("seconds", "bytes", "ratio", "watts", "celsius", "hertz", "joules")
"""Base units by which names end."""
INFO: dict[str, tuple[str, ...]] = {
    "gpu": ("uuid", "parent_uuid", "serial", "pci_address"),
    "nccl": ("comm",),
    "cuda": ("startup_phase",),
    "probe": ("state",),
    "job": tuple(JOB),
}
"""Table -> its texts that become labels of an info metric."""
SHOWN = ("host", "gpu", "rdma", "nccl", "cuda", "process", "startup", "source", "probe", "job")
"""Tables that are exposed; the others hold long texts, or what other machines say."""
_UNSHOWN = frozenset(("nccl.pid", "cuda.pid", "startup.pid"))  # another number each time: no quantity
_BITS = 8
_LABEL = 200
"""Characters of a label's value."""


@dataclass(slots=True)
class Family:
    """One metric: `name` without `_total` and `_info`; each point has labels, a value and a time (Unix ns)."""

    name: str
    kind: Literal["gauge", "counter", "info"]
    help: str
    points: list[tuple[Labels, float, int]] = field(default_factory=list)

    @property
    def unit(self) -> str:
        """The base unit in the name; empty where there is none."""
        return next((unit for unit in UNITS if self.name.endswith(f"_{unit}")), "")

    def add(self, labels: Mapping[str, str], value: float, time: int) -> None:
        """Add a point, its labels bounded; a value that is not finite is left out."""
        if math.isfinite(value):
            self.points.append((tuple((name, text[:_LABEL]) for name, text in labels.items()), value, time))


@dataclass(slots=True)
class Row:
    """The newest row of one device: its time (Unix ns) and values."""

    time: int
    values: Mapping[str, Value]


def families_of(machine: str, rows: Iterable[tuple[str, Row]]) -> list[Family]:
    """The families of the rows (table, row) of one machine, in the catalogue's order."""
    listed = list(rows)
    uuids = {row.values.get("gpu"): str(row.values["uuid"]) for table, row in listed if row.values.get("uuid")}
    found: dict[str, Family] = {}
    for table, row in listed:
        keys = {key: str(row.values.get(key) or "") for key in TABLES[table].keys}
        labels = {"machine": machine, **keys}
        if table == "gpu" and (uuid := uuids.get(row.values.get("gpu"))):
            labels["uuid"] = uuid
        _add_info(found, table, labels, row)
        for name, value in row.values.items():
            metric = METRICS.get(f"{table}.{name}")
            if metric and metric.kind != "text" and metric.key not in _UNSHOWN and isinstance(value, (int, float)):
                scale = 1 / _BITS if metric.unit == "bits per second" else 1.0
                _family(found, metric.key).add(labels, value * scale, row.time)
    order = {_name(key): at for at, key in enumerate(METRICS)}
    return sorted(found.values(), key=lambda family: order.get(family.name, -1))


def _add_info(found: dict[str, Family], table: str, labels: Mapping[str, str], row: Row) -> None:
    texts = {name: str(row.values[name]) for name in INFO.get(table, ()) if row.values.get(name)}
    if texts:
        name = f"peerwatch_{table}"
        family = found.setdefault(f"{table}_info", Family(name, "info", f"{TABLES[table].help}: identity"))
        family.add({**labels, **texts}, 1.0, row.time)


def _family(found: dict[str, Family], key: str) -> Family:
    metric = METRICS[key]
    family = found.get(key)
    if family is None:
        kind: Literal["gauge", "counter"] = "counter" if metric.kind == "counter" else "gauge"
        family = found[key] = Family(_name(key), kind, metric.help)
    return family


def _name(key: str) -> str:
    """The family's name: `gpu.energy_joules_total` is peerwatch_gpu_energy_joules; bytes, not bits."""
    return f"peerwatch_{key.replace('.', '_')}".removesuffix("_total").replace("_bits_", "_bytes_")
