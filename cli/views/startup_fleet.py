"""Starts of all jobs of the fleet over some days: slowest machine against median, last start against usual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cli import time_format
from cli.queries.startup_phases import PHASES
from cli.views.columns import show_table
from store.schema.time import SECOND

if TYPE_CHECKING:
    from rich.console import Console

    from cli.queries.startup_trend import JobStarts


def as_json(jobs: Sequence[JobStarts]) -> dict[str, Any]:
    """The object of `report startup --days N --json`; seconds, null where unknown."""
    return {
        "jobs": [
            job.trend().as_json()
            | {
                "starts": [
                    {
                        "start_time_seconds": float(run.start.min()),
                        "ready_seconds": _known(_most(run.ready)),
                        "median_ready_seconds": _known(_median(run.ready)),
                        "slowest_machine": str(run.machines[0]),
                        "median": {name: _known(value) for name, value in zip(PHASES, run.median(), strict=True)},
                    }
                    for run in job.runs
                ]
            }
            for job in jobs
        ]
    }


def show(screen: Console, jobs: Sequence[JobStarts]) -> None:
    """Print a row a job, the last start first."""
    rows = []
    for job in jobs:
        trend, last = job.trend(), job.runs[-1]
        regression = "slower than usual" if trend.slower else ""
        grown = f"{PHASES[trend.phase]}, by {trend.grown:.1f} s" if trend.slower and trend.phase else ""
        when = time_format.shown(round(float(last.start.min()) * SECOND))
        figures = (_short(trend.ready), _short(_median(last.ready)), _short(trend.usual))
        name = trend.task or "unnamed"
        rows.append(
            (name, str(trend.gpus), str(len(job.runs)), when, *figures, str(last.machines[0]), regression, grown)
        )
    heads = (
        "job",
        "GPUs",
        "starts",
        "last start (UTC)",
        "ready",
        "median machine",
        "usually",
        "slowest",
        "",
        "most grew",
    )
    show_table(screen, heads, rows, heads[1:7], ("slowest", "most grew", "median machine", "starts"))


def _most(values: Any) -> float:
    return float(np.nanmax(values)) if np.isfinite(values).any() else float("nan")


def _median(values: Any) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")


def _known(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None


def _short(value: float) -> str:
    return f"{value:.1f} s" if np.isfinite(value) else "–"
