"""`peerwatch status`: each machine's last readings, and whom the detector holds to be faulty."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import time_format
from cli.config import located, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.fleet_status import SEVERITY, Standing, in_words, standing
from cli.terminal import console, say_json
from cli.views.fleet_table import STYLE, table
from store.schema.time import LATEST

if TYPE_CHECKING:
    pass

EXIT = {"ok": 0, "warn": 1, "crit": 2, "unknown": 3}

MOST = 8
"""So many machines are named in one line."""
ROWS = 40
"""So many machines are listed whatever they are, and of more so many that are not ok: what fits on a screen."""


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
        found = standing(source, time_format.point(at, time.time_ns()), time_format.duration(silent))
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
    since = time_format.ago((found.time - int(verdict.get("since") or verdict["time"])) / 1e9)
    known = ""
    if ack:
        reason = f": {ack.reason}" if ack.reason else ""
        known = f"; acknowledged {time_format.ago((found.time - ack.time) / 1e9)} ago{reason}"
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


def _sum(found: Standing, place: str) -> str:
    """One line on all: level, counts, who is silent, how old the readings are."""
    silent = [name for name, machine in found.machines.items() if machine.silent]
    if found.newest is None:
        if not found.verdicts:
            return f"unknown: {place} holds no reading; start the agent (peerwatch agent) or name another --store"
        age = "no reading is kept"
    else:
        age = f"the newest reading is {time_format.ago((found.time - found.newest) / 1e9)} old; does the agent run?"
    text = f"{found.level}: {len(found.machines)} machines, {len(found.verdicts)} open verdicts"
    if found.newest is None or (silent and len(silent) == len(found.machines)):
        return f"{text}; {age}"
    return f"{text}, silent: {_named(silent)}" if silent else text
