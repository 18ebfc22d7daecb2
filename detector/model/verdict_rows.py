"""Verdicts as rows of the store, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from detector.model.job import job_from
from detector.model.verdict import RANK, Level, Verdict
from store.schema.sample import Batch, Sample, Value

NOTE = "note"
"""Code of the event that records a note: a deviation that slows no task."""


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    """A verdict out of a row of the store, which may lack values."""
    task, machine, kind, metric, message = (
        str(row.get(name) or "") for name in ("task", "machine", "kind", "metric", "message")
    )
    since, score = since_of(row), float(row.get("score") or 0)
    level: Level = row["level"] if row.get("level") in RANK else "warn"
    found = Verdict(row["time"], task, machine, row.get("device"), kind, metric, score, since, level, message)
    return replace(found, job=job_from(row))


def since_of(row: Mapping[str, Any]) -> int:
    """When the fault of such a row began, Unix ns; its own time where it says nothing that can be."""
    return min(max(int(row.get("since") or row["time"]), 0), int(row["time"]))


def batch_of(verdict: Verdict) -> Batch:
    """A verdict as the store keeps it."""
    values: dict[str, Value] = {
        "task": verdict.task,
        "device": verdict.device,
        "kind": verdict.kind,
        "metric": verdict.metric,
        "score": verdict.score,
        "since": verdict.since,
        "level": verdict.level,
        "message": verdict.message,
    }
    values |= verdict.job.as_json() if verdict.job else {}
    return Batch(verdict.machine, verdict.time, (Sample("verdict", values),))
