"""The analysis of communication operations as text and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cli.terminal import console, say
from cli.views.columns import show_table

if TYPE_CHECKING:
    from analysis.operators.analysis import Analysis, Summary
    from analysis.operators.candidates import Candidate
    from analysis.traces.reading import Logs

_ROWS = 12
_WORDS = {
    "gpu": "{} comes late to its operations",
    "machine": "the ranks of machine {} come late to their operations",
    "link": "the link of {} is slow",
    "machine link": "the network of machine {} is slow",
    "switch": "switch {} is slow",
}


def as_json(logs: Logs, found: Analysis) -> dict[str, Any]:
    """The object of `peerwatch operators --json`; seconds and bytes, null where not known."""
    table = logs.operations
    return {
        "files": logs.files,
        "ranks": list(table.ranks),
        "operations": len(table.rank),
        "communication": [_summary(one) for one in found.summaries],
        "iterations": {
            "count": len(found.iteration_seconds),
            "usual_seconds": _number(found.usual_seconds),
            "seconds": [round(float(one), 6) for one in found.iteration_seconds],
            "irregular": [int(at) for at in found.irregular.nonzero()[0]],
        },
        "abnormal_operations": found.abnormal,
        "candidates": [_candidate(one) for one in found.candidates],
    }


def show(logs: Logs, found: Analysis) -> None:
    """Print it."""
    table = logs.operations
    counts = (len(table.rank), "operation"), (len(table.ranks), "rank"), (len(logs.files), "file")
    many, ranks, files = (f"{count:,} {word}{'s' * (count != 1)}" for count, word in counts)
    say(f"{many} of {ranks} in {files}")
    rows = [_row(one) for one in found.summaries[:_ROWS]]
    if rows:
        heads = ("communicator", "operation", "ranks", "count", "bytes", "median s", "total s", "GB/s")
        show_table(console(), heads, rows, ("operation", "total s", "median s", "GB/s"), ("operation",))
    if len(found.summaries) > _ROWS:
        say(f"… and {len(found.summaries) - _ROWS} more (--json has all)")
    say(_iterations(found))
    for number, candidate in enumerate(found.candidates, 1):
        say(f"{number}. {in_words(candidate)}")
        say(f"   evidence: {'; '.join(candidate.operations)}")


def _row(one: Summary) -> tuple[str, ...]:
    figures = (one.median_bytes, one.median_seconds, one.seconds, one.gigabytes_per_second)
    return one.communicator, one.kind, str(one.ranks), str(one.operations), *map(_shown, figures)


def in_words(one: Candidate) -> str:
    """A candidate in a sentence."""
    where = f" ({one.machine})" if one.machine and one.machine != one.device else ""
    return (
        f"{_WORDS[one.kind].format(one.device)}{where}: explains {one.share:.0%} of the time lost, "
        f"{one.seconds:.3g} s over all ranks an irregular iteration, in {one.iterations} of them"
    )


def _iterations(found: Analysis) -> str:
    count, wrong = len(found.iteration_seconds), int(found.irregular.sum())
    if not count:
        return "No iterations: fewer than four whole ones, or operations that do not come again in order."
    usual = f"{count} iterations, usually {found.usual_seconds:.4g} s"
    if not wrong:
        return f"{usual}; none is irregular."
    if not found.candidates:
        return f"{usual}; {wrong} are irregular, and no single device explains them."
    worst = float(found.iteration_seconds.max())
    return f"{usual}; {wrong} are irregular, up to {worst:.4g} s. Likeliest causes:"


def _summary(one: Summary) -> dict[str, Any]:
    return {
        "communicator": one.communicator,
        "kind": one.kind,
        "ranks": one.ranks,
        "operations": one.operations,
        "median_bytes": _number(one.median_bytes),
        "median_seconds": _number(one.median_seconds),
        "seconds": _number(one.seconds),
        "gigabytes_per_second": _number(one.gigabytes_per_second),
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "device": one.device,
        "machine": one.machine or None,
        "share": round(one.share, 4),
        "seconds": _number(one.seconds),
        "irregular_iterations": one.iterations,
        "operations": list(one.operations),
        "message": in_words(one),
    }


def _number(value: float) -> float | None:
    return round(value, 9) if math.isfinite(value) else None


def _shown(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "-"
