"""`peerwatch status`: last readings of each machine, and the open verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import time_format
from cli.config import locate_store, open_marked
from cli.options import ConfigOption, JsonOption, StoreOption, renamed
from cli.queries.fleet_status import SEVERITY, FleetStatus, in_words, read_fleet_status
from cli.queries.notes import recent_notes
from cli.queries.probes import REPLAYED_WORDS
from cli.terminal import console, say, say_json
from cli.views.fleet_table import STYLE, table
from detector.model.job import job_from
from detector.model.text import plural
from detector.model.verdict_rows import since_of
from store.schema.time import LATEST

if TYPE_CHECKING:
    from cli.queries.probes import ProbeShare
    from detector.service.lease import Term

EXIT = {"ok": 0, "warn": 1, "crit": 2, "unknown": 3}

MOST = 8
"""Most names in one line."""
ROWS = 40
"""A fleet of up to ROWS machines is listed in full; of a larger one, ROWS machines that are not ok."""


def status(
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    stale_after: Annotated[str, typer.Option(help="A machine without a reading for this long is silent.")] = "30s",
    at: Annotated[
        str, typer.Option(help="State at an earlier time: a duration ago (12m) or a time (2026-05-01T12:00, UTC).")
    ] = "0s",
    every: Annotated[bool, typer.Option("--all", help="List every machine.")] = False,
    notes: Annotated[
        bool, typer.Option("--notes", help="Also list deviations of the last day that slow no task.")
    ] = False,
    watch: Annotated[
        float | None,
        typer.Option(min=1.0, help="Show it again every so many seconds, until Ctrl-C.", metavar="SECONDS"),
    ] = None,
    silent: Annotated[str | None, typer.Option(hidden=True, help="Old name of --stale-after.")] = None,
) -> None:
    """Show the machines and their open verdicts. Exit code: 0 ok, 1 warn, 2 crit, 3 unknown (no fresh reading)."""
    place, settings = locate_store(store, config)
    stale_ns = time_format.duration(renamed(silent, "--silent", "--stale-after") or stale_after)
    while True:
        with closing(open_marked(place, settings)) as source:
            found = read_fleet_status(source, time_format.point(at, time.time_ns()), stale_ns)
            noted = recent_notes(source, found.time) if notes else []
        if json:
            say_json(as_json(found) | ({"notes": noted} if notes else {}))
        else:
            _page(found, noted, place, every, watch)
        if watch is None:
            raise typer.Exit(EXIT[found.level])
        time.sleep(watch)


def _page(found: FleetStatus, noted: list[dict[str, Any]], place: str, every: bool, watch: float | None) -> None:
    """Print notes, machines and verdicts; in a terminal that watches, on an empty screen."""
    if watch and (screen := console()).is_terminal:
        screen.clear()
    if watch:
        say(f"every {watch:g} s: peerwatch status, {time_format.shown(found.time)} UTC; Ctrl-C ends")
    for note in noted:
        say(f"note: {note['message']} ({time_format.ago((found.time - note['time']) / 1e9)} ago)")
    show(found, place, len(found.machines) + len(found.verdicts) if every else ROWS)


def as_json(found: FleetStatus) -> dict[str, Any]:
    """The object of `status --json`; ages in seconds, times in Unix ns, units as in the names."""
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
        "without_peers": [{"machine": name, "reason": reason} for name, reason in found.without_peers.items()],
        "lease": _lease_json(found),
        "probes": _probes_json(found.probes),
        "thresholds": dict(found.learning) if found.learning else None,
        "cuda_graphs": list(found.cuda_graphs),
    }


def _lease_json(found: FleetStatus) -> dict[str, Any] | None:
    """Which of several detectors speaks; None where there is one."""
    held = found.lease
    if held is None:
        return None
    about = {"holder": held.holder, "machine": held.machine, "term": held.term, "since": held.time}
    return {**about, "until": held.until, "lapsed": held.until < found.time}


def _probes_json(share: ProbeShare | None) -> dict[str, Any] | None:
    """What probes take of the process that loses the most (share of a core); None where no agent reports it."""
    if share is None:
        return None
    places = {"suspended": list(share.suspended), "sampled": list(share.sampled)}
    return {"machine": share.machine, "core_ratio": share.core_ratio, **places}


def _ack_json(found: FleetStatus, at: int) -> dict[str, Any] | None:
    ack = found.acks.get(at)
    return {"time": ack.time, "reason": ack.reason} if ack else None


def show(found: FleetStatus, place: str, most: int) -> None:
    """Print the table, the open verdicts and a summary line; at most `most` lines of each."""
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
    for reason in dict.fromkeys(found.without_peers.values()):
        names = _named(name for name, why in found.without_peers.items() if why == reason)
        screen.print(Text(f"no peers: {names}: {reason}; only hard evidence applies"))
    _show_detector(found)
    screen.print(Text(_sum(found, place), STYLE[found.level]))


def _show_detector(found: FleetStatus) -> None:
    """Print which detector speaks, what probes cost, and how far thresholds are learned, as far as it is known."""
    from rich.text import Text

    if found.lease:
        console().print(Text(_speaker(found.lease, found.time)))
    for words in _about_probes(found):
        console().print(Text(words, "dim"))
    if found.learning:
        console().print(Text(f"thresholds: {found.learning['message']}", "dim"))


def _speaker(held: Term, now: int) -> str:
    """Which of several detectors speaks, or that none does."""
    if held.until >= now:
        return f"detector: {held.holder} speaks, term {held.term} since {time_format.shown(held.time)} UTC"
    since = f"for {time_format.ago((now - held.until) / 1e9)}" if held.until else "since it stopped"
    return f"detector: none speaks; the lease of {held.holder} (term {held.term}) has lapsed {since}"


def _about_probes(found: FleetStatus) -> list[str]:
    """Where calls of NCCL are not counted, and what counting them costs."""
    graphs = [f"{_named(found.cuda_graphs)}: {REPLAYED_WORDS}"] if found.cuda_graphs else []
    return graphs + ([_probes(found.probes)] if found.probes else [])


def _probes(share: ProbeShare) -> str:
    """Cost of a hit, what probes take and may take, and where some are suspended or sample."""
    states = (("suspended", share.suspended), ("sampled", share.sampled))
    rest = "".join(f"; some are {word} on {_named(machines)}" for word, machines in states if machines)
    return f"probes: {share.machine}: {share.words}{rest}"


def _verdict(found: FleetStatus, at: int) -> str:
    """An open verdict: message, age, and acknowledgement if there is one."""
    verdict, ack = found.verdicts[at], found.acks.get(at)
    since = time_format.ago((found.time - since_of(verdict)) / 1e9)
    known = ""
    if ack:
        reason = f": {ack.reason}" if ack.reason else ""
        known = f"; acknowledged {time_format.ago((found.time - ack.time) / 1e9)} ago{reason}"
    job = job_from(verdict)
    task = f", {job.words}" if job else ""
    return f"{verdict['level']}: {verdict.get('message') or verdict['machine']} (for {since}{task}{known})"


def worst(found: FleetStatus, most: int) -> FleetStatus:
    """All machines if at most `most`; else that many of those that are not ok, the worst first."""
    if len(found.machines) <= most:
        return found
    odd = [(name, machine) for name, machine in found.machines.items() if machine.level != "ok"]
    odd.sort(key=lambda one: -SEVERITY.index(one[1].level))
    return replace(found, machines=dict(odd[:most]))


def _left_out(found: FleetStatus, listed: FleetStatus) -> str:
    """Number of unlisted machines by level."""
    rest = [machine.level for name, machine in found.machines.items() if name not in listed.machines]
    counts = [f"{rest.count(level)} {level}" for level in reversed(SEVERITY) if level in rest]
    return f"not listed: {', '.join(counts)}"


def _named(machines: Iterable[str]) -> str:
    """Names in one line, at most MOST."""
    names = list(machines)
    return ", ".join(names) if len(names) <= MOST else f"{', '.join(names[:MOST])} … ({len(names)} in all)"


def _sum(found: FleetStatus, place: str) -> str:
    """The summary: level, counts, silent machines, age of the readings."""
    silent = [name for name, machine in found.machines.items() if machine.silent]
    if found.newest is None:
        if not found.verdicts:
            return f"unknown: {place} holds no reading; start the agent (peerwatch agent) or use another --store"
        age = "no readings in the store"
    else:
        age = f"the newest reading is {time_format.ago((found.time - found.newest) / 1e9)} old; does the agent run?"
    machines, verdicts = plural(len(found.machines), "machine"), plural(len(found.verdicts), "open verdict")
    text = f"{found.level}: {machines}, {verdicts}"
    if found.newest is None or (silent and len(silent) == len(found.machines)):
        return f"{text}; {age}"
    return f"{text}, silent: {_named(silent)}" if silent else text
