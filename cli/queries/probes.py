"""Probes: what they take of training processes (table `probe`), and where they see no calls (table `nccl`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.schema.contract import Store
from store.schema.time import SECOND

if TYPE_CHECKING:
    from detector.model.verdict import Verdict

COST = "probes: cost"
"""The name of each agent's row about all of its probes (agent/sources/probe.py)."""
_LIMITED = ("are suspended", "are sampled")
_PROBED, _WAITS, _TRACEPOINT = ("nccl.", "cuda."), "process.", "tracepoint "
"""Metrics that are counted by probes on calls, and at tracepoints; how a tracepoint's name begins in the table."""
REPORT_S = 150.0
"""Age in seconds up to which a row counts: agents repeat them each minute."""
REPLAYED_S = 30.0
"""Age in seconds up to which a communicator's row counts."""
REPLAYED_WORDS = (
    "CUDA graphs replay NCCL operations: calls are counted at the capture only, progress is that of transfers"
)
"""What replayed graphs mean for the reader."""


@dataclass(frozen=True, slots=True)
class ProbeShare:
    """The machine with the process that loses the most to probes, and where probes are suspended."""

    machine: str
    core_ratio: float
    """Share of a core that the probes take of that process."""
    words: str
    """What its agent says of cost, share and limit."""
    suspended: tuple[str, ...] = ()
    sampled: tuple[str, ...] = ()
    """Machines where some count in windows, and are estimated between them."""


def read_probe_share(store: Store, now: int) -> ProbeShare | None:
    """As of `now` (Unix ns); None where no agent reports it."""
    rows = store.read("probe", now - round(REPORT_S * SECOND), now).to_pylist()
    last = {(row["machine"], row["library"]): row for row in rows}
    costs = [row for row in last.values() if row["library"] == COST and row.get("core_ratio") is not None]
    if not costs:
        return None
    most = max(costs, key=lambda row: row["core_ratio"])
    places = [
        tuple(sorted({row["machine"] for row in last.values() if words in (row.get("reason") or "")}))
        for words in _LIMITED
    ]
    return ProbeShare(most["machine"], most["core_ratio"], most["reason"] or "", *places)


def read_uncounted(store: Store, verdict: Verdict) -> tuple[str, ...]:
    """Which probes on a verdict's machine were suspended or sampled when it was reached, and why: a sentence each.

    Empty for a verdict that rests on no count of calls or of waits.
    """
    waits = verdict.metric.startswith(_WAITS)
    if verdict.kind != "progress" and not waits and not verdict.metric.startswith(_PROBED):
        return ()
    rows = store.read("probe", verdict.time - round(REPORT_S * SECOND), verdict.time).to_pylist()
    last = {row["library"]: row.get("reason") or "" for row in rows if row["machine"] == verdict.machine}
    return tuple(
        f"{library} on {verdict.machine}: {why}"
        for library, why in last.items()
        if library != COST and library.startswith(_TRACEPOINT) == waits and any(words in why for words in _LIMITED)
    )


def read_graph_machines(store: Store, now: int) -> tuple[str, ...]:
    """Machines where CUDA graphs replay NCCL operations at `now` (Unix ns), by the newest row of each communicator."""
    rows = store.read("nccl", now - round(REPLAYED_S * SECOND), now, ("replayed",)).to_pylist()
    last = {(row["machine"], row["gpu"], row["slot"]): row.get("replayed") for row in rows}
    return tuple(sorted({machine for (machine, _, _), replayed in last.items() if replayed}))
