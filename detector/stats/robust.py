"""Robust statistics: the MAD as a standard deviation, winsorizing, and a two-sample shift with correlated noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.stats.grouped import middle

Floats = NDArray[np.floating[Any]]
NORMAL = 1.4826
"""Median absolute deviation -> standard deviation of a normal distribution."""
_WINSOR = 3.0
_LONGEST_BATCH = 12


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much one sample's mean lies below the other's, and the standard error of that; arrays [series]."""

    size: Floats
    error: Floats

    @property
    def z(self) -> Floats:
        """The shift in standard errors."""
        return self.size / self.error


def mad(values: Floats, axis: int = 0) -> Floats:
    """The median absolute deviation from the median, scaled to a normal's standard deviation; NaN left out."""
    series = np.moveaxis(values, axis, -1)
    spread: Floats = NORMAL * middle(np.abs(series - middle(series)[..., None]))
    return spread


def winsorized(values: Floats, center: Floats, spread: Floats) -> Floats:
    """Values, those farther from their center than three times their spread put there; NaN stays."""
    held: Floats = np.clip(values, center - _WINSOR * spread, center + _WINSOR * spread)
    return held


def shift_down(values: Floats, on: NDArray[np.bool_], least_error: float = 0.0, by_off: bool = False) -> Shift:
    """How far the winsorized mean of values [time, series] falls where `on` [time].

    Its error is that of means over as many neighbouring values as are on (at most a dozen), so that it holds for noise
    that persists and for noise that swings back; with `by_off` of the values that are not on alone, as an effect that
    comes and goes, or grows, is no noise. Every series needs a known value on both sides.
    """
    center = np.where(on[:, None], middle(values[on].T), middle(values[~on].T))
    held = winsorized(values, center, NORMAL * middle(np.abs(values - center).T))
    usual, now = np.nanmean(held[~on], axis=0), np.nanmean(held[on], axis=0)
    left = np.nan_to_num(held - np.where(on[:, None], now, usual))
    left = left[~on] if by_off else left
    length = int(np.clip(on.sum(), 1, min(_LONGEST_BATCH, max(1, len(left) // 3))))
    total = np.cumsum(np.vstack([np.zeros(left.shape[1]), left]), axis=0)
    batch = mad((total[length:] - total[:-length]) / length)
    error = batch * np.sqrt(length / on.sum() + length / (~on).sum())
    return Shift(usual - now, np.maximum(error, least_error))
