"""What `peerwatch placement` reads of a store: communicators, and machines with verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.queries.iteration_time import LOOK_NS
from cli.queries.verdict_history import group_verdicts
from detector.model.verdict import RANK
from detector.model.verdict_rows import verdict_of

if TYPE_CHECKING:
    from analysis.placement.communicators import Communicator
    from store.schema.contract import Store

FAULTY_NS = 3600 * 10**9
"""A verdict counts for a shared switch until this long after it was closed."""


def read_communicators(source: Store, now: int) -> tuple[Communicator, ...]:
    """The communicators that were read in the minute before `now` (Unix ns)."""
    from analysis.placement.communicators import COLUMNS, find_communicators
    from detector.timeseries.rows import rows_of

    return find_communicators(rows_of("nccl", source.read("nccl", now - LOOK_NS, now, COLUMNS)))


def read_faulty(source: Store, now: int) -> tuple[str, ...]:
    """The machines with a verdict of level warn or crit that is open at `now` (Unix ns), or was in the hour before."""
    if "verdict" not in source.tables():
        return ()
    rows = (row for row in source.read("verdict", 0, now).to_pylist() if row.get("level") in RANK)
    records = group_verdicts(verdict_of(row) for row in rows)
    recent = (one for one in records if one.closed is None or one.closed > now - FAULTY_NS)
    return tuple(sorted({one.verdict.machine for one in recent if RANK[one.verdict.level] >= RANK["warn"]}))
