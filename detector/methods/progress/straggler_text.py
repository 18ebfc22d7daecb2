"""Stragglers in words: which device, how many ranks wait for it, how long, and the likely cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from detector.methods.progress.live_ranks import LiveRanks
from detector.methods.progress.slowdown import Suspect
from detector.methods.progress.straggler import Straggler
from detector.methods.progress.wait_signals import SENDING
from detector.model.text import plural
from detector.topology.rank_table import RankTable


def straggler_text(name: str, straggler: Straggler, ranks: RankTable, live: LiveRanks) -> str:
    """`m3 GPU 0 is the straggler: 15 ranks wait 0.2 s per iteration for it. It is last in 97 % of the samples.`"""
    own = live.process == straggler.process
    peers = len(np.unique(live.process[np.isin(live.comm, live.comm[own])])) - 1
    iteration = ranks.iteration[live.series[own]]
    known = iteration[np.isfinite(iteration)]
    share = straggler.waiting
    wait = f"{share * known.max():.2g} s per iteration" if len(known) else f"{100 * share:.0f} % of the time"
    waiting = f"{plural(peers, 'rank')} {'waits' if peers == 1 else 'wait'} {wait} for it"
    worst = f"{100 * straggler.share:.0f} % of the samples"
    if straggler.signal == SENDING:
        slowest = f"It is the slowest in {worst}. Likely its network link."
        return f"{name} sends more slowly than its peers: {waiting}. {slowest}"
    graphs = " CUDA graphs replay its operations." if (ranks.replayed[live.series[own]] == 1).any() else ""
    if straggler.cause != straggler.process:
        last = f"Its machine is last in {worst}, and of its ranks this one enters operations, or sends, late."
        return f"{name} is the straggler: {waiting}. {last}{graphs}"
    return f"{name} is the straggler: {waiting}. It is last in {worst}.{graphs}"


def late_by_little_text(name: str, shift: float, seconds: float) -> str:
    """A process that its peers wait for by little, for long; `shift` is a share of time."""
    return f"{name} is late by {100 * shift:.0f} % of the time more than before, for {seconds:.0f} s: its peers wait."


def slowdown_verdict_text(name: str, support: str) -> str:
    """A process that makes iterations longer, found by the times of operations alone."""
    return f"{name} makes iterations longer. {support[0].upper()}{support[1:]}."


def slowdown_sentences(
    suspects: Sequence[Suspect], named: Mapping[int, tuple[str, str, str]]
) -> dict[tuple[str, str], str]:
    """(task, machine) of each suspect -> all suspects of its task, in words.

    `named` is the name, the task and the machine of each suspect's process.
    """
    of_task: dict[str, list[str]] = {}
    for suspect in suspects:
        name, task, _ = named[suspect.process]
        what = "comes late to its collectives" if suspect.kind == "late" else "communicates slowly"
        of_task.setdefault(task, []).append(f"{name} {what} ({suspect.windows:.1f} windows)")
    places = [named[suspect.process][1:] for suspect in suspects]
    return {
        (task, machine): f"by the times of its operations {', then '.join(of_task[task])}" for task, machine in places
    }
