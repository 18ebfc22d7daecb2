"""GPU-hours that stragglers cost the jobs of a store, on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.whatif.fleet import JobLoss

_RANKS = 3


def show(screen: Console, jobs: Sequence[JobLoss]) -> None:
    """Print a sentence on all jobs, and a row for each, the one that lost most first."""
    from rich.table import Table
    from rich.text import Text

    parts = ", ".join(f"{kind} {hours:.3g}" for kind, hours in by_cause(jobs).items())
    screen.print(Text(f"{sentence(jobs)}: {parts}", style="bold"))
    table = Table("job", "machines", "GPUs", "GPU-hours", "lost", "share", "mostly by", box=None, pad_edge=False)
    for column in table.columns[1:6]:
        column.justify = "right"
    for job in jobs:
        figures = (f"{job.gpu_hours:.3g}", f"{job.lost:.3g}", f"{share(job.lost, job.gpu_hours):.1%}")
        table.add_row(Text(job.name), str(len(job.machines)), str(job.gpus), *figures, Text(_words(job)))
    screen.print(table)


def sentence(jobs: Sequence[JobLoss]) -> str:
    """What all jobs lost."""
    spent, lost = sum(job.gpu_hours for job in jobs), sum(job.lost for job in jobs)
    noun = "job" if len(jobs) == 1 else "jobs"
    return f"{len(jobs)} {noun} lost {share(lost, spent):.1%} ({lost:.3g} of {spent:.3g} GPU-hours) to stragglers"


def _words(job: JobLoss) -> str:
    """The first cause, with the ranks where it is slow workers."""
    kind = max(job.by_cause, key=lambda name: job.by_cause[name])
    ranks = sorted(job.by_rank, key=lambda name: -job.by_rank[name])[:_RANKS]
    return f"{kind}: {', '.join(ranks)}" if kind == "slow worker" and ranks else kind


def share(lost: float, spent: float) -> float:
    """What was lost of what was spent; 0 where nothing was."""
    return lost / spent if spent else 0.0


def by_cause(jobs: Sequence[JobLoss]) -> dict[str, float]:
    """GPU-hours by cause over all jobs, the largest first."""
    out: dict[str, float] = {}
    for job in jobs:
        for kind, hours in job.by_cause.items():
            out[kind] = out.get(kind, 0.0) + hours
    return dict(sorted(out.items(), key=lambda item: -item[1]))


def by_day(jobs: Sequence[JobLoss]) -> dict[int, float]:
    """GPU-hours lost over all jobs by the day since 1970, the first day first."""
    out: dict[int, float] = {}
    for job in jobs:
        for day, hours in job.by_day.items():
            out[day] = out.get(day, 0.0) + hours
    return dict(sorted(out.items()))


def as_json(jobs: Sequence[JobLoss]) -> dict[str, Any]:
    """The object of `report stragglers STORE --json`: GPU-hours, by cause, job and rank."""
    return {
        "gpu_hours": sum(job.gpu_hours for job in jobs),
        "gpu_hours_lost": sum(job.lost for job in jobs),
        "gpu_hours_lost_by_cause": by_cause(jobs),
        "gpu_hours_lost_by_day": {str(np.datetime64(day, "D")): hours for day, hours in by_day(jobs).items()},
        "jobs": [
            {
                "name": job.name,
                "machines": sorted(job.machines),
                "gpus": job.gpus,
                "looks": job.looks,
                "gpu_hours": job.gpu_hours,
                "gpu_hours_lost": job.lost,
                "waste": share(job.lost, job.gpu_hours),
                "gpu_hours_lost_by_cause": dict(job.by_cause),
                "gpu_hours_lost_by_rank": dict(job.by_rank),
                "ranks_per_stage": job.stage_ranks or None,
                "slowdown_by_worker": [[None if np.isnan(one) else one for one in row] for row in job.workers()],
            }
            for job in jobs
        ],
    }
