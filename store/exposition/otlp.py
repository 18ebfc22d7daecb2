"""Families as OTLP: the JSON form of ExportMetricsServiceRequest.

https://opentelemetry.io/docs/specs/otlp/#otlphttp, opentelemetry/proto/metrics/v1/metrics.proto
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from store.exposition.family import Family

CUMULATIVE = 2
UCUM = {"seconds": "s", "bytes": "By", "ratio": "1", "watts": "W", "celsius": "Cel", "hertz": "Hz", "joules": "J"}
"""Our units in those of OpenTelemetry (https://ucum.org)."""


def encode(families: Iterable[Family], about: Mapping[str, str], start: int) -> bytes:
    """The request; `about` are the resource's attributes, `start` (Unix ns) is since when counters are known."""
    metrics = [_metric(family, start) for family in families if family.points]
    scope = {"scope": {"name": "peerwatch"}, "metrics": metrics}
    return msgspec.json.encode(
        {"resourceMetrics": [{"resource": {"attributes": _attributes(about)}, "scopeMetrics": [scope]}]}
    )


def _metric(family: Family, start: int) -> dict[str, Any]:
    points = [
        {"attributes": _attributes(dict(labels)), "timeUnixNano": str(time), "asDouble": value}
        for labels, value, time in family.points
    ]
    found: dict[str, Any] = {"name": family.name, "description": family.help, "unit": UCUM.get(family.unit, "")}
    if family.kind != "counter":
        return found | {"gauge": {"dataPoints": points}}
    since = [point | {"startTimeUnixNano": str(start)} for point in points]
    return found | {"sum": {"dataPoints": since, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}}


def _attributes(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"key": name, "value": {"stringValue": text.encode(errors="replace").decode()}} for name, text in labels.items()
    ]
