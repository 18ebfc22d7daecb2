"""Charts of an evaluation as SVG: shares with intervals, faults found over time, and recall by kind of fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from cli.views.evaluation.tables import Figures, parts_of

_LEFT, _WIDTH, _ROW = 190, 1000, 24
_COLOURS = 8
_TICKS = (1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)


def shares(found: Figures) -> str:
    """Precision and recall by fault of each method, a bar each, with the 95 % interval as a line."""
    half, parts, y = (_WIDTH - _LEFT) / 2 - 20, [], 30.0
    for side, title in enumerate(("precision", "recall")):
        parts.append(_text(_LEFT + side * (half + 40), 14, title, "soft"))
    for number, (name, figures) in enumerate(found.items()):
        parts.append(_text(_LEFT - 10, y + 12, name, anchor="end"))
        for side, key in enumerate(("precision", "recall")):
            parts.append(_bar(figures["by_fault"], key, (_LEFT + side * (half + 40), y, half), number))
        y += _ROW
    return _svg(y + 6, "Precision and recall of each method", parts)


def _bar(figures: Mapping[str, Any], key: str, place: tuple[float, float, float], number: int) -> str:
    x, y, width = place
    value, ends = figures[key], figures[f"{key}_95"]
    if value is None or ends is None:
        return _text(x, y + 12, "nothing to divide by", "soft")
    low, high = (x + width * end for end in ends)
    return (
        f'<path class="rule" d="M{x:.1f} {y + 8:.1f}h{width:.1f}"/>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width * value:.1f}" height="16" rx="2" fill="{_colour(number)}"/>'
        f'<path d="M{low:.1f} {y + 8:.1f}H{high:.1f}M{low:.1f} {y + 4:.1f}v8M{high:.1f} {y + 4:.1f}v8" '
        f'stroke="var(--ink)" stroke-width="1.5"/>' + _text(x + width + 6, y + 12, f"{value:.2f}")
    )


def found_over_time(found: Figures) -> str:
    """Share of all faults found within so many seconds of their onset; time on a logarithmic axis."""
    delays = [delay for figures in found.values() for delay in figures["delays_s"]]
    if not delays:
        return '<p class="soft">No fault was found.</p>'
    bottom, top, last = 250.0, 20.0, max(10.0, max(delays))

    def x(seconds: float) -> float:
        return 60 + (_WIDTH - 80) * math.log(max(seconds, 1.0)) / math.log(last)

    parts = [
        f'<path class="rule" d="M{x(tick):.1f} {top}V{bottom}"/>'
        + _text(x(tick), bottom + 16, _time(tick), "soft", "middle")
        for tick in _TICKS
        if tick <= last
    ]
    for share in (0.0, 0.5, 1.0):
        y = bottom - (bottom - top) * share
        parts.append(
            f'<path class="rule" d="M60 {y:.1f}H{_WIDTH - 20}"/>' + _text(52, y + 4, f"{share:.0%}", "soft", "end")
        )
    for number, (name, figures) in enumerate(found.items()):
        there, path = max(1, figures["by_fault"]["of"]), f"M{x(1):.1f} {bottom:.1f}"
        for count, delay in enumerate(figures["delays_s"], 1):
            path += f"H{x(delay):.1f}V{bottom - (bottom - top) * count / there:.1f}"
        parts.append(f'<path fill="none" stroke="{_colour(number)}" stroke-width="2.2" d="{path}H{x(last):.1f}"/>')
        parts.append(_legend(number, name))
    return _svg(bottom + 30 + _ROW * math.ceil(len(found) / 4), "Faults found over time", parts)


def _legend(number: int, name: str) -> str:
    x, y = 60 + 235 * (number % 4), 290 + _ROW * (number // 4)
    return f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_colour(number)}"/>' + _text(x + 18, y, name)


def by_kind(found: Figures) -> str:
    """A row a kind of fault, a bar and `found of all` for each method."""
    width = (_WIDTH - _LEFT) / max(1, len(found))
    parts = [_text(_LEFT + width * number, 14 + 13 * (number % 2), name, "soft") for number, name in enumerate(found)]
    y = 38.0
    for kind in parts_of("by_kind", found):
        parts.append(_text(_LEFT - 10, y + 12, kind, anchor="end"))
        for number, figures in enumerate(found.values()):
            one = figures["by_kind"].get(kind)
            if one is None:
                continue
            x, room = _LEFT + width * number, width - 60
            parts.append(f'<path class="rule" d="M{x:.1f} {y + 8:.1f}h{room:.1f}"/>')
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{room * one["found"] / one["faults"]:.1f}" height="16" rx="2" '
                f'fill="{_colour(number)}"/>' + _text(x + room + 5, y + 12, f"{one['found']}/{one['faults']}", "soft")
            )
        y += _ROW
    return _svg(y + 6, "Recall by kind of fault", parts)


def _svg(height: float, words: str, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH + 40} {height:.0f}" role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _colour(number: int) -> str:
    return f"var(--c{number % _COLOURS})"


def _time(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min" if seconds < 3600 else f"{seconds // 3600} h"
