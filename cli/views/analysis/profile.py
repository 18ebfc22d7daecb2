"""The profile of a window as text and as JSON: functions and ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli.terminal import console, say
from cli.views.columns import show_table

if TYPE_CHECKING:
    from analysis.profile.collection import Collected
    from analysis.profile.patterns import Abnormal
    from analysis.profile.samples import Samples

_ROWS = 24


def as_json(samples: Samples, found: list[Abnormal], taken: Collected | None) -> dict[str, Any]:
    """The object of `peerwatch profile --json`; β, μ, σ and Δ are shares from 0 to 1."""
    listed = [
        {
            "function": one.function,
            "class": one.kind,
            "rank": one.rank,
            "beta": round(one.beta, 4),
            "mu": round(one.mu, 4),
            "sigma": round(one.sigma, 4),
            "delta": round(one.delta, 4),
            "usual_beta": round(one.usual, 4),
        }
        for one in found
    ]
    cost = {"cpu_seconds": round(taken.cpu_seconds, 3), "failed": taken.failed} if taken else None
    counts = {rank: len(seen) for rank, seen in zip(samples.ranks, samples.seen, strict=True)}
    return {"seconds": samples.seconds, "samples": counts, "abnormal": listed, "cost": cost}


def show(samples: Samples, found: list[Abnormal], taken: Collected | None) -> None:
    """Print it."""
    from analysis.profile.patterns import LEAST_RANKS

    total = sum(len(seen) for seen in samples.seen)
    say(f"{total:,} samples of {len(samples.ranks)} processes")
    if taken:
        share = taken.cpu_seconds / taken.seconds / max(len(samples.ranks), 1)
        say(f"sampling took {share:.1%} of a core a process; no process was stopped for it")
    if len(samples.ranks) < LEAST_RANKS:
        say(f"Ranks are not compared with each other: that takes {LEAST_RANKS}.")
    if not found:
        say("No function behaves otherwise in one rank than in the others.")
        return
    rows = []
    for one in found[:_ROWS]:
        shares = f"{one.beta:.1%}", f"{one.usual:.1%}", f"{one.delta:.0%}"
        rows.append((one.function, one.rank, *shares, one.kind, f"{one.mu:.2f}", f"{one.sigma:.2f}"))
    heads = ("function", "rank", "share", "usually", "peers that differ", "class", "μ", "σ")
    show_table(console(), heads, rows, heads[1:], ("rank", "class"))
    if len(found) > _ROWS:
        say(f"… and {len(found) - _ROWS} more (--json has all)")
