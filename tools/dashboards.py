"""Makes the Grafana dashboards in systemd/grafana again: `python tools/dashboards.py`.

The overviews come first: nothing in them is drawn for each machine, so that they serve thousands. `dashboard.json`, one
machine by InfluxDB, is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "systemd" / "grafana"
INFLUX, PROMETHEUS = "influxdb", "prometheus"
SHARES = ((1, "lowest 1 %"), (50, "median"), (99, "highest 1 %"))
Panel = tuple[str, str, str, int, list[tuple[str, str]], str]
"""Title, description, kind, width, queries with their legends, and unit."""

SPREAD = (
    ("gpu", "sm_clock_hertz", "GPU clock", "hertz"),
    ("gpu", "power_watts", "GPU power", "watt"),
    ("gpu", "temperature_celsius", "GPU temperature", "celsius"),
    ("nccl", "iteration_seconds", "Iteration", "s"),
)
WORST = (
    ("gpu", "temperature_celsius", "Hottest machines", "TOP", "celsius"),
    ("gpu", "sm_clock_hertz", "Lowest clocks", "BOTTOM", "hertz"),
    ("nccl", "iteration_seconds", "Longest iterations", "TOP", "s"),
    ("host", "cpu_pressure_ratio", "Waiting for a CPU", "TOP", "percentunit"),
)


def influx_overview() -> list[Panel]:
    """The fleet by InfluxQL."""
    where = "WHERE $timeFilter"
    count = (
        f'SELECT count(seen) FROM (SELECT last("cpu_utilization_ratio") AS seen FROM "host" {where} GROUP BY "machine")'
    )
    said = (
        f'SELECT "level", "machine", "device", "metric", "message" FROM "verdict" {where} ORDER BY time DESC LIMIT 100'
    )
    worst = f'SELECT TOP("score", "machine", 20), "level", "device", "metric" FROM "verdict" {where}'
    panels: list[Panel] = [
        ("Machines", "Machines read in the chosen time.", "stat", 4, [(count, "")], "none"),
        ("Largest scores", "In multiples of what raises an alarm.", "table", 20, [(worst, "")], ""),
        ("Verdicts", "The newest first; ok: an incident is over.", "table", 24, [(said, "")], ""),
    ]
    for table, column, title, unit in SPREAD:
        parts = ", ".join(f'percentile("{column}", {share}) AS p{share}' for share, _ in SHARES)
        query = f'SELECT {parts} FROM "{table}" {where} GROUP BY time($__interval) fill(none)'
        panels.append((title, "Lowest 1 %, median and highest 1 % of all.", "timeseries", 6, [(query, "$col")], unit))
    for table, column, title, order, unit in WORST:
        means = f'SELECT mean("{column}") AS average FROM "{table}" {where} GROUP BY "machine"'
        query = f"SELECT {order}(average, machine, 20) FROM ({means})"
        panels.append((title, "Means over the chosen time.", "table", 6, [(query, "")], unit))
    events = f'SELECT count("message") FROM "event" {where} AND "severity" = \'crit\' GROUP BY "source", "code"'
    panels.append(("Critical events", "By source and code.", "table", 24, [(events, "")], ""))
    return panels


def prometheus_overview() -> list[Panel]:
    """The fleet by PromQL."""
    worst = "sum by (machine, device, metric, level, task, job_user, incident) (peerwatch_verdict_active)"
    levels = [("count by (level) (peerwatch_verdict_active) or vector(0)", "{{level}}")]
    panels: list[Panel] = [
        (
            "Machines",
            "Machines that are read.",
            "stat",
            4,
            [("count(peerwatch_last_reading_timestamp_seconds)", "")],
            "none",
        ),
        ("Silent", "Machines of which no reading comes.", "stat", 4, [("sum(peerwatch_machines_silent)", "")], "none"),
        ("Blind", "1: too little is read to find a fault.", "stat", 4, [("max(peerwatch_blind)", "")], "none"),
        ("Open verdicts", "By level.", "timeseries", 12, levels, "none"),
        ("Verdicts", "What is open now.", "table", 24, [(worst, "")], ""),
    ]
    for table, column, title, unit in SPREAD:
        name = f"peerwatch_{table}_{column}"
        queries = [(f"quantile({share / 100:g}, {name})", words) for share, words in SHARES]
        panels.append((title, "Lowest 1 %, median and highest 1 % of all.", "timeseries", 6, queries, unit))
    for table, column, title, order, unit in WORST:
        function, way = ("topk", "max") if order == "TOP" else ("bottomk", "min")
        query = f"{function}(20, {way} by (machine) (peerwatch_{table}_{column}))"
        panels.append((title, "Now.", "table", 6, [(query, "")], unit))
    by_job = (
        "sum by (job_id, job_name, job_user) (peerwatch_gpu_power_watts * on (machine, gpu) "
        "group_left (job_id, job_name, job_user) peerwatch_job_info)"
    )
    events = 'sum by (source, code) (increase(peerwatch_events_total{severity="crit"}[1h])) > 0'
    panels.append(("Power by job", "", "timeseries", 12, [(by_job, "{{job_id}} {{job_name}} {{job_user}}")], "watt"))
    panels.append(("Critical events of an hour", "By source and code.", "table", 12, [(events, "")], ""))
    return panels


def prometheus_machine() -> list[Panel]:
    """One machine by PromQL."""
    of, rate = '{machine=~"$machine"}', "[$__rate_interval]"
    verdicts = f"peerwatch_verdict_active{of}"
    gpu, port = "{{gpu}}", "{{port}}"
    return [
        ("Verdicts", "What is open now.", "table", 12, [(verdicts, "")], ""),
        ("Jobs and GPUs", "", "table", 12, [(f"peerwatch_job_info{of}", ""), (f"peerwatch_gpu_info{of}", "")], ""),
        ("GPU clock", "", "timeseries", 8, [(f"peerwatch_gpu_sm_clock_hertz{of}", gpu)], "hertz"),
        ("GPU power", "", "timeseries", 8, [(f"peerwatch_gpu_power_watts{of}", gpu)], "watt"),
        ("GPU temperature", "", "timeseries", 8, [(f"peerwatch_gpu_temperature_celsius{of}", gpu)], "celsius"),
        ("Iteration", "", "timeseries", 8, [(f"peerwatch_nccl_iteration_seconds{of}", gpu)], "s"),
        ("Collectives in flight", "", "timeseries", 8, [(f"peerwatch_nccl_active_ratio{of}", gpu)], "percentunit"),
        ("Operations", "", "timeseries", 8, [(f"rate(peerwatch_nccl_operations_total{of}{rate})", gpu)], "ops"),
        ("RDMA sent", "", "timeseries", 8, [(f"rate(peerwatch_rdma_transmit_bytes_total{of}{rate})", port)], "Bps"),
        (
            "Pause frames",
            "",
            "timeseries",
            8,
            [(f"rate(peerwatch_rdma_pfc_receive_frames_total{of}{rate})", port)],
            "ops",
        ),
        ("CPU", "", "timeseries", 8, [(f"peerwatch_host_cpu_utilization_ratio{of}", "")], "percentunit"),
        (
            "Events",
            "",
            "timeseries",
            12,
            [(f"increase(peerwatch_events_total{of}{rate})", "{{source}} {{code}}")],
            "none",
        ),
        (
            "Sources",
            "1: the last reading worked.",
            "timeseries",
            12,
            [(f"peerwatch_source_success{of}", "{{source}}")],
            "",
        ),
    ]


def dashboard(title: str, uid: str, kind: str, panels: list[Panel], variable: str = "") -> dict[str, Any]:
    """The JSON model; `variable` is the query of the variable machine."""
    source = {"type": kind, "uid": "${source}"}
    variables: list[dict[str, Any]] = [
        {
            "name": "source",
            "label": kind,
            "type": "datasource",
            "query": kind,
            "hide": 0,
            "multi": False,
            "includeAll": False,
        }
    ]
    if variable:
        about = {"name": "machine", "label": "Machine", "type": "query", "datasource": source, "query": variable}
        variables.append(about | {"refresh": 2, "sort": 7, "multi": True, "includeAll": False, "hide": 0})
    return {
        "title": title,
        "uid": uid,
        "schemaVersion": 36,
        "version": 1,
        "editable": True,
        "refresh": "1m",
        "tags": ["peerwatch"],
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "",
        "links": [{"title": "Peerwatch", "type": "dashboards", "tags": ["peerwatch"], "asDropdown": True}],
        "annotations": {"list": []},
        "templating": {"list": variables},
        "panels": _placed(panels, source),
    }


def _placed(panels: list[Panel], source: dict[str, str]) -> list[dict[str, Any]]:
    placed, x, y = [], 0, 0
    for number, (title, words, kind, width, queries, unit) in enumerate(panels, 1):
        x, y = (0, y + 8) if x + width > 24 else (x, y)
        targets = [_target(chr(65 + at), source, *one, kind) for at, one in enumerate(queries)]
        placed.append(
            {"id": number, "type": kind, "title": title, "description": words, "datasource": source}
            | {"gridPos": {"h": 8, "w": width, "x": x, "y": y}, "options": {}, "targets": targets}
            | {"fieldConfig": {"defaults": {"unit": unit} if unit else {}, "overrides": []}}
        )
        x += width
    return placed


def _target(letter: str, source: dict[str, str], query: str, legend: str, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {"refId": letter, "datasource": source}
    if source["type"] == INFLUX:
        form = "time_series" if kind == "timeseries" else "table"
        return found | {"rawQuery": True, "query": query, "resultFormat": form} | ({"alias": legend} if legend else {})
    form = "time_series" if kind == "timeseries" else "table"
    return found | {"expr": query, "legendFormat": legend, "format": form, "instant": kind != "timeseries"}


def dashboards() -> dict[str, dict[str, Any]]:
    """File name -> model."""
    machines = "label_values(peerwatch_last_reading_timestamp_seconds, machine)"
    fleet, one = prometheus_overview(), prometheus_machine()
    return {
        "overview.json": dashboard("Peerwatch fleet", "peerwatch-fleet", INFLUX, influx_overview()),
        "prometheus-overview.json": dashboard(
            "Peerwatch fleet (Prometheus)", "peerwatch-prom-fleet", PROMETHEUS, fleet
        ),
        "prometheus-machine.json": dashboard(
            "Peerwatch machine (Prometheus)", "peerwatch-prom-machine", PROMETHEUS, one, machines
        ),
    }


if __name__ == "__main__":
    for name, model in dashboards().items():
        (FOLDER / name).write_text(json.dumps(model, indent=2, ensure_ascii=False) + "\n")
