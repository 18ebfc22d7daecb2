"""The store's rows in numpy's terms: who, when, and what."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Ints
from store.schema.catalogue import TABLES

Floats = NDArray[np.floating[Any]]
LARGEST = 1e30
"""No quantity is larger: what is, infinities too, stands for an unknown value, and sums of it would overflow."""

_OF_GPUS = frozenset(table.name for table in TABLES.values() if table.keys[:1] == ("gpu",))


class ArrowTable(Protocol):
    """The part of `pyarrow.Table` that is used here."""

    @property
    def schema(self) -> Any:
        """Column names and types."""

    @property
    def num_rows(self) -> int:
        """How many rows there are."""

    def column(self, i: str) -> Any:
        """One column."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table in time order: who (an index into `idents`), when, and what."""

    table: str
    time: Ints
    ident: Ints
    idents: tuple[tuple[str, ...], ...]
    """Machine, then the table's keys; of missing key columns the last are left out, others are empty."""
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    values: Floats
    """[row, metric], NaN where null or too large to be a reading."""
    texts: Mapping[str, tuple[Ints, Sequence[str]]]
    """Text columns that are not keys: codes and the words they stand for."""

    def span(self, after: int, until: int) -> Rows:
        """The rows with after < time <= until."""
        low, high = np.searchsorted(self.time, [after, until], side="right")
        texts = {name: (codes[low:high], words) for name, (codes, words) in self.texts.items()}
        return Rows(
            self.table,
            self.time[low:high],
            self.ident[low:high],
            self.idents,
            self.keys,
            self.metrics,
            self.values[low:high],
            texts,
        )

    def text(self, name: str) -> NDArray[np.object_]:
        """A text column in words; empty where null or absent."""
        if name not in self.texts:
            return np.full(len(self.time), "", object)
        codes, words = self.texts[name]
        return np.array(words, object)[codes]

    def number(self, name: str) -> Floats:
        """A numeric column; NaN where null or absent."""
        if name not in self.metrics:
            return np.full(len(self.time), np.nan)
        column: Floats = self.values[:, self.metrics.index(name)]
        return column

    def who(self, place: int) -> NDArray[np.object_]:
        """Machine (place 0) or the table's key at that place, for each row; empty where the key is absent."""
        words = np.array([ident[place] if place < len(ident) else "" for ident in self.idents] or [""], object)
        return words[self.ident]


def _is_number(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "bool"))


def _is_text(kind: str) -> bool:
    return "string" in kind or "utf8" in kind


def _codes(column: Any) -> tuple[Ints, list[str]]:
    """Dictionary codes of a text column; null reads as the empty word."""
    encoded = column.cast("string").fill_null("").combine_chunks().dictionary_encode()
    if hasattr(encoded, "combine_chunks"):
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64), encoded.dictionary.to_pylist()


def rows_of(name: str, table: ArrowTable) -> Rows:
    """A table as the store reads it, in numpy's terms; columns that are neither number nor text are left out."""
    kinds = {str(f.name): str(f.type) for f in table.schema}
    texts = {c: _codes(table.column(c)) for c, kind in kinds.items() if _is_text(kind)}
    known = TABLES.get(name)
    keys = _keys_of(known.keys, kinds) if known else tuple(c for c in texts if c != "machine")
    nothing = np.zeros(table.num_rows, np.int64), [""]
    texts |= {c: _codes(table.column(c)) if c in kinds else nothing for c in keys if c not in texts}
    numbers = tuple(c for c, kind in kinds.items() if _is_number(kind) and c != "time" and c not in keys)
    count = table.num_rows
    values = np.full((count, len(numbers)), np.nan)
    for place, column in enumerate(numbers):
        values[:, place] = table.column(column).to_numpy()
    values[~(np.abs(values) <= LARGEST)] = np.nan
    time = np.asarray(table.column("time").to_numpy(), np.int64)
    ident, idents = _identities(texts, keys, count)
    rest = {c: v for c, v in texts.items() if c not in keys and c != "machine"}
    order = np.argsort(time, kind="stable")
    if count and (np.diff(order) != 1).any():
        time, ident, values = time[order], ident[order], values[order]
        rest = {c: (codes[order], words) for c, (codes, words) in rest.items()}
    return Rows(name, time, ident, idents, keys, numbers, values, rest)


def _keys_of(wanted: Sequence[str], there: Container[str]) -> tuple[str, ...]:
    """Those keys up to the last one that is there, so that each stands in its place; one before it may be absent."""
    keys = [c for c in wanted if c != "machine"]
    return tuple(keys[: max((at for at, c in enumerate(keys, 1) if c in there), default=0)])


def _identities(
    texts: dict[str, tuple[Ints, list[str]]], keys: tuple[str, ...], count: int
) -> tuple[Ints, tuple[tuple[str, ...], ...]]:
    """Each row's (machine, keys …) as an index into the distinct ones."""
    parts = [texts[c] for c in ("machine", *keys) if c in texts]
    mixed = np.zeros(count, np.int64)
    for codes, words in parts:
        mixed = mixed * max(len(words), 1) + codes
    _, first, ident = np.unique(mixed, return_index=True, return_inverse=True)
    idents = tuple(tuple(words[codes[row]] for codes, words in parts) for row in first)
    return ident.reshape(-1).astype(np.int64), idents


def device_of(table: str, keys: Sequence[str]) -> str | None:
    """The device as verdicts write it: `gpu:3`, `rdma:mlx5_0/1`; tables of processes speak of their GPUs."""
    known = "/".join(filter(None, keys))
    return f"{'gpu' if table in _OF_GPUS else table}:{known}" if known else None
