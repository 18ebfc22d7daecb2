"""The catalogue: tables, their key columns, and every metric with its unit, tolerances and meaning.

Names follow Prometheus: base units as suffix, `_total` for a counter that only grows, ratios from 0 to 1. The rows are
in three modules beside this one, by what they tell of: machines, tasks, or what programs record of themselves. A row is
`table | name | unit | kind | direction | absolute tolerance | relative tolerance | local or - | what it is`, then
optionally `| headline or -` and `| phrase`.
"""

from __future__ import annotations

from dataclasses import replace

from store.schema import machine_metrics, record_metrics, task_metrics
from store.schema.job import JOB
from store.schema.metric import Direction, Kind, Metric, Table
from store.schema.tables import HISTORY, TABLES, UNJUDGED, ZOOM, ZOOMED

__all__ = [
    "HISTORY",
    "LOCAL",
    "METRICS",
    "TABLES",
    "UNJUDGED",
    "ZOOM",
    "ZOOMED",
    "Direction",
    "Kind",
    "Metric",
    "Table",
]


def _metric(row: str) -> Metric:
    table, name, unit, kind, direction, absolute, relative, local, text, *words = (
        part.strip() for part in row.split("|")
    )
    headline, phrase = (*(word.strip("-") for word in words), "", "")[:2]
    tolerances = float(absolute), float(relative)
    return Metric(table, name, unit, kind, direction, *tolerances, local == "local", text, headline, phrase)  # type: ignore[arg-type]


METRICS: dict[str, Metric] = {
    metric.key: metric
    for rows in (machine_metrics.ROWS, task_metrics.ROWS, record_metrics.ROWS)
    for metric in map(_metric, rows.strip().splitlines())
}
METRICS |= {
    copy.key: copy
    for metric in tuple(METRICS.values())
    if metric.table in ZOOMED
    for copy in [replace(metric, table=f"{metric.table}{ZOOM}", direction="none", local=False, headline="")]
}
METRICS |= {
    copy.key: copy
    for metric in tuple(METRICS.values())
    if metric.table == "startup"
    for copy in [replace(metric, table="start")]
}
METRICS |= {
    f"{table}.{name}": Metric(table, name, "text", "text", "none", 0.0, 0.0, False, text)
    for table in ("job", "verdict")
    for name, text in JOB.items()
}
LOCAL: frozenset[str] = frozenset(metric.key for metric in METRICS.values() if metric.local)
"""Keys of the metrics that only the machine's own state moves."""
