"""Behaviour of ranks as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cli.terminal import console, say
from cli.views.columns import show_table

if TYPE_CHECKING:
    from analysis.behaviour.comparison import Finding
    from analysis.behaviour.measures import Behaviour

_QUANTILES = (5, 25, 50, 75, 95)
_RANKS = 16


def as_json(found: Behaviour, findings: list[Finding]) -> dict[str, Any]:
    """The object of `peerwatch behaviour --json`: quantiles of each rank and measure, in the measure's unit."""
    from analysis.behaviour.measures import measure_of

    measures = [
        {
            "measure": name,
            "unit": measure_of(name).unit,
            "ranks": {rank: _distribution(values) for rank, values in by_rank.items()},
        }
        for name, by_rank in found.values.items()
    ]
    listed = [_finding(one) for one in findings]
    return {"size": found.size, "program": found.program, "measures": measures, "findings": listed}


def show(found: Behaviour, findings: list[Finding], compared: bool) -> None:
    """Print it."""
    from analysis.behaviour.comparison import LEAST_PEERS
    from analysis.behaviour.measures import measure_of

    rows = []
    for name, by_rank in found.values.items():
        middles = {rank: float(np.median(values)) for rank, values in by_rank.items()}
        pooled = np.percentile(np.concatenate(list(by_rank.values())), _QUANTILES)
        low, high = min(middles, key=middles.__getitem__), max(middles, key=middles.__getitem__)
        ends = (f"{middles[low]:.4g} ({low})", f"{middles[high]:.4g} ({high})")
        rows.append((name, measure_of(name).unit, str(len(by_rank)), *(f"{value:.4g}" for value in pooled), *ends))
    heads = ("measure", "unit", "ranks", *(f"{at} %" for at in _QUANTILES), "lowest rank", "highest rank")
    first = ("unit", "50 %", "5 %", "95 %", "lowest rank", "highest rank")
    show_table(console(), heads, rows, first, ("unit", "lowest rank", "highest rank"))
    for one in findings:
        say(in_words(one))
    few = len(found.ranks) < LEAST_PEERS
    if few:
        say(f"Ranks are not compared with each other: that takes {LEAST_PEERS}.")
    against = ["peers"] * (not few) + ["the healthy run"] * compared
    if against and not findings:
        say(f"No measure is worse than that of {' and '.join(against)}.")


def in_words(one: Finding) -> str:
    """A finding in a sentence."""
    from analysis.behaviour.measures import measure_of

    measure, _, group = one.measure.partition(" of ")
    about = measure_of(measure)
    what = about.words + (f" of {group}" if group else "")
    some = ", ".join(one.ranks[:_RANKS]) + (f" and {len(one.ranks) - _RANKS} more" if len(one.ranks) > _RANKS else "")
    ranks = "all ranks" if one.everywhere else some
    usual = "in the healthy run" if one.against == "history" else "for its peers"
    moved = f"{one.now:.4g} {about.unit}, {one.before:.4g} {usual} (Wasserstein distance {one.distance:.3g})"
    return f"{what} of {ranks} moved to {moved}: {one.cause}"


def _distribution(values: Any) -> dict[str, Any]:
    quantiles = {
        f"p{at}": float(f"{value:.6g}") for at, value in zip(_QUANTILES, np.percentile(values, _QUANTILES), strict=True)
    }
    return {"count": len(values), "mean": float(f"{values.mean():.6g}"), **quantiles}


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "measure": one.measure,
        "against": one.against,
        "ranks": list(one.ranks),
        "all_ranks": one.everywhere,
        "wasserstein": float(f"{one.distance:.6g}"),
        "before": float(f"{one.before:.6g}"),
        "now": float(f"{one.now:.6g}"),
        "cause": one.cause,
        "message": in_words(one),
    }
