"""Dataclasses of arrays that share their last axis: one place to grow them and to drop what is evicted."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

import numpy as np

from detector.stats.arrays import Ints, grown


def column(fill: float | str = 0.0, dtype: Any = np.float64, rows: int | None = None) -> Any:
    """A field [series], or [rows, series]; `fill` is the value of a series that nothing is known of."""
    shape = (0,) if rows is None else (rows, 0)
    return field(default_factory=lambda: np.zeros(shape, dtype), metadata={"fill": fill})


class Columns:
    """Base of such a dataclass; fields that are not made by `column` are left alone."""

    __slots__ = ()

    def resize(self, count: int) -> None:
        """Make room for `count` series; arrays at least double, so they may be longer than that."""
        for name, fill in self._columns():
            array = getattr(self, name)
            setattr(self, name, grown(array, (*array.shape[:-1], count), fill))

    def select(self, series: Ints) -> None:
        """Keep these series, in this order; those beyond the arrays were never written and are skipped."""
        for name, _ in self._columns():
            array = getattr(self, name)
            setattr(self, name, array[..., series[series < array.shape[-1]]])

    def _columns(self) -> list[tuple[str, Any]]:
        return [(one.name, one.metadata["fill"]) for one in fields(self) if "fill" in one.metadata]  # type: ignore[arg-type]
