"""`peerwatch show`: a verdict with what moved, beside whom, since when, and what kind of fault that looks like."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from cli import time_format
from cli.config import located, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.completion import verdict_numbers
from cli.queries.iteration_time import pace_json, pace_of, pace_words
from cli.queries.verdict_history import RECENT, Told, pick, read_told, with_orders
from cli.terminal import console, say_json
from cli.views.hang import member_lines, stack_heads, stacks_title
from cli.views.verdict_text import after, compared, figure, runner_lines, sign_words, timeline
from cli.views.zoom import block, closer_json, closer_lines, closer_title, rounded, scale_of

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from detector.explain.difference import MetricShift
    from detector.explain.explanation import Explanation
    from detector.explain.iteration_time import IterationAnomaly

STYLE = {"warn": "yellow", "crit": "bold red"}
_WIDTH, _LEAST, _BESIDE, _FIGURES = 32, 12, 96, 57
"""Blocks of a curve, and the fewest; so many columns take all that stands beside it, and all but the name."""
_STACKS = 8


def show(
    verdict: Annotated[
        str | None,
        typer.Argument(
            help="Number, machine (its last one), TIME/MACHINE or the key in an alert; without it, a list.",
            autocompletion=verdict_numbers,
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show why a machine was named: curves beside its peers' band, order of onset, runners-up, likely kind of fault."""
    place, settings = located(store, config)
    with closing(open_place(place, settings=settings)) as source:
        found = read_told(source, place)
        if verdict is None:
            listing(found, place, json)
            return
        from detector.explain.explanation import explain

        one = pick(found, verdict, place)
        explained = explain(source, one.verdict, one.over)
        one = with_orders(source, one)
        pace = pace_of(source, one.verdict.machine, one.verdict.since)
    if json:
        told = as_json(one, explained) | {"irregular": [pace_json(irregular) for irregular in pace]}
        say_json(told)
    else:
        draw(one, explained, pace, place)


def listing(found: list[Told], place: str, json: bool) -> None:
    """Print the recent verdicts, the last one last."""
    from rich.table import Table
    from rich.text import Text

    if json:
        say_json([_heading(one) for one in found])
        return
    screen = console()
    if not found:
        screen.print(Text(f"{place} holds no verdict: nobody stood out, or no detector ran"))
        return
    table = Table("", "time (UTC)", "level", "machine", "device", "until", "message", box=None, pad_edge=False)
    for one in found[-RECENT:]:
        said, until = one.verdict, time_format.shown(one.over)[-8:] if one.over else "open"
        words = Text(said.machine), Text(said.device or ""), until, Text(said.message)
        table.add_row(str(one.number), time_format.shown(one.said[0].time), Text(said.level, STYLE[said.level]), *words)
    screen.print(table)
    if len(found) > RECENT:
        screen.print(f"{len(found) - RECENT} earlier ones are not listed; they have the numbers before")
    screen.print(f"peerwatch show {found[-1].number} says more of the last one")


def _heading(one: Told) -> dict[str, Any]:
    return {"number": one.number, "name": one.name, **one.verdict.as_json(), "over": one.over}


def as_json(one: Told, explained: Explanation) -> dict[str, Any]:
    """The object that `show --json` prints: times in Unix ns, rates a second, effects in what least counts."""
    return {
        **_heading(one),
        "peers": explained.peers,
        "begin": explained.begin,
        "end": explained.end,
        "likely": {
            "kind": explained.likely.kind.name,
            "words": explained.likely.kind.words,
            "signs": list(explained.likely.signs),
            "advice": explained.likely.kind.advice,
        },
        "moved": [_moved_json(moved) for moved in explained.moved],
        "runners_up": [
            {"machine": other.machine, "device": other.device, "effect": other.effect, "value": rounded(other.value)}
            for other in explained.runners_up
        ],
        "gone": [{"table": table, "device": device, "last": last} for table, device, last in explained.gone],
        "timeline": [{"time": time, "what": what} for time, what in timeline(one, explained)],
        "communicators": [members.as_json() for members in explained.hang.members],
        "odd_share": explained.hang.odd_share or None,
        "stacks": [group.as_json() for group in explained.hang.stacks],
        "closeups": [closer_json(one) for one in explained.closeups],
    }


def _moved_json(moved: MetricShift) -> dict[str, Any]:
    low, mid, high = ([rounded(value) for value in row] for row in moved.band.tolist())
    return {
        "metric": moved.key,
        "device": moved.device,
        "effect": round(moved.effect, 2),
        "value": rounded(moved.value),
        "before": rounded(moved.before),
        "usual": rounded(moved.usual),
        "peers": moved.peers,
        "onset": moved.onset,
        "devices_alike": moved.alike[0],
        "devices": moved.alike[1],
        "time": moved.time.tolist(),
        "machine": [rounded(value) for value in moved.machine.tolist()],
        "peers_p10": low,
        "peers_p50": mid,
        "peers_p90": high,
    }


