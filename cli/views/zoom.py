"""A closer look in words and blocks, as terminal, page and JSON alike have it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from cli.views.verdict_text import after, figure

if TYPE_CHECKING:
    from detector.explain.zoom_view import Closeup

BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN = 80


def block(value: float, low: float, scale: float) -> str:
    """The block that stands for a value; nothing where it is not known."""
    return " " if math.isnan(value) else BLOCKS[round((value - low) * scale)]


def scale_of(low: float, high: float) -> float:
    """Blocks for each unit of what goes from low to high."""
    return (len(BLOCKS) - 1) / (high - low) if high > low else 0.0


def closer_title(one: Closeup, since: int) -> str:
    """What was read, how often, for how long and when; `since` is the onset, Unix ns."""
    seconds = one.values.shape[1] * one.step_s
    return (
        f"closer look at {one.key}, {1 / one.step_s:.0f} readings a second for {seconds:.0f} s "
        f"from {after(one.begin, since)}"
    )


def closer_lines(one: Closeup) -> list[str]:
    """The first seconds, a block a reading, device by device; who moves after the others; and other machines."""
    from detector.timeseries.comovement import ALIKE

    known = one.values[~np.isnan(one.values)]
    low, high = float(known.min()), float(known.max())
    lines = []
    for device, behind, values in zip(one.devices, one.behind_s, one.values.tolist(), strict=True):
        blocks = "".join(block(value, low, scale_of(low, high)) for value in values[:_SHOWN])
        words = _order_words(behind) if len(one.devices) > 1 and behind else ""
        lines.append(f"{device or 'machine':<18}{blocks}  {words}".rstrip())
    for machine, alike in one.beside:
        how = "as this one does" if alike >= ALIKE else "on its own"
        lines.append(f"{machine}, looked at in the same time, moves {how} ({alike:.2f})")
    first = f"the first {_SHOWN * one.step_s:.1f} s, " if one.values.shape[1] > _SHOWN else ""
    return [*lines, f"{first}from {figure(low, one.key)} to {figure(high, one.key)}"]


def _order_words(behind: float) -> str:
    if math.isnan(behind):
        return "not as the others"
    return f"{abs(behind):.2f} s {'after' if behind > 0 else 'before'} the others"


def closer_json(one: Closeup) -> dict[str, Any]:
    """The object that `show --json` has of it."""
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
    """As JSON has it: six digits, null where it is not known."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
