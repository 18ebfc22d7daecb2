"""Carrying a store's rows to another store: again and again if need be, each row is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from store.schema.columns import key_columns
from store.schema.contract import Store
from store.schema.sample import Batch, Sample
from store.transfer.scan import pieces

if TYPE_CHECKING:
    import pyarrow as pa


def copy(
    source: Store, target: Store, span: tuple[int, int], progress: Callable[[int], None] = lambda until: None
) -> tuple[int, int]:
    """Write the rows with span[0] < time <= span[1]; returns how many were written and how many were there.

    Rows are identified by table, time, machine and the other keys. Of what is there nothing is written again, so a
    copy that was interrupted goes on where it was. `progress` hears up to which time (Unix ns) all is there.
    Raises StoreError.
    """
    written = there = 0
    for (after, until), tables in pieces(source, span):
        for name, rows in tables.items():
            missing = list(_missing(name, rows, target.read(name, after, until, ())))
            if missing:
                target.write(missing)
            written, there = written + len(missing), there + rows.num_rows - len(missing)
        progress(until)
    return written, there


def _missing(table: str, rows: pa.Table, found: pa.Table) -> Iterator[Batch]:
    """The rows of which the target has fewer.

    All of one time and key go together: a server that tells them apart by their order would else mistake them.
    """
    wanted, have = Counter(_keys(table, rows)), Counter(_keys(table, found))
    names = [name for name in rows.column_names if name not in ("time", "machine")]
    cells = zip(*(rows.column(name).to_pylist() for name in names), strict=True) if names else [()] * rows.num_rows
    for key, row in zip(_keys(table, rows), cells, strict=True):
        if have[key] < wanted[key]:
            yield Batch(key[1], key[0], (Sample(table, dict(zip(names, row, strict=True))),))


def _keys(table: str, rows: pa.Table) -> Iterable[tuple[Any, ...]]:
    """Time, machine and the other keys of each row; None for a key column that is not there."""
    columns = (
        rows.column(name).to_pylist() if name in rows.column_names else [None] * rows.num_rows
        for name in key_columns(table)
    )
    return zip(*columns, strict=True)
