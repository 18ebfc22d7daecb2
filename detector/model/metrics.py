"""Metric metadata as arrays: tolerances, directions, counter or gauge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.stats.arrays import Array
from store.schema.catalogue import METRICS, TABLES


@dataclass(frozen=True, slots=True)
class Bounds:
    """Per metric, what the catalogue has to say; [metric]."""

    floor: Array
    relative: Array
    unknown: NDArray[np.bool_]
    high: NDArray[np.bool_]
    low: NDArray[np.bool_]


def bounds_of(table: str, metrics: list[str], config: Config) -> Bounds:
    """Floors and directions; a metric that no catalogue knows gets the defaults and both directions."""
    rows = [METRICS.get(f"{table}.{metric}") for metric in metrics]
    return Bounds(
        np.array([row.abs_tolerance if row else 0.0 for row in rows]),
        np.array([row.rel_tolerance if row else config.unknown_metric_floor for row in rows]),
        np.array([row is None for row in rows], bool),
        np.array([row is None or row.direction in ("high", "both") for row in rows], bool),
        np.array([row is None or row.direction in ("low", "both") for row in rows], bool),
    )


_UNITS = ("_total", "_ratio", "_seconds", "_per_second")
"""Ends of names that drivers do not give to their counters."""


def is_counter(table: str, metric: str) -> bool:
    """Whether the column only grows: by the catalogue, else by its name."""
    known = METRICS.get(f"{table}.{metric}")
    return known.kind == "counter" if known else metric.endswith("_total")


def is_judged(table: str, metric: str) -> bool:
    """Whether peers are compared by this column; what no catalogue knows is, unless it was passed on from a driver."""
    known = METRICS.get(f"{table}.{metric}")
    if known is None:
        return table not in TABLES or not TABLES[table].has_driver_columns or metric.endswith(_UNITS)
    return known.compared
