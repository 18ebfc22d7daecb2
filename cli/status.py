"""`peerwatch status`: each machine's last readings, and whom the detector holds to be faulty."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import times
from cli.config import located, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.standing import SEVERITY, Standing, in_words, standing
from cli.terminal import console, say_json
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
HEADS = {
    "evidence": ("evidence", 1.0),
    "cpu_ratio": ("cpu %", 100.0),
    "memory_ratio": ("memory %", 100.0),
    "gpu_busy_ratio": ("GPU busy %", 100.0),
    "gpu_watts": ("GPU W", 1.0),
    "gpu_clock_hertz": ("GPU GHz", 1e-9),
    "operations_per_second": ("NCCL ops/s", 1.0),
    "iteration_seconds": ("iteration s", 1.0),
    "waiting_ratio": ("waiting %", 100.0),
    "active_ratio": ("active %", 100.0),
    "sending_ratio": ("sending %", 100.0),
}
"""How a reading is headed, and what it is multiplied by."""
FIRST = (
    "evidence",
    "iteration_seconds",
    "waiting_ratio",
    "active_ratio",
    "sending_ratio",
    "gpu_clock_hertz",
    "gpu_watts",
)
"""What a narrow terminal shows rather than the rest: by these a straggler is told."""


def status(
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    silent: Annotated[str, typer.Option(help="A machine without a reading for this long is silent.")] = "30s",
    at: Annotated[
        str, typer.Option(help="As it was then: how long ago (12m), or when (2026-05-01T12:00, in UTC).")
    ] = "0s",
    every: Annotated[bool, typer.Option("--all", help="List every machine, however many are ok.")] = False,
) -> None:
    """Show the machines and their open verdicts. Exit code: 0 ok, 1 warn, 2 crit, 3 unknown (no fresh reading)."""
    place, settings = located(store, config)
    with closing(open_place(place, settings=settings)) as source:
        found = standing(source, times.point(at, time.time_ns()), times.duration(silent))
    if json:
        say_json(as_json(found))
    else:
        show(found, place, len(found.machines) + len(found.verdicts) if every else ROWS)
    raise typer.Exit(EXIT[found.level])


def as_json(found: Standing) -> dict[str, Any]:
    """The object that `status --json` prints; ages in seconds, times in Unix ns, units as in the names."""
    return {
        "time": found.time,
        "level": found.level,
        "machines": [
            {"machine": name, "level": machine.level, "silent": machine.silent, "age_seconds": round(machine.age_s, 3)}
            | {"readings": machine.readings}
            for name, machine in found.machines.items()
        ],
        "verdicts": [{**verdict, "acknowledged": _ack_json(found, at)} for at, verdict in enumerate(found.verdicts)],
        "maintenance": [
            {"machine": name, "since": period.since, "until": None if period.until == LATEST else period.until}
            | {"every": period.every or None, "times": period.times, "reason": period.reason}
            for name, period in found.maintenance.items()
        ],
        "without_peers": [{"machine": name, "reason": reason} for name, reason in found.alone.items()],
    }


def _ack_json(found: Standing, at: int) -> dict[str, Any] | None:
    ack = found.acks.get(at)
    return {"time": ack.time, "reason": ack.reason} if ack else None


def show(found: Standing, place: str, most: int) -> None:
    """Print the table, the open verdicts in words, and one line that sums it up; of each `most` lines."""
    from rich.text import Text

    screen = console()
    listed = worst(found, most)
    if listed.machines:
        drawn, missing = table(listed, screen.width)
        screen.print(drawn)
        if missing:
            screen.print(Text(f"no room for {', '.join(missing)}: widen the terminal, or --json", "dim"))
    if len(listed.machines) < len(found.machines):
        screen.print(Text(f"{_left_out(found, listed)}; --all lists every machine", "dim"))
    for at, verdict in enumerate(found.verdicts[:most]):
        screen.print(Text(_verdict(found, at), STYLE[str(verdict["level"])]))
    if len(found.verdicts) > most:
        screen.print(Text(f"{len(found.verdicts) - most} more open verdicts; --all has them", "dim"))
    for words in dict.fromkeys(in_words(period) for period in found.maintenance.values()):
        names = _named(name for name, period in found.maintenance.items() if in_words(period) == words)
        screen.print(Text(f"maintenance: {names} {words}"))
    for reason in dict.fromkeys(found.alone.values()):
        names = _named(name for name, why in found.alone.items() if why == reason)
        screen.print(Text(f"no peers: {names}: {reason}; there only hard evidence speaks"))
    screen.print(Text(_sum(found, place), STYLE[found.level]))


def _verdict(found: Standing, at: int) -> str:
    """An open verdict in words: since when, and whether somebody has acknowledged it."""
    verdict, ack = found.verdicts[at], found.acks.get(at)
    since = times.ago((found.time - int(verdict.get("since") or verdict["time"])) / 1e9)
    known = ""
    if ack:
        reason = f": {ack.reason}" if ack.reason else ""
        known = f"; acknowledged {times.ago((found.time - ack.time) / 1e9)} ago{reason}"
    return f"{verdict['level']}: {verdict.get('message') or verdict['machine']} (for {since}{known})"


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


def table(found: Standing, width: int) -> tuple[Table, list[str]]:
    """One row a machine, with as many key readings as `width` columns hold; and the heads of those left out."""
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for machine in found.machines.values() for name in machine.readings))
    columns = [["machine", *found.machines], ["is", *(machine.level for machine in found.machines.values())]]
    columns.append(["read", *(f"{times.ago(machine.age_s)} ago" for machine in found.machines.values())])
    for name in names:
        head, scale = HEADS.get(name, (name.replace("_", " "), 1.0))
        cells = (machine.readings.get(name) for machine in found.machines.values())
        columns.append([head, *("" if cell is None else _figure(cell * scale) for cell in cells)])
    ranks = [-1, -1, -1, *(FIRST.index(name) if name in FIRST else len(FIRST) for name in names)]
    fit = fitting(columns, ranks, width)
    heads, *rows = zip(*fit, strict=True)
    picture = Table(box=None, pad_edge=False)
    for at, head in enumerate(heads):
        picture.add_column(Text(head), justify="right" if at > 1 else "left", no_wrap=True)
    for name, level, *rest in rows:
        picture.add_row(Text(name), Text(level, STYLE[level]), *rest)
    there = {head.replace("\n", " ") for head in heads}
    return picture, [column[0] for column in columns if column[0] not in there]


def fitting(columns: list[list[str]], ranks: list[int], width: int) -> list[list[str]]:
    """All columns where they fit; else heads a word a line, and in their order those of the lowest ranks that fit.

    Columns of rank -1 are there in any case; none is cut.
    """
    if sum(max(map(len, column)) + _GAP for column in columns) - _GAP <= width:
        return columns
    narrow = [[head.replace(" ", "\n"), *cells] for head, *cells in columns]
    sizes = [max(len(line) for cell in column for line in cell.split("\n")) + _GAP for column in narrow]
    kept, left = [], width + _GAP
    for at in sorted(range(len(narrow)), key=lambda at: ranks[at]):
        if ranks[at] < 0 or sizes[at] <= left:
            kept.append(at)
            left -= sizes[at]
    return [narrow[at] for at in sorted(kept)]


def _figure(value: float) -> str:
    """Three digits, or whole numbers."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _sum(found: Standing, place: str) -> str:
    """One line on all: level, counts, who is silent, how old the readings are."""
    silent = [name for name, machine in found.machines.items() if machine.silent]
    if found.newest is None:
        if not found.verdicts:
            return f"unknown: {place} holds no reading; start the agent (peerwatch agent) or name another --store"
        age = "no reading is kept"
    else:
        age = f"the newest reading is {times.ago((found.time - found.newest) / 1e9)} old; does the agent run?"
    text = f"{found.level}: {len(found.machines)} machines, {len(found.verdicts)} open verdicts"
    if found.newest is None or (silent and len(silent) == len(found.machines)):
        return f"{text}; {age}"
    return f"{text}, silent: {_named(silent)}" if silent else text
