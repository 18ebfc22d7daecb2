"""What a slowdown comes from, in words: a slow worker, a long last stage, unequal micro-batches, or a type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.whatif.slowdown import Slowdown

WORKER, LAST_STAGE, BALANCE, NO_CAUSE = "slow worker", "last stage", "unequal micro-batches", "no named cause"
MAJORITY = 0.5
"""A cause that explains this share of the loss is named; the study's bound for workers and the last stage."""
CORRELATED = 0.9
"""Correlation of forward and backward passes from which micro-batches count as unequal work; the study's bound."""
SMALL = 0.01
"""A waste below this is not explained."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause that was tried."""

    kind: str
    words: str
    share: float
    """Of the loss, that goes away with the cause; below 0 or above 1 where causes overlap."""
    gpu_hours: float
    is_named: bool
    """Whether the measure of this cause passes its bound."""


def causes(found: Slowdown) -> tuple[Cause, ...]:
    """The causes with a measure, the named ones first, then by share."""
    listed = []
    if found.worker_share is not None:
        ranks = ", ".join(map(str, found.slowest[:4])) + (", …" if len(found.slowest) > 4 else "")
        words = f"rank {ranks}" if len(found.slowest) == 1 else f"the slowest 3 % of workers (ranks {ranks})"
        listed.append((WORKER, words, found.worker_share, found.worker_share >= MAJORITY))
    if found.stage_share is not None:
        listed.append((LAST_STAGE, "the last stage", found.stage_share, found.stage_share >= MAJORITY))
    if found.balance_share is not None:
        unequal = found.correlation is not None and found.correlation >= CORRELATED and found.balance_share > 0
        listed.append((BALANCE, "unequal micro-batches", found.balance_share, unequal))
    # One worker a stage is both; then the stage is the simpler word.
    order = sorted(listed, key=lambda one: (not one[3], -one[2], one[0] == WORKER))
    return tuple(
        Cause(kind, words, share, min(max(0.0, share), 1.0) * found.gpu_hours_lost, is_named and found.waste >= SMALL)
        for kind, words, share, is_named in order
    )


def lost_by_cause(jobs: Sequence[Slowdown]) -> dict[str, float]:
    """Cause -> GPU-hours lost by the jobs of which it is the first named one; the largest first; they sum to all."""
    out: dict[str, float] = {}
    for job in jobs:
        named = [cause.kind for cause in causes(job) if cause.is_named]
        kind = named[0] if named else NO_CAUSE
        out[kind] = out.get(kind, 0.0) + job.gpu_hours_lost
    return dict(sorted(out.items(), key=lambda item: -item[1]))


def headline(found: Slowdown) -> str:
    """One sentence: what the job lost, and what explains most of it."""
    lost = f"{found.gpu_hours_lost:.3g} GPU-hours"
    if found.waste < SMALL:
        return f"lost less than 1 % ({lost}) to stragglers"
    named = [cause for cause in causes(found) if cause.is_named]
    return f"lost {found.waste:.0%} ({lost}) to stragglers: {_explained(named[0]) if named else _by_type(found)}"


def _explained(cause: Cause) -> str:
    verb = "explain" if cause.words.endswith(("es", ")")) else "explains"
    return f"{cause.words} {verb} {'all' if cause.share > 0.99 else f'{cause.share:.0%}'} of it"


def _by_type(found: Slowdown) -> str:
    kind, slowdown = max(found.by_type.items(), key=lambda item: item[1])
    return f"no worker, stage or imbalance explains half of it; {kind} alone costs {max(0.0, 1 - 1 / slowdown):.0%}"
