"""What stragglers cost, as one self-contained HTML page: heat map of the workers, shares by cause, slowdown by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from analysis.whatif.causes import causes, headline
from analysis.whatif.slowdown import Slowdown
from cli.views.analysis.stragglers import Jobs, measures, parts, total, warnings
from cli.views.html_document import document
from detector.stats.arrays import Floats

_WIDTH, _LEFT, _ROW = 760, 190, 22
_HEAT_LEFT, _HEAT_FULL = 60, 1.5
"""A cell of this slowdown, or of the worst worker's above it, has the full colour; as in the study's heat map."""
_LABELLED, _WIDEST = 24, 80.0
_CURVE = 150


def page(jobs: Jobs) -> str:
    """The document; all text from files is escaped."""
    title = "What stragglers cost" if len(jobs) > 1 else f"{jobs[0][0]} {headline(jobs[0][1])}"
    head = f"<header><h1>{escape(total(jobs))}</h1></header>" if len(jobs) > 1 else ""
    footer = (
        "Replay of recorded operations as a dependency graph; ideal operations have the mean length of their type, "
        "transfers the median (arXiv 2505.05713). Shares of causes overlap and need not add up."
    )
    return document(title, head + "\n".join(_job(name, found) for name, found in jobs), footer)


def _job(name: str, found: Slowdown) -> str:
    lines = "".join(f"<p>{escape(line)}</p>" for line in measures(found))
    notes = "".join(f'<p class="soft">Note: {escape(line)}</p>' for line in warnings(found))
    return (
        f"<section><h1>{escape(f'{name} {headline(found)}')}</h1>{lines}{notes}</section>"
        f"{_causes(found)}{_heat(found)}{_parts(found)}{_steps(found)}"
    )


def _causes(found: Slowdown) -> str:
    cards = "".join(
        f'<div class="card"><dt>{escape(one.words)}</dt><dd class="{"crit" if one.is_named else ""}">'
        f"<b>{one.share:.0%}</b> of the loss, {one.gpu_hours:.3g} GPU-hours</dd></div>"
        for one in causes(found)
    )
    return f"<section><h2>What goes away with each cause</h2><dl>{cards}</dl></section>" * bool(cards)


def _heat(found: Slowdown) -> str:
    drawn, full = heat_map(found.by_worker, [str(name) for name in found.by_dp_rank])
    return (
        f"<section><h2>Workers: pipeline stage by data rank</h2><figure>{drawn}</figure>"
        '<p class="soft">One dark cell: a slow worker. A dark row: a stage that is too long. Dark cells '
        f"everywhere: unequal micro-batches. Full colour: slowdown {full:.2f}.</p></section>"
    )


def heat_map(workers: Floats, names: list[str]) -> tuple[str, float]:
    """Stages as rows, data ranks or those of a stage as columns, [stage, rank] slowdown as colour; which is full."""
    stages, ranks = workers.shape
    full = max(_HEAT_FULL, float(np.nanmax(workers)))
    side = min(_WIDEST, (_WIDTH - _HEAT_LEFT) / ranks)
    height = min(48.0, max(14.0, side))
    cells = "".join(
        _cell(slowdown, f"stage {row}, rank {name}", (_HEAT_LEFT + at * side, row * height), (side, height), full)
        for row, line in enumerate(workers.tolist())
        for at, (name, slowdown) in enumerate(zip(names, line, strict=True))
        if not math.isnan(slowdown)
    )
    labels = "".join(
        f'<text x="{_HEAT_LEFT - 6}" y="{(row + 0.5) * height + 4:.1f}" text-anchor="end">stage {row}</text>'
        for row in range(stages)
    )
    every, foot = max(1, math.ceil(ranks / _LABELLED)), stages * height + 14
    labels += "".join(
        f'<text x="{_HEAT_LEFT + (at + 0.5) * side:.1f}" y="{foot:.1f}" text-anchor="middle">{name}</text>'
        for at, name in enumerate(names)
        if at % every == 0
    )
    words = "Slowdown of every worker: pipeline stages by data ranks"
    return _svg(words, stages * height + 20, labels + cells), full


def _cell(slowdown: float, title: str, place: tuple[float, float], size: tuple[float, float], full: float) -> str:
    depth = min(1.0, max(0.0, (slowdown - 1) / (full - 1)))
    middle = f'x="{place[0] + size[0] / 2:.1f}" y="{place[1] + size[1] / 2 + 4:.1f}" text-anchor="middle"'
    label = f'<text class="value" {middle}>{slowdown:.2f}</text>' if size[0] >= _WIDTH / _LABELLED else ""
    return (
        f'<rect class="cell" x="{place[0]:.2f}" y="{place[1]:.2f}" width="{size[0]:.2f}" height="{size[1]:.2f}" '
        f'stroke-width="{min(1.0, size[0] / 10):.2f}" fill-opacity="{depth:.3f}">'
        f"<title>{title}: {slowdown:.3f}</title></rect>{label}"
    )


def _parts(found: Slowdown) -> str:
    rows = [row for row in parts(found) if row[1] > 1][:16]
    if not rows:
        return ""
    words = "Slowdown with one part as it was and all else ideal"
    drawn = bars(words, [(name, value - 1, f"{value:.3f}") for name, value in rows])
    return f"<section><h2>{words}</h2><figure>{drawn}</figure></section>"


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar for each name, length and label."""
    scale = (_WIDTH - _LEFT - 60) / (max(length for _, length, _ in rows) or 1.0)
    drawn = "".join(
        f'<text x="{_LEFT - 6}" y="{at * _ROW + 14}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="bar" x="{_LEFT}" y="{at * _ROW + 3}" width="{max(1.0, length * scale):.1f}" height="14"/>'
        f'<text class="value" x="{_LEFT + length * scale + 6:.1f}" y="{at * _ROW + 14}">{escape(label)}</text>'
        for at, (name, length, label) in enumerate(rows)
    )
    return _svg(title, len(rows) * _ROW + 4, drawn)


def _steps(found: Slowdown) -> str:
    per_step = found.replayed / found.ideal
    if len(per_step) < 2:
        return ""
    top = max(1.05, float(per_step.max()))
    low = min(1.0, float(per_step.min()))
    x = _HEAT_LEFT + np.arange(len(per_step)) * (_WIDTH - _HEAT_LEFT - 6) / (len(per_step) - 1)
    y = 8 + (_CURVE - 30) * (top - per_step) / (top - low)
    line = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))
    grid = "".join(
        f'<path class="grid" d="M{_HEAT_LEFT} {at:.1f}H{_WIDTH - 6}"/>'
        f'<text x="{_HEAT_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{value:.2f}</text>'
        for value, at in ((top, 8.0), (low, _CURVE - 22.0))
    )
    ends = "".join(
        f'<text x="{place:.1f}" y="{_CURVE - 4}" text-anchor="{anchor}">step {step}</text>'
        for place, step, anchor in ((x[0], found.steps[0], "start"), (x[-1], found.steps[-1], "end"))
    )
    drawn = _svg("Slowdown of every step", _CURVE, f'{grid}{ends}<path class="mine" d="{line}"/>')
    return f"<section><h2>Slowdown of every step</h2><figure>{drawn}</figure></section>"


def _svg(words: str, height: float, inside: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(words)}">{inside}</svg>'
