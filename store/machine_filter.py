"""A store limited to some machines: the input of one worker where the detector is divided."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from store.schema.contract import Store
from store.schema.sample import Batch
from store.schema.time import LATEST

if TYPE_CHECKING:
    import pyarrow as pa


class MachineFilter:
    """Reads the rows of these machines; `machines` may be changed at any time. Writes go to the owner's store alone."""

    def __init__(self, store: Store, machines: frozenset[str]) -> None:
        self.store, self.machines = store, machines

    def write(self, batches: Iterable[Batch]) -> None:
        """Nothing: a part that is computed twice, after its worker died, must not be written twice."""

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """Rows of these machines; the contract has the details."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = self.store.read(table, after, until, columns)
        return found.filter(pc.is_in(found.column("machine"), pa.array(sorted(self.machines), pa.string())))

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """Times of the oldest and the newest row later than `after`, of any machine."""
        return self.store.span(after)

    def tables(self) -> tuple[str, ...]:
        """Names of the existing tables."""
        return self.store.tables()

    def close(self) -> None:
        """Release the store."""
        self.store.close()
