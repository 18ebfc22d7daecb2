"""What every place that keeps readings promises, and the one error that all of them raise."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from store.schema.time import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

    from store.schema.sample import Batch


class StoreError(OSError):
    """A store cannot do what was asked; the message is one line that names cause and mend."""


class UnfitError(StoreError):
    """What was given can be kept in no store, now or later: a name that no table or column can have."""


class Store(Protocol):
    """A place that keeps tables of readings (recording.md has the tables, catalogue.py the words)."""

    def write(self, batches: Iterable[Batch]) -> None:
        """Keep all samples of these batches, or none of them and raise StoreError.

        A single value that its column cannot take is kept as unknown. Names are lower case, digits and underscores.
        """

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until (Unix ns), in order of time, then of writing.

        All columns, or of `columns` those that are there; the key columns come in any case. `time` is int64, machine
        and keys are strings; the rest is int64, double or string (see columns.py). A missing value is null. A table
        that is not there has its key columns and no row. Raises StoreError.
        """

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Bounds (Unix ns) of the times later than `after` in all tables; None where there is no such row."""

    def tables(self) -> tuple[str, ...]:
        """Names of the tables that are there, sorted."""

    def close(self) -> None:
        """Let go of files and connections."""
