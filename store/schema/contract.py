"""The contract of every store, and the error that all of them raise."""

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
    """No store can hold this, now or later: a name that no table or column can have."""


class ReadableStore(Protocol):
    """A source of tables of samples (recording.md describes the tables, catalogue.py the metrics)."""

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows with after < time <= until (Unix ns), in order of time, then of writing.

        All columns, or those of `columns` that exist; the key columns are always included. `time` is int64, machine
        and keys are strings; the rest is int64, double or string (see columns.py). A missing value is null. A table
        that does not exist has its key columns and no row. Raises StoreError.
        """

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """First and last time (Unix ns) later than `after` in all tables; None if there is no such row."""

    def tables(self) -> tuple[str, ...]:
        """Names of the existing tables, sorted."""


class Store(ReadableStore, Protocol):
    """A store that also takes samples."""

    def write(self, batches: Iterable[Batch]) -> None:
        """Store all samples of these batches, or none of them and raise StoreError.

        A value that its column cannot hold becomes null. Names are lower case, digits and underscores.
        """

    def close(self) -> None:
        """Release files and connections."""
