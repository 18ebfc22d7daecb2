"""What stragglers cost, on the terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.whatif.causes import causes, headline, lost_by_cause
from analysis.whatif.slowdown import Slowdown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SIMULATION_LIMIT = 1.05
"""Recorded over replayed time above which the study leaves a job out: the replay does not show it well enough."""
_ROWS = 8
_WIDTH = 24

Jobs = Sequence[tuple[str, Slowdown]]
"""Name and measures of each trace."""


def total(jobs: Jobs) -> str:
    """One sentence on all traces together."""
    spent = sum(found.gpu_hours for _, found in jobs)
    lost = sum(found.gpu_hours_lost for _, found in jobs)
    share = lost / spent if spent else 0.0
    by_cause = lost_by_cause([found for _, found in jobs])
    parts = ", ".join(f"{kind} {hours:.3g}" for kind, hours in by_cause.items())
    return f"{len(jobs)} traces lost {share:.1%} ({lost:.3g} of {spent:.3g} GPU-hours) to stragglers: {parts}"


def show(screen: Console, jobs: Jobs) -> None:
    """Print each job: a sentence, its measures, causes and slowest parts; more jobs also with their sum."""
    from rich.text import Text

    for name, found in jobs:
        screen.print(Text(f"{_subject(name, jobs)} {headline(found)}", style="bold"))
        for line in measures(found):
            screen.print(Text(f"  {line}"))
        if found.waste > 0:
            screen.print(_causes_table(found))
            screen.print(_parts_table(found))
        for note in warnings(found):
            screen.print(Text(f"  note: {note}", style="yellow"))
    if len(jobs) > 1:
        screen.print(Text(total(jobs), style="bold"))


def measures(found: Slowdown) -> list[str]:
    """The figures below the headline, a line each."""
    mean, best = found.replayed.mean(), found.ideal.mean()
    per_step = found.replayed / found.ideal
    lines = [
        f"slowdown S = {found.slowdown:.3f}: {mean:.4g} s per step, {best:.4g} s without stragglers; "
        f"{len(found.steps)} steps, {found.gpus} GPUs, {found.gpu_hours:.3g} GPU-hours"
    ]
    if len(per_step) > 1:
        low, mid, high = np.percentile(per_step, [10, 50, 90])
        lines.append(f"by step: median {mid:.3f}, 10th to 90th percentile {low:.3f} to {high:.3f}")
    if found.correlation is not None:
        lines.append(f"correlation of forward and backward passes within a worker and step: {found.correlation:.2f}")
    return lines


def warnings(found: Slowdown) -> list[str]:
    """What limits the figures."""
    out = list(found.notes)
    if found.delay > SIMULATION_LIMIT:
        out.append(
            f"the recorded steps are {found.delay - 1:.0%} longer than their replay: time on the host or operations "
            "that the trace lacks; above 5 % the study leaves a job out"
        )
    if not found.meta.gpus:
        out.append(f"GPUs are the ranks in the trace ({found.gpus}); --meta FILE gives the job's world_size")
    return out


def _subject(name: str, jobs: Jobs) -> str:
    return "this job" if len(jobs) == 1 else f"{name}:"


def _causes_table(found: Slowdown) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("cause", "explains", "GPU-hours", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for cause in causes(found):
        style = "bold red" if cause.is_named else ""
        table.add_row(Text(cause.words), f"{cause.share:.0%}", f"{cause.gpu_hours:.3g}", style=style)
    return table


def _parts_table(found: Slowdown) -> Table:
    """The slowdown with one part alone as it was, the largest first."""
    from rich.table import Table
    from rich.text import Text

    table = Table("as it was, all else ideal", "slowdown", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    rows = parts(found)
    worst = max(slowdown - 1 for _, slowdown in rows)
    for name, slowdown in rows[:_ROWS]:
        length = round(_WIDTH * max(0.0, slowdown - 1) / worst) if worst > 0 else 0
        table.add_row(Text(name), f"{slowdown:.3f}", Text("█" * length, "yellow"))
    return table


def parts(found: Slowdown) -> list[tuple[str, float]]:
    """Name and slowdown of every type, stage and data rank, the largest slowdown first."""
    named = list(found.by_type.items())
    named += [(f"stage {at}", value) for at, value in found.by_stage.items() if len(found.by_stage) > 1]
    named += [(f"data rank {at}", value) for at, value in found.by_dp_rank.items() if len(found.by_dp_rank) > 1]
    return sorted(named, key=lambda one: -one[1])


def as_json(jobs: Jobs) -> dict[str, Any]:
    """The object of `report stragglers --json`: seconds, shares and GPU-hours; null where unknown."""
    return {
        "gpu_hours": sum(found.gpu_hours for _, found in jobs),
        "gpu_hours_lost": sum(found.gpu_hours_lost for _, found in jobs),
        "gpu_hours_lost_by_cause": lost_by_cause([found for _, found in jobs]),
        "jobs": [_job(name, found) for name, found in jobs],
    }


def _job(name: str, found: Slowdown) -> dict[str, Any]:
    per_step = zip(found.steps.tolist(), found.recorded, found.replayed, found.ideal, strict=True)
    return {
        "name": found.meta.name or name,
        "headline": headline(found),
        "slowdown": found.slowdown,
        "waste": found.waste,
        "delay_ratio": found.delay,
        "gpus": found.gpus,
        "gpu_hours": found.gpu_hours,
        "gpu_hours_lost": found.gpu_hours_lost,
        "m_worker": found.worker_share,
        "slowest_ranks": list(found.slowest),
        "m_last_stage": found.stage_share,
        "m_balance": found.balance_share,
        "forward_backward_correlation": found.correlation,
        "causes": [
            {"kind": one.kind, "explains": one.share, "gpu_hours": one.gpu_hours, "named": one.is_named}
            for one in causes(found)
        ],
        "by_dp_rank": {str(at): value for at, value in found.by_dp_rank.items()},
        "by_stage": {str(at): value for at, value in found.by_stage.items()},
        "by_type": found.by_type,
        "by_worker": [[None if math.isnan(cell) else cell for cell in row] for row in found.by_worker.tolist()],
        "steps": [
            {
                "step": step,
                "recorded_seconds": float(recorded),
                "replayed_seconds": float(replayed),
                "ideal_seconds": float(ideal),
                "slowdown": float(replayed / ideal),
            }
            for step, recorded, replayed, ideal in per_step
        ],
        "notes": warnings(found),
    }
