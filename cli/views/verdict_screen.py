"""A verdict and its explanation on the terminal: cause first, then changed readings, timeline, ranks and stacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from cli import time_format
from cli.queries.iteration_time import pace_words
from cli.terminal import console
from cli.views.hang import rank_lines, stack_heads, stacks_title
from cli.views.verdict_text import after, compared, figure, hardware_words, runner_up_lines, sign_words, timeline
from cli.views.zoom import block, scale_of, zoom_lines, zoom_title

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.queries.verdict_history import VerdictRecord
    from detector.explain.difference import MetricShift
    from detector.explain.explanation import Explanation
    from detector.explain.iteration_time import IterationAnomaly

STYLE = {"warn": "yellow", "crit": "bold red"}
_WIDTH, _LEAST, _BESIDE, _FIGURES = 32, 12, 96, 57
"""Blocks of a curve, and their minimum; columns of everything but the curve, and of everything but curve and name."""
_STACKS = 8


def draw(
    record: VerdictRecord,
    explained: Explanation,
    anomalies: tuple[IterationAnomaly, ...],
    place: str,
    hardware: Mapping[str, str],
    earlier: str = "",
    shared: str = "",
    uncounted: tuple[str, ...] = (),
) -> None:
    """Print it; `anomalies` are those of the task's iteration time, `place` is the store.

    `hardware` names the GPU; `earlier` is a line about earlier incidents, `shared` about a switch, `uncounted` lines
    about probes that were off.
    """
    screen, verdict = console(), record.verdict
    _head(record, explained, hardware, (earlier, shared))
    if explained.moved:
        screen.print(_table(explained, screen.width))
        screen.print(Text("upper line: this machine; lower: the median of its peers\n", "dim"))
    for zoom in explained.closeups:
        *lines, ends = zoom_lines(zoom)
        screen.print(Text("\n".join([zoom_title(zoom, verdict.since), *lines])))
        screen.print(Text(f"{ends}\n", "dim"))
    for time, what in timeline(record, explained):
        screen.print(Text(f"{after(time, verdict.since):>7}  {what}"))
    for line in uncounted:
        screen.print(Text(f"probes    {line}"))
    for anomaly in anomalies:
        screen.print(Text(f"its task  {pace_words(anomaly)}"))
    _hang(explained)
    page = f"peerwatch report verdict {record.number} --html FILE --store {place}"
    screen.print(Text(f"\nas an HTML page: {page}", "dim"))


def _head(record: VerdictRecord, explained: Explanation, hardware: Mapping[str, str], more: tuple[str, str]) -> None:
    """Print verdict, likely cause, next step, confidence and peers; `more` is on earlier incidents and a switch."""
    screen, verdict, kind = console(), record.verdict, explained.likely.kind
    earlier, shared = more
    screen.print(Text(f"{verdict.level}: {verdict.message}", STYLE[verdict.level]))
    screen.print(Text("likely    ", "bold").append(kind.words, "bold"))
    if explained.likely.signs:
        screen.print(Text(f"because   {', '.join(map(sign_words, explained.likely.signs))}"))
    screen.print(Text(f"next      {kind.advice}"))
    if shared:
        screen.print(Text(f"switch    {shared}", "bold"))
    if verdict.job:
        screen.print(Text(f"job       {verdict.job.words}"))
    if hardware:
        screen.print(Text(f"hardware  {hardware_words(hardware)}"))
    for line in runner_up_lines(explained):
        screen.print(Text(line))
    if earlier:
        screen.print(Text(f"earlier   {earlier}: peerwatch history {verdict.machine}"))
    until = f"{record.outcome} at {time_format.shown(record.closed)}" if record.closed else "still open"
    onset = f"number {record.number}, onset {time_format.shown(verdict.since)} UTC, {until}"
    screen.print(Text(f"{onset}; compared with {compared(explained)}\n"))


def _hang(explained: Explanation) -> None:
    """Print state and stacks of the ranks of a task that hangs."""
    screen = console()
    if explained.hang.members:
        screen.print(Text("\nstate of the ranks", "bold"))
    for line in rank_lines(explained.hang):
        screen.print(Text(line))
    if explained.hang.stacks:
        screen.print(Text(f"\n{stacks_title(explained.hang)}", "bold"))
    heads = stack_heads(explained.hang)
    for head, group in heads[:_STACKS]:
        screen.print(Text(head, "bold red" if group.odd else ""))
        for frame in group.stack.splitlines():
            screen.print(Text(f"    {frame}", "dim"))
    if len(heads) > _STACKS:
        screen.print(Text(f"{len(heads) - _STACKS} more groups: see --json", "dim"))


def _table(explained: Explanation, width: int) -> Table:
    """One row per changed metric; a narrow terminal folds names between words and cuts neither curves nor numbers."""
    since, blocks = explained.verdict.since, max(_LEAST, min(_WIDTH, width - _BESIDE))
    room = width - _FIGURES - blocks if blocks < _WIDTH else width
    names = ("onset", "reading", "", "before", "since then", "its peers", "effect")
    table = Table(*names, box=None, pad_edge=False)
    for at, column in enumerate(table.columns):
        column.justify = "left" if at in (1, 2) else "right"
        column.no_wrap = True
    for shift in explained.moved:
        sides = [figure(value, shift.key) for value in (shift.before, shift.value, shift.usual)]
        style = "bold" if shift.key == explained.verdict.metric else ""
        name = Text("\n".join([*folded(shift.key, room), *([shift.device] if shift.device else [])]), style)
        table.add_row(after(shift.onset, since), name, sparks(shift, blocks), *sides, f"{shift.effect:+.1f}")
    return table


def folded(name: str, width: int) -> list[str]:
    """A metric's key in lines of at most `width`, broken after a dot or underscore only."""
    lines = [""]
    for part in re.findall(r"[^._]*[._]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return lines


def sparks(shift: MetricShift, most: int = _WIDTH) -> Text:
    """Two lines of at most `most` blocks: the machine, red outside its peers' band, above the peers' median."""
    rows = np.stack([shift.machine, *shift.band])
    parts = np.array_split(rows, min(most, rows.shape[1]), axis=1)
    counts = [np.maximum((~np.isnan(part)).sum(1), 1) for part in parts]
    mean = np.stack([np.nansum(part, axis=1) / count for part, count in zip(parts, counts, strict=True)])
    mean[np.stack([np.isnan(part).all(1) for part in parts])] = np.nan
    low, high = (float(reach(mean[:, [0, 2]])) for reach in (np.nanmin, np.nanmax))
    scale = scale_of(low, high)
    out = Text()
    for value, least, _, largest in mean.tolist():
        outside = value < least or value > largest
        out.append(block(value, low, scale), "bold red" if outside else "")
    out.append("\n")
    for _, _, usual, _ in mean.tolist():
        out.append(block(usual, low, scale), "dim")
    return out
