"""Alerts as JSON in the forms that servers take: our own, Slack's and Alertmanager's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

from detector.alerts.alert import BLIND, Alert
from detector.alerts.text import details
from detector.model.verdict import Level

SEVERITY: dict[Level, str] = {"ok": "warning", "note": "info", "warn": "warning", "crit": "critical"}
"""Level -> severity label of Alertmanager; a test is a warning, a note for information."""

_JOB_LABELS = ("job_id", "job_name", "job_user", "namespace", "pod")
"""Columns of the scheduler's job by which alerts can be routed."""


def _json(alert: Alert, _: int, __: int) -> object:
    return alert.as_json()


def _slack(alert: Alert, _: int, __: int) -> object:
    """One message. https://api.slack.com/messaging/webhooks"""
    lines = [alert.headline, *(details(alert) or [f"incident {alert.incident}"])]
    return {"text": f"*{alert.verdict.level.upper()}* " + "\n".join(map(_escaped, lines))}


def _escaped(text: str) -> str:
    """One line without mention, link or channel syntax of Slack."""
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _alertmanager(alert: Alert, now: int, holds: int) -> object:
    """Alerts; labels are their identity. https://prometheus.io/docs/alerting/latest/alerts_api/

    Severity is a label, since routes match labels: the post of a critical alert also ends the warning.
    """
    severity = SEVERITY[alert.worst]
    ends = holds if alert.end is None or alert.event in ("note", "test") else alert.end
    posted = [_one(alert, severity, ends)]
    if severity == "critical" and alert.event in ("changed", "over"):
        posted.append(_one(alert, "warning", min(ends, now)))
    return posted


def _one(alert: Alert, severity: str, ends: int) -> object:
    verdict, brief = alert.verdict, alert.brief
    if alert.event == "test":
        name, about = "PeerwatchTest", {"machine": verdict.machine}
    elif verdict.kind == BLIND:
        name, about = "PeerwatchBlind", {}
    else:
        name, about = "PeerwatchFaultyMachine", {"machine": verdict.machine, "task": verdict.task}
    about |= {name: value for name, value in (alert.job.as_json() if alert.job else {}).items() if name in _JOB_LABELS}
    labels = {"alertname": name, **about, "incident": alert.incident, "severity": severity}
    notes = {
        "summary": alert.headline,
        "description": "\n".join(details(alert)),
        "finding": alert.finding.message,
        "likely": brief.likely,
        "next": brief.advice,
        "device": verdict.device or "",
        **brief.hardware,
        "metric": verdict.metric,
        "score": f"{alert.finding.score:.2f}",
    }
    notes = {key: value for key, value in notes.items() if value}
    return {"labels": labels, "annotations": notes, "startsAt": _rfc3339(alert.start), "endsAt": _rfc3339(ends)}


def _rfc3339(time: int) -> str:
    return datetime.fromtimestamp(time // 10**9, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


FORMS: dict[str, Callable[[Alert, int, int], object]] = {"json": _json, "slack": _slack, "alertmanager": _alertmanager}
"""By the name of a template: the body, given the alert, the time now, and until when it holds if nothing more is said.

Times are Unix ns. A test is firing, and ends when it holds no more.
"""
