"""A store in memory and readings of small pretend fleets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

SECOND = 10**9
START = 1_700_000_000 * SECOND


class Memory:
    """Tables of a recording that is never written down."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self._tables = {name: table.sort_by("time") for name, table in tables.items()}

    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(sorted(self._tables))

    def span(self, after: int) -> tuple[int, int] | None:
        """First and last time later than `after`."""
        later = [table.filter(pc.greater(table["time"], after)) for table in self._tables.values()]
        ends = [pc.min_max(table["time"]).as_py() for table in later if table.num_rows]
        return (min(end["min"] for end in ends), max(end["max"] for end in ends)) if ends else None

    def read(self, table: str, after: int, until: int) -> pa.Table:
        """Rows with after < time <= until."""
        time = np.asarray(self._tables[table]["time"])
        low, high = np.searchsorted(time, [after, until], side="right")
        return self._tables[table].slice(low, high - low)

    def until(self, time: int) -> Memory:
        """The same store at an earlier time."""
        return Memory({name: self.read(name, 0, time) for name in self._tables})


@pytest.fixture
def memory() -> type[Memory]:
    """The store in memory."""
    return Memory


@pytest.fixture
def fleet() -> Callable[..., pa.Table]:
    """Makes one table of readings around a level, [step, machine], which `bend` may change before it is written."""

    def make(
        metric: str = "load",
        machines: int = 6,
        steps: int = 300,
        step_s: float = 1.0,
        bend: Callable[[np.ndarray], None] | None = None,
        noise: float = 1.0,
        seed: int = 7,
    ) -> pa.Table:
        values = 100 + noise * np.random.default_rng(seed).normal(0, 1, (steps, machines))
        if bend:
            bend(values)
        time = START + (np.arange(steps)[:, None] * step_s * SECOND).astype(np.int64) + np.zeros(machines, np.int64)
        names = np.tile([f"m{number}" for number in range(machines)], steps)
        table = pa.table({"time": time.reshape(-1), "machine": names, metric: values.reshape(-1)})
        return table.filter(pc.invert(pc.is_nan(table[metric])))

    return make
