"""The form of a catalogue entry: a metric with its unit and tolerances, and a table with its keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "text"]
Direction = Literal["high", "low", "both", "none"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A named quantity with one unit.

    `direction` says which deviation from the peers can be a fault ("none": never compared, context only).
    `abs_tolerance` is the smallest difference from the peers that matters, in the metric's unit (for a counter: unit
    per second). `rel_tolerance` is the same as a share of the peers' value; the larger of the two counts.
    """

    table: str
    name: str
    unit: str
    kind: Kind
    direction: Direction
    abs_tolerance: float
    rel_tolerance: float
    local: bool
    """Whether only the machine's own state moves it: a machine that deviates here is no victim of another machine."""
    help: str
    headline: str = ""
    """Its name in the status of a machine, of which it is then a part; a counter is shown there as its rate."""
    phrase: str = ""
    """How a verdict words a value, with {} for the number; empty: the help text does."""

    @property
    def key(self) -> str:
        """The name people see: `gpu.sm_clock_hertz`."""
        return f"{self.table}.{self.name}"

    @property
    def compared(self) -> bool:
        """Whether peers are compared by it."""
        return self.direction != "none"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the store: its key columns beside time and machine, and whether peers are compared by it."""

    name: str
    keys: tuple[str, ...]
    compared: bool
    help: str
    has_driver_columns: bool = False
    """Whether drivers name further columns: context, unless the name ends in a unit of this catalogue."""
    fast: bool = False
    """Whether it measures the task's own progress, which other work on the machine does not disturb."""
    replaced: bool = False
    """Whether a row takes the place of the one with its time and machine, in every store."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """All key columns, time first."""
        return ("time", "machine", *self.keys)
