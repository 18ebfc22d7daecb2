"""A store's rows from its beginning to its end in pieces of time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from store.schema.contract import Store
from store.schema.time import SECOND

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_ROWS = 200_000


def pieces(store: Store, span: tuple[int, int]) -> Iterator[tuple[tuple[int, int], dict[str, pa.Table]]]:
    """Pieces of time and their rows (span[0] < time <= span[1], Unix ns) by table; stretches without rows are skipped.

    The last piece ends with `span` or with the store's last row.
    """
    (after, until), piece = span, SECOND
    while (ends := store.span(after)) and ends[0] <= until:
        after = max(after, ends[0] - 1)
        end = min(after + piece, until)
        tables = {name: rows for name in store.tables() if (rows := store.read(name, after, end)).num_rows}
        yield (after, end), tables
        rows = sum(table.num_rows for table in tables.values())
        after = end
        piece = piece * 2 if rows < _PIECE_ROWS / 2 else max(SECOND, piece // 2) if rows > _PIECE_ROWS else piece
