"""What one source read at one time on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Value = float | int | str | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One row on its way to a table: the device keys and the values, without time and machine."""

    table: str
    values: Mapping[str, Value]
    """Device keys (such as `gpu` or `slot`, always strings) and values by column name."""
    time: int | None = None
    """Unix nanoseconds where the row has a time of its own (an event); else the batch's."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one reading of one machine."""

    machine: str
    time: int
    """Unix nanoseconds, UTC."""
    samples: tuple[Sample, ...]
