"""Starts of training processes over weeks, from samples of the table `startup`.

Agents repeat the row of each running process once a minute: a look of two minutes at every hour finds each process that
runs longer than that, and a week of a large fleet need not be read whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.schema.contract import ReadableStore
from store.schema.time import SECOND

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_NS = 130 * SECOND
HOUR_NS = 3600 * SECOND


def sample_starts(
    store: ReadableStore, first: int, end: int, every_ns: int = HOUR_NS, table: str = "startup"
) -> pa.Table:
    """Rows of `startup` (or of `task`, which is repeated likewise) at each multiple of `every_ns`, and at `end`.

    Each look takes the LOOK_NS before it, within (first, end]; times are Unix ns. A process that ended between two
    looks is not seen. Raises StoreError.
    """
    import pyarrow as pa

    looks = sorted({*range(first - first % every_ns + every_ns, end, every_ns), end})
    return pa.concat_tables(
        [store.read(table, max(first, at - LOOK_NS), at) for at in looks], promote_options="permissive"
    )


def read_starts(store: ReadableStore, first: int, end: int, every_ns: int = HOUR_NS) -> pa.Table:
    """Starts between two times (Unix ns): rows of `start`, and of `startup` as sample_starts() finds them.

    The former are there for weeks; the latter have processes that still start, and those of older agents.
    """
    import pyarrow as pa

    parts = [sample_starts(store, first, end, every_ns)]
    if "start" in store.tables():
        parts.append(store.read("start", first, end))
    return pa.concat_tables(parts, promote_options="permissive")


def runs_of(begins: list[float], apart_s: float = 600.0) -> list[float]:
    """The first of each group of starts (Unix seconds) that lie no more than `apart_s` after one another."""
    ordered = sorted(begins)
    pairs = zip([float("-inf"), *ordered], ordered, strict=False)
    return [now for before, now in pairs if now - before > apart_s]
