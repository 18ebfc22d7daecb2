"""GPU-hours that stragglers cost the jobs of a store, as a self-contained HTML page: by cause, day, job and worker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from cli.views.analysis.losses import by_cause, by_day, sentence, share
from cli.views.analysis.stragglers_html import bars, heat_map
from cli.views.html_document import document

if TYPE_CHECKING:
    from analysis.whatif.fleet import JobLoss

_JOBS, _RANKS = 20, 8
_FOOTER = (
    "Replay of what communicators had in flight, in windows of 4 s: own time has the mean length, transfers the median "
    "(arXiv 2505.05713). Of more than two hours, two minutes of each stand for the hour."
)


def page(jobs: Sequence[JobLoss]) -> str:
    """The document; names from the store are escaped."""
    days = by_day(jobs)
    day = bars("GPU-hours lost by day", [(_date(at), hours, f"{hours:.3g}") for at, hours in days.items()])
    parts = [
        f"<header><h1>{escape(sentence(jobs))}</h1></header>",
        f"<section><h2>GPU-hours lost by cause</h2><figure>{_causes(jobs)}</figure></section>",
        f"<section><h2>GPU-hours lost by day (UTC)</h2><figure>{day}</figure></section>" * (len(days) > 1),
        *map(_job, jobs[:_JOBS]),
    ]
    if len(jobs) > _JOBS:
        parts.append(f"<p>{len(jobs) - _JOBS} jobs that lost less are not drawn.</p>")
    return document("What stragglers cost", "\n".join(parts), _FOOTER)


def _job(job: JobLoss) -> str:
    """One job: what it lost, to what, and its workers."""
    lost = f"{job.name}: lost {share(job.lost, job.gpu_hours):.1%} ({job.lost:.3g} of {job.gpu_hours:.3g} GPU-hours)"
    where = f"{len(job.machines)} machines, {job.gpus} GPUs, {job.looks} look{'s' * (job.looks != 1)}"
    ranks = sorted(job.by_rank.items(), key=lambda item: -item[1])[:_RANKS]
    slow = ", ".join(f"{name} {hours:.3g}" for name, hours in ranks)
    workers = job.workers()
    drawn, full = heat_map(workers, [str(rank) for rank in range(workers.shape[1])])
    words = "a row is a pipeline stage, a column a rank within the stage" if job.stage_ranks else "no pipeline is known"
    return (
        f"<section><h1>{escape(lost)}</h1><p>{escape(where)}</p><figure>{_causes([job])}</figure>"
        + f"<p>Slow workers, GPU-hours: {escape(slow)}</p>" * bool(slow)
        + f"<h2>Workers</h2><figure>{drawn}</figure>"
        f'<p class="soft">Slowdown with this worker as it was and all others ideal: {words}. '
        f"Full colour: slowdown {full:.2f}.</p></section>"
    )


def _causes(jobs: Sequence[JobLoss]) -> str:
    rows = [(kind, hours, f"{hours:.3g}") for kind, hours in by_cause(jobs).items()]
    return bars("GPU-hours lost by cause", rows)


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