def draw(one: Told, explained: Explanation, pace: tuple[IterationAnomaly, ...], place: str) -> None:
    """Print it for people."""
    from rich.text import Text

    screen, verdict = console(), one.verdict
    screen.print(Text(f"{verdict.level}: {verdict.message}", STYLE[verdict.level]))
    until = f"closed at {time_format.shown(one.over)}" if one.over else "still open"
    begun = f"number {one.number}, began {time_format.shown(verdict.since)} UTC, {until}"
    screen.print(Text(f"{begun}; compared with {compared(explained)}\n"))
    kind = explained.likely
    screen.print(Text("likely    ", "bold").append(kind.kind.words, "bold"))
    if kind.signs:
        screen.print(Text(f"because   {', '.join(sign_words(sign) for sign in kind.signs)}"))
    screen.print(Text(f"next      {kind.kind.advice}\n"))
    if explained.moved:
        screen.print(_table(explained, screen.width))
        screen.print(Text("upper line: this machine; lower: the median of its peers\n", "dim"))
    for one_look in explained.closeups:
        *lines, ends = closer_lines(one_look)
        screen.print(Text("\n".join([closer_title(one_look, verdict.since), *lines])))
        screen.print(Text(f"{ends}\n", "dim"))
    for time, what in timeline(one, explained):
        screen.print(Text(f"{after(time, verdict.since):>7}  {what}"))
    for irregular in pace:
        screen.print(Text(f"its task  {pace_words(irregular)}"))
    _standstill(explained)
    for line in runner_lines(explained):
        screen.print(Text(f"\n{line}"))
    screen.print(Text(f"\npeerwatch report verdict {one.number} --html FILE --store {place} draws it", "dim"))


def _standstill(explained: Explanation) -> None:
    """Print how the ranks of a task that stands still stood, and where they were."""
    from rich.text import Text

    screen = console()
    if explained.hang.members:
        screen.print(Text("\nhow the ranks stood", "bold"))
    for line in member_lines(explained.hang):
        screen.print(Text(line))
    if explained.hang.stacks:
        screen.print(Text(f"\n{stacks_title(explained.hang)}", "bold"))
    heads = stack_heads(explained.hang)
    for head, group in heads[:_STACKS]:
        screen.print(Text(head, "bold red" if group.odd else ""))
        for frame in group.stack.splitlines():
            screen.print(Text(f"    {frame}", "dim"))
    if len(heads) > _STACKS:
        screen.print(Text(f"{len(heads) - _STACKS} more groups: --json has them all", "dim"))


def _table(explained: Explanation, width: int) -> Table:
    """What moved, a row each; where it is narrow names are folded between words, and no curve or figure is cut."""
    from rich.table import Table
    from rich.text import Text

    since, blocks = explained.verdict.since, max(_LEAST, min(_WIDTH, width - _BESIDE))
    room = width - _FIGURES - blocks if blocks < _WIDTH else width
    names = ("onset", "reading", "", "before", "since then", "its peers", "effect")
    table = Table(*names, box=None, pad_edge=False)
    for at, column in enumerate(table.columns):
        column.justify = "left" if at in (1, 2) else "right"
        column.no_wrap = True
    for moved in explained.moved:
        sides = [figure(value, moved.key) for value in (moved.before, moved.value, moved.usual)]
        style = "bold" if moved.key == explained.verdict.metric else ""
        name = Text("\n".join([*folded(moved.key, room), *([moved.device] if moved.device else [])]), style)
        table.add_row(after(moved.onset, since), name, sparks(moved, blocks), *sides, f"{moved.effect:+.1f}")
    return table


def folded(name: str, width: int) -> list[str]:
    """A column's name in lines of at most `width`, broken behind a dot or underscore alone."""
    lines = [""]
    for part in re.findall(r"[^._]*[._]?", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return lines


def sparks(moved: MetricShift, most: int = _WIDTH) -> Text:
    """Two lines of `most` blocks: the machine, marked where it leaves its peers' band, above the peers' median."""
    from rich.text import Text

    rows = np.stack([moved.machine, *moved.band])
    parts = np.array_split(rows, min(most, rows.shape[1]), axis=1)
    counts = [np.maximum((~np.isnan(part)).sum(1), 1) for part in parts]
    mean = np.stack([np.nansum(part, axis=1) / count for part, count in zip(parts, counts, strict=True)])
    mean[np.stack([np.isnan(part).all(1) for part in parts])] = np.nan
    low, high = (float(reach(mean[:, [0, 2]])) for reach in (np.nanmin, np.nanmax))
    scale = scale_of(low, high)
    out = Text()
    for mine, least, _, most in mean.tolist():
        outside = mine < least or mine > most
        out.append(block(mine, low, scale), "bold red" if outside else "")
    out.append("\n")
    for _, _, usual, _ in mean.tolist():
        out.append(block(usual, low, scale), "dim")
    return out
