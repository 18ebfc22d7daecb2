"""Families as text: OpenMetrics 1.0, and the older format of Prometheus for readers that do not ask for it.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from store.exposition.family import Family, Labels

OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_SUFFIX = {"counter": "_total", "info": "_info", "gauge": ""}
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def render(families: Iterable[Family], openmetrics: bool = True) -> bytes:
    """The text of these families; a name that comes twice is an error of the caller."""
    lines: list[str] = []
    for family in families:
        if not family.points:
            continue
        sample = family.name + _SUFFIX[family.kind]
        name, kind = (family.name, family.kind) if openmetrics else (sample, family.kind.replace("info", "gauge"))
        lines += [f"# HELP {name} {_escaped(family.help)}", f"# TYPE {name} {kind}"]
        if openmetrics and family.unit:
            lines.append(f"# UNIT {name} {family.unit}")
        lines += [f"{sample}{_labels(labels)} {_number(value)}" for labels, value, _ in family.points]
    lines += ["# EOF"] if openmetrics else []
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels) + "}" if labels else ""


def _escaped(text: str) -> str:
    return _CONTROL.sub("?", text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
