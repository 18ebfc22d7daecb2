"""`peerwatch status`: each machine's last readings, and whom the detector holds to be faulty."""

from __future__ import annotations

import json as text
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import times
from cli.config import open_place, store_place
from cli.standing import SEVERITY, Standing, in_words, standing
from cli.terminal import console
from store.contract import LATEST

if TYPE_CHECKING:
    from rich.table import Table

EXIT = {"ok": 0, "warn": 1, "crit": 2, "unknown": 3}
STYLE = {"ok": "green", "warn": "yellow", "crit": "bold red", "unknown": "magenta"}

MOST = 8
"""So many machines are named in one line."""
ROWS = 40
"""So many machines are listed whatever they are, and of more so many that are not ok: what fits on a screen."""
_GAP = 2


def status(
    store: Annotated[str | None, typer.Option(help="Where the readings are.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    silent: Annotated[str, typer.Option(help="A machine without a reading for this long is silent.")] = "30s",
    every: Annotated[bool, typer.Option("--all", help="List every machine, however many are ok.")] = False,
) -> None:
    """Show the machines and their open verdicts. Exit code: 0 ok, 1 warn, 2 crit, 3 unknown (no fresh reading)."""
    place = store_place(store)
    with closing(open_place(place)) as source:
        found = standing(source, time.time_ns(), times.duration(silent))
    if json:
        typer.echo(text.dumps(as_json(found), ensure_ascii=False))
    else:
        show(found, place, len(found.machines) + len(found.verdicts) if every else ROWS)
    raise typer.Exit(EXIT[found.level])


def as_json(found: Standing) -> dict[str, Any]:
    """The object that `status --json` prints; ages in seconds, times in Unix ns, units as in the names."""
    return {
        "time": found.time,
        "level": found.level,
        "machines": [
            {"machine": name, "level": machine.level, "age_seconds": round(machine.age_s, 3)}
            | {"readings": machine.readings}
            for name, machine in found.machines.items()
        ],
        "verdicts": list(found.verdicts),
        "maintenance": [
            {"machine": name, "since": period.since, "until": None if period.until == LATEST else period.until}
            | {"reason": period.reason}
            for name, period in found.maintenance.items()
        ],
        "without_peers": [{"machine": name, "reason": reason} for name, reason in found.alone.items()],
    }


def show(found: Standing, place: str, most: int) -> None:
    """Print the table, the open verdicts in words, and one line that sums it up; of each `most` lines."""
    from rich.text import Text

    screen = console()
    listed = worst(found, most)
    if listed.machines:
        screen.print(table(listed, screen.width))
    if len(listed.machines) < len(found.machines):
        screen.print(Text(f"{_left_out(found, listed)}; --all lists every machine", "dim"))
    for verdict in found.verdicts[:most]:
        since = times.ago((found.time - int(verdict["since"] or verdict["time"])) / 1e9)
        screen.print(Text(f"{verdict['level']}: {verdict['message']} (for {since})", STYLE[str(verdict["level"])]))
    if len(found.verdicts) > most:
        screen.print(Text(f"{len(found.verdicts) - most} more open verdicts; --all has them", "dim"))
    for words in dict.fromkeys(in_words(period) for period in found.maintenance.values()):
        names = _named(name for name, period in found.maintenance.items() if in_words(period) == words)
        screen.print(Text(f"maintenance: {names} {words}"))
    for reason in dict.fromkeys(found.alone.values()):
        names = _named(name for name, why in found.alone.items() if why == reason)
        screen.print(Text(f"no peers: {names}: {reason}; there only hard evidence speaks"))
    screen.print(Text(_sum(found, place), STYLE[found.level]))


def worst(found: Standing, most: int) -> Standing:
    """All machines if they are no more than `most`; else so many of those that are not ok, the worst first."""
    if len(found.machines) <= most:
        return found
    odd = [(name, machine) for name, machine in found.machines.items() if machine.level != "ok"]
    odd.sort(key=lambda one: -SEVERITY.index(one[1].level))
    return replace(found, machines=dict(odd[:most]))


def _left_out(found: Standing, listed: Standing) -> str:
    """How many machines of each level are not listed."""
    rest = [machine.level for name, machine in found.machines.items() if name not in listed.machines]
    counts = [f"{rest.count(level)} {level}" for level in reversed(SEVERITY) if level in rest]
    return f"not listed: {', '.join(counts)}"


def _named(machines: Iterable[str]) -> str:
    """Names in one line, of many the first."""
    names = list(machines)
    return ", ".join(names) if len(names) <= MOST else f"{', '.join(names[:MOST])} … ({len(names)} in all)"


def table(found: Standing, width: int) -> Table:
    """One row a machine: how it stands, when it was read, and as many of its key readings as `width` columns hold."""
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for machine in found.machines.values() for name in machine.readings))
    columns = [["machine", *found.machines], ["is", *(machine.level for machine in found.machines.values())]]
    columns.append(["read", *(f"{times.ago(machine.age_s)} ago" for machine in found.machines.values())])
    for name in names:
        cells = (machine.readings.get(name) for machine in found.machines.values())
        columns.append([name.replace("_", " "), *("" if cell is None else _figure(cell) for cell in cells)])
    heads, *rows = zip(*fitting(columns, width), strict=True)
    picture = Table(box=None, pad_edge=False)
    for at, head in enumerate(heads):
        picture.add_column(head, justify="right" if at > 1 else "left", no_wrap=True)
    for name, level, *rest in rows:
        picture.add_row(Text(name), Text(level, STYLE[level]), *rest)
    return picture


def fitting(columns: list[list[str]], width: int) -> list[list[str]]:
    """All columns where they fit; else their heads a word a line, and the first ones, three at least: none is cut."""
    if sum(max(map(len, column)) + _GAP for column in columns) - _GAP <= width:
        return columns
    narrow = [[head.replace(" ", "\n"), *cells] for head, *cells in columns]
    ends = accumulate(max(len(line) for cell in column for line in cell.split("\n")) + _GAP for column in narrow)
    return narrow[: max(3, sum(end - _GAP <= width for end in ends))]


def _figure(value: float) -> str:
    """Three digits, or whole numbers; what is large in billions."""
    if abs(value) >= 1e8:
        return f"{value / 1e9:.3g} G"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _sum(found: Standing, place: str) -> str:
    if not found.machines:
        if found.newest is None:
            return f"unknown: {place} holds no reading; start the agent (peerwatch agent) or name another --store"
        return f"unknown: the newest reading is {times.ago((found.time - found.newest) / 1e9)} old; does the agent run?"
    silent = [name for name, machine in found.machines.items() if machine.level == "unknown"]
    text = f"{found.level}: {len(found.machines)} machines, {len(found.verdicts)} open verdicts"
    return f"{text}, silent: {_named(silent)}" if silent else text
