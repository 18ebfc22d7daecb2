"""A report on a hang: the state of the ranks, their stacks, and what NCCL's RAS says of the task."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from detector.explain.rank_snapshot import Members, RankSnapshot
from detector.explain.ras_findings import ras_findings
from detector.explain.stack_groups import StackGroup, stack_groups
from detector.model.verdict import Verdict
from detector.timeseries.rows import rows_of
from store.schema.contract import ReadableStore
from store.schema.time import SECOND

_KINDS = ("progress", "evidence")
"""Methods with verdicts that may be about a task in a hang."""
_BACK_NS = 10 * SECOND
"""How far before the verdict the last rows of its ranks may lie."""


@dataclass(frozen=True, slots=True)
class HangReport:
    """All of it; empty where nothing hangs."""

    members: tuple[Members, ...] = ()
    """The ranks in the communicators of the verdict's device, at the time of the verdict."""
    stacks: tuple[StackGroup, ...] = ()
    """Where the ranks of the task were in their programs."""
    odd_share: str = ""
    """A communicator smaller than the task's that joins all ranks with odd stacks, where there are several."""
    ras_findings: tuple[tuple[int, str], ...] = ()
    """Time (Unix ns) and words of NCCL's own status."""


def read_hang_report(
    store: ReadableStore, verdict: Verdict, team: Collection[str], span: tuple[int, int]
) -> HangReport:
    """The hang that a verdict is about, from the rows of its task's machines in that span (Unix ns)."""
    there = store.tables()
    runs = verdict.metric.endswith("_ratio")  # a late or slow rank does not hang
    if verdict.kind not in _KINDS or runs or "nccl" not in there:
        return HangReport()
    standing = RankSnapshot(rows_of("nccl", store.read("nccl", verdict.time - _BACK_NS, verdict.time)))
    members = standing.members(verdict.machine, verdict.device) if verdict.kind == "progress" else ()
    stacks: tuple[StackGroup, ...] = ()
    if "stack" in there:
        stacks = stack_groups(rows_of("stack", store.read("stack", *span)), standing.ranks(), team)
    odd = {(one.machine, one.gpu, one.pid) for group in stacks if group.odd for one in group.places}
    said: tuple[tuple[int, str], ...] = ()
    if "ras" in there:
        said = tuple(ras_findings(rows_of("ras", store.read("ras", *span)), team, standing.comms()))
    return HangReport(members, stacks, standing.shared(odd), said)
