"""Finds the samples that a store lacks, so that a batch written twice is stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from store.schema.columns import key_columns
from store.schema.contract import Store
from store.schema.sample import Batch, Sample, Value

Key = tuple[Value, ...]


def missing(store: Store, batches: Sequence[Batch]) -> Iterator[Batch]:
    """The samples for which the store has fewer rows of the same table, time, machine and other keys."""
    samples = [(batch, sample) for batch in batches for sample in batch.samples]
    for table in sorted({sample.table for _, sample in samples}):
        ours = [(_key(table, batch, sample), batch, sample) for batch, sample in samples if sample.table == table]
        wanted = Counter(key for key, _, _ in ours)
        times = [batch.time for _, batch, _ in ours]
        have = Counter(_there(store, table, min(times) - 1, max(times)))
        for key, batch, sample in ours:
            if have[key] < wanted[key]:
                yield Batch(batch.machine, batch.time, (sample,))


def _key(table: str, batch: Batch, sample: Sample) -> Key:
    return (batch.time, batch.machine, *(sample.values.get(key) for key in key_columns(table)[2:]))


def _there(store: Store, table: str, after: int, until: int) -> Iterable[Key]:
    rows = store.read(table, after, until, ())
    cells = [
        rows.column(name).to_pylist() if name in rows.column_names else [None] * rows.num_rows
        for name in key_columns(table)
    ]
    return zip(*cells, strict=True)
