"""Close-up: one machine's readings many times a second, device by device, and which device moves before the others.

The devices of a machine share its clock, so a twentieth of a second between them means something. Between machines it
would not: their clocks differ by up to half a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import Floats
from detector.timeseries.comovement import ALIKE, beside
from detector.timeseries.zoom import Look, correlation, look_at, looked_at, movement
from store.schema.contract import ReadableStore

_MOST, _LIVELY = 2, 0.1
_LAG_S, _AS_ALIKE = 0.5, 0.95


@dataclass(frozen=True, slots=True)
class Closeup:
    """One metric of a machine's devices; arrays over bins of equal length."""

    key: str
    devices: tuple[str | None, ...]
    begin: int
    """Unix ns."""
    step_s: float
    values: NDArray[np.float32]
    """[device, bin]: a second, where the metric is a counter."""
    alike: tuple[float, ...]
    """[device]: correlation with the mean of the others, at the shift at which it is most like it."""
    behind_s: tuple[float, ...]
    """[device]: that shift, positive where it moves after the others; NaN where it does not move as they do."""
    beside: tuple[tuple[str, float], ...]
    """Other machines that were looked at in the same time and move too: how alike, at the best of all shifts."""


def closeups(store: ReadableStore, machine: str, metric: str, span: tuple[int, int]) -> tuple[Closeup, ...]:
    """What the longest look at each source of a machine shows: the metric asked for, if there, and what moved most.

    `span` is the time looked through, Unix ns. Raises what the store raises.
    """
    looks = (look_at(rows, machine) for rows in looked_at(store, span))
    found = [one for look in looks if look is not None for one in _of(look, metric)]
    return tuple(sorted(found, key=lambda one: one.key != metric)[:_MOST])


def _of(look: Look, metric: str) -> Iterator[Closeup]:
    table = look.rows.table
    lively = {name: movement(table, name, values) for name, values in look.values.items()}
    for name in sorted(lively, key=lambda name: (f"{table}.{name}" != metric, -lively[name]))[:_MOST]:
        if lively[name] >= _LIVELY:
            values = look.values[name]
            alike, behind = _shifts(values, look.step_s)
            others = tuple((other, how) for other, how, _ in beside(look, name))
            head = f"{table}.{name}", look.devices(), int(look.grid[0]), look.step_s
            yield Closeup(*head, values.astype(np.float32), alike, behind, others)


def _shifts(values: Floats, step_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each device how alike it is to the mean of the others, and by how many seconds it comes after them."""
    alike, behind = np.full(len(values), np.nan), np.full(len(values), np.nan)
    known = np.flatnonzero(~np.isnan(values).any(1))
    lags = np.arange(-int(_LAG_S / step_s), int(_LAG_S / step_s) + 1)
    for at in known if len(known) > 1 else ():
        others = values[known[known != at]].mean(0)
        found = np.array([correlation(values[at], others, int(lag)) for lag in lags])
        alike[at] = best = found.max()
        if best >= ALIKE:
            # Where all comes again each iteration, a longer shift is as like as a short one: the short one is meant.
            edged = np.concatenate([[-np.inf], found, [-np.inf]])
            peak = (found >= edged[:-2]) & (found >= edged[2:]) & (found >= _AS_ALIKE * best)
            behind[at] = lags[peak][np.abs(lags[peak]).argmin()] * step_s
    return tuple(alike.tolist()), tuple(behind.tolist())
