"""A zoom (20 readings a second of one source for 20 s) as text and JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from cli.views.verdict_text import after, figure, metric_name

if TYPE_CHECKING:
    from detector.explain.zoom_view import Closeup

BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN = 80


def block(value: float, low: float, scale: float) -> str:
    """The block character of a value; a space where unknown."""
    return " " if math.isnan(value) else BLOCKS[round((value - low) * scale)]


def scale_of(low: float, high: float) -> float:
    """Blocks per unit for values from low to high."""
    return (len(BLOCKS) - 1) / (high - low) if high > low else 0.0


def zoom_title(one: Closeup, since: int) -> str:
    """Metric, rate, length and begin of a zoom; `since` is the onset, Unix ns."""
    seconds = one.values.shape[1] * one.step_s
    return (
        f"zoom on {metric_name(one.key)}, {1 / one.step_s:.0f} readings a second for {seconds:.0f} s "
        f"from {after(one.begin, since)}"
    )


def zoom_lines(one: Closeup) -> list[str]:
    """The first readings as blocks, one line per device with its lag, then other machines of the same zoom."""
    from detector.timeseries.comovement import ALIKE

    known = one.values[~np.isnan(one.values)]
    low, high = float(known.min()), float(known.max())
    lines = []
    for device, behind, values in zip(one.devices, one.behind_s, one.values.tolist(), strict=True):
        blocks = "".join(block(value, low, scale_of(low, high)) for value in values[:_SHOWN])
        words = _order_words(behind) if len(one.devices) > 1 and behind else ""
        lines.append(f"{device or 'machine':<18}{blocks}  {words}".rstrip())
    for machine, alike in one.beside:
        how = "together with this machine" if alike >= ALIKE else "independently"
        lines.append(f"{machine}, zoomed at the same time, moves {how} (correlation {alike:.2f})")
    first = f"the first {_SHOWN * one.step_s:.1f} s, " if one.values.shape[1] > _SHOWN else ""
    return [*lines, f"{first}from {figure(low, one.key)} to {figure(high, one.key)}"]


def _order_words(behind: float) -> str:
    if math.isnan(behind):
        return "not correlated with the others"
    return f"{abs(behind):.2f} s {'after' if behind > 0 else 'before'} the others"


def zoom_json(one: Closeup) -> dict[str, Any]:
    """The object of a zoom in `show --json`."""
    parts = zip(one.devices, one.alike, one.behind_s, one.values.tolist(), strict=True)
    return {
        "metric": one.key,
        "begin": one.begin,
        "step_seconds": round(one.step_s, 6),
        "beside": [{"machine": machine, "alike": rounded(alike)} for machine, alike in one.beside],
        "devices": [
            {
                "device": device,
                "alike": rounded(alike),
                "behind_seconds": rounded(behind),
                "values": [*map(rounded, values)],
            }
            for device, alike, behind, values in parts
        ],
    }


def rounded(value: float) -> float | None:
    """Six significant digits; null where unknown."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
