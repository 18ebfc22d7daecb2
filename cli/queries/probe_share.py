"""What probes take of training processes, from the agents' own rows in the table `probe`."""

from __future__ import annotations

from dataclasses import dataclass

from store.schema.contract import Store
from store.schema.time import SECOND

COST = "probes: cost"
"""The name of each agent's row about all of its probes (agent/sources/probe.py)."""
REPORT_S = 150.0
"""Age in seconds up to which a row counts: agents repeat them each minute."""


@dataclass(frozen=True, slots=True)
class ProbeShare:
    """The machine with the process that loses the most to probes, and where probes are suspended."""

    machine: str
    core_ratio: float
    """Share of a core that the probes take of that process."""
    words: str
    """What its agent says of cost, share and limit."""
    suspended: tuple[str, ...] = ()


def read_probe_share(store: Store, now: int) -> ProbeShare | None:
    """As of `now` (Unix ns); None where no agent reports it."""
    rows = store.read("probe", now - round(REPORT_S * SECOND), now).to_pylist()
    last = {(row["machine"], row["library"]): row for row in rows}
    costs = [row for row in last.values() if row["library"] == COST and row.get("core_ratio") is not None]
    if not costs:
        return None
    most = max(costs, key=lambda row: row["core_ratio"])
    suspended = {row["machine"] for row in last.values() if "are suspended" in (row.get("reason") or "")}
    return ProbeShare(most["machine"], most["core_ratio"], most["reason"] or "", tuple(sorted(suspended)))
