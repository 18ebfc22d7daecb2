"""Charts as SVG: a machine's line over the band of its peers; no script, colours from the page's style sheet."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cli.views.verdict_text import after, figure

if TYPE_CHECKING:
    from detector.explain.difference import MetricShift

WIDTH, HEIGHT = 400, 180
LEFT, RIGHT, TOP, BOTTOM = 62, 394, 22, 156
_ROOM = 0.06
_LONGEST = 9
_TICKS = (10, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Frame:
    """Maps time (Unix ns) and value to SVG units."""

    begin: int
    end: int
    low: float
    high: float

    def x(self, time: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Horizontal position; [time]."""
        share = (np.asarray(time, np.float64) - self.begin) / max(1, self.end - self.begin)
        return LEFT + (RIGHT - LEFT) * share

    def y(self, value: NDArray[np.float32] | float) -> NDArray[np.float64]:
        """Vertical position; [value]."""
        span = self.high - self.low or 1.0
        return BOTTOM - (BOTTOM - TOP) * (np.asarray(value, np.float64) - self.low) / span


def curve(moved: MetricShift, since: int, said: int, span: tuple[int, int]) -> str:
    """One chart: band, median, machine, and the times of onset and verdict (Unix ns)."""
    frame = _frame(moved, span)
    low, mid, high = moved.band
    words = (
        f"{moved.key} of this machine: {figure(moved.before, moved.key)} before, {figure(moved.value, moved.key)} "
        f"since; its peers {figure(moved.usual, moved.key)}"
    )
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}">',
        _grid(frame, moved.key),
        _times(frame, since),
        f'<path class="band" d="{_band(frame, moved.time, low, high)}"/>',
        f'<path class="usual" d="{_line(frame, moved.time, mid)}"/>',
        _mark(frame, moved.onset, "onset", "onset"),
        _mark(frame, said, "verdict", "verdict"),
        f'<path class="mine" d="{_line(frame, moved.time, moved.machine)}"/>',
        "</svg>",
    ]
    return "".join(parts)


def _frame(moved: MetricShift, span: tuple[int, int]) -> Frame:
    shown = np.concatenate([moved.machine, moved.band[0], moved.band[2]])
    low, high = (float(end(shown)) for end in (np.nanmin, np.nanmax))
    # A constant is drawn in the middle; a range near zero starts at zero.
    room = _ROOM * (high - low) or 0.1 * abs(high) or 1.0
    least = 0.0 if 0 <= low < 0.5 * high else low - room
    return Frame(*span, least, high + room)


def _grid(frame: Frame, key: str) -> str:
    out = []
    for value in _round(frame.low, frame.high):
        y = float(frame.y(value))
        label = f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(_tick(value, key))}</text>'
        out.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>{label}')
    return "".join(out)


def _tick(value: float, key: str) -> str:
    """A short label; without the unit where that is long."""
    said = re.sub(r"\.0+(?= )|(?<=\.\d)0+(?= )", "", figure(value, key))
    scale, letter = next((pair for pair in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(value) >= pair[0]), (1.0, ""))
    return said if len(said) <= _LONGEST else f"{value / scale:.3g}{letter}"


def _round(low: float, high: float) -> list[float]:
    """Two to five round numbers from low to high."""
    power = 10 ** math.floor(math.log10(high - low))
    step = next(power * part for part in (0.2, 0.25, 0.5, 1, 2) if (high - low) / (power * part) <= 5)
    return [float(f"{n * step:.6g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _times(frame: Frame, since: int) -> str:
    span = (frame.end - frame.begin) / 1e9
    step = next((tick for tick in _TICKS if span / tick <= 7), 7200) * 10**9
    first = -((since - frame.begin) // step)
    out = []
    for tick in range(first, (frame.end - since) // step + 1):
        x = float(frame.x(since + tick * step))
        anchor = "start" if x < LEFT + 20 else "end" if x > RIGHT - 20 else "middle"
        label = after(since + tick * step, since) if tick else "0"
        out.append(f'<text x="{x:.1f}" y="{BOTTOM + 15}" text-anchor="{anchor}">{label}</text>')
    return "".join(out)


def _mark(frame: Frame, time: int, name: str, word: str) -> str:
    if not frame.begin <= time <= frame.end:
        return ""
    x = float(frame.x(time))
    side, near = ("end", x - 3) if name == "onset" else ("start", x + 3)
    label = f'<text class="{name}" x="{near:.1f}" y="{TOP - 10}" text-anchor="{side}">{word}</text>'
    return f'<path class="mark {name}" d="M{x:.1f} {TOP - 6}V{BOTTOM}"/>{label}'


def _line(frame: Frame, time: NDArray[np.int64], value: NDArray[np.float32]) -> str:
    """The known points joined; a gap of more than three usual bins stays open."""
    known = np.flatnonzero(~np.isnan(value))
    if not len(known):
        return ""
    gap = np.diff(known, prepend=known[0])
    usual = max(1.0, float(np.median(gap[1:]))) if len(known) > 1 else 1.0
    x, y = frame.x(time[known]), frame.y(value[known])
    starts = (gap > 3 * usual) | (np.arange(len(known)) == 0)
    return "".join(f"{'M' if new else 'L'}{a:.1f} {b:.1f}" for new, a, b in zip(starts, x, y, strict=True))


def _band(frame: Frame, time: NDArray[np.int64], low: NDArray[np.float32], high: NDArray[np.float32]) -> str:
    known = np.flatnonzero(~np.isnan(low) & ~np.isnan(high))
    if len(known) < 2:
        return ""
    x = frame.x(time[known])
    there = zip(x, frame.y(high[known]), strict=True)
    back = zip(x[::-1], frame.y(low[known])[::-1], strict=True)
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in (*there, *back)) + "Z"
