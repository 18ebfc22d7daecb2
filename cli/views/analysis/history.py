"""The history of the fleet, or of a machine, on the terminal and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from analysis.history.lemons import FACTOR
from analysis.history.machine_history import as_json as machine_json
from cli import time_format
from cli.terminal import console
from cli.views.columns import show_table
from detector.alerts.past_incidents import DAY_NS

if TYPE_CHECKING:
    from analysis.history.machine_history import History, MachineHistory
    from detector.alerts.alert import Alert

_CELLS = 28
_STYLE = {"█": "bold red", "▄": "yellow", "▁": "cyan", "m": "dim", "·": "dim"}
_LEGEND = {"█": "critical", "▄": "warning", "▁": "note", "m": "maintenance begins", "·": "nothing"}


def as_json(found: History, machine: str | None = None) -> dict[str, Any]:
    """The object of `history --json`: times in Unix ns, rates in incidents per 1,000 machine-hours."""
    ranked = [one for one in found.ranked() if machine in (None, one[0].machine)]
    return {
        "first": found.first,
        "end": found.end,
        "base_rate_per_1000_hours": found.ranking.prior.base_rate * 1000,
        "lemons": [one.machine for one, _, _, named in found.ranked() if named],
        "expected_false_share": found.ranking.false_share,
        "machines": [
            {**machine_json(one), "rate_per_1000_hours": rate, "lemon_probability": chance, "lemon": named}
            for one, rate, chance, named in ranked
        ],
        "cards": [
            {"serial": serial, "incidents": [_card_incident(name, alert) for name, alert in mine]}
            for serial, mine in found.cards().items()
            if machine is None or machine in {name for name, _ in mine}
        ],
    }


def _card_incident(machine: str, alert: Alert) -> dict[str, Any]:
    device, opened = alert.finding.device, alert.opened
    return {"machine": machine, "device": device, "opened": opened, "incident": alert.incident}


def strip(found: History, one: MachineHistory) -> Text:
    """The window as cells of equal length, the oldest first: the worst that began in each."""
    length = max(1, (found.end - found.first) // _CELLS + 1)
    marks = [(at, "m") for at, code, _ in one.actions if code == "maintenance"]
    marks += [(at, "▁") for at, _ in one.notes]
    marks += [(alert.opened, "▄") for alert in one.incidents if alert.worst != "crit"]
    marks += [(alert.opened, "█") for alert in one.incidents if alert.worst == "crit"]
    cells = ["·"] * _CELLS
    for at, mark in marks:  # the worst comes last
        cells[min(_CELLS - 1, max(0, (at - found.first) // length))] = mark
    return Text.assemble(*((cell, _STYLE[cell]) for cell in cells))


def draw_fleet(found: History, top: int) -> None:
    """Print the machines, the likeliest lemon first, then lemons and cards in words."""
    screen = console()
    screen.print(Text(_head(found)))
    heads = ("machine", "oldest … newest", "incidents", "notes", "job starts", "rate", "lemon", "last incident (UTC)")
    rows, ranked = [], found.ranked()
    for one, rate, chance, named in ranked[:top]:
        last = time_format.shown(one.incidents[-1].opened) if one.incidents else ""
        words = f"{chance:.0%}"
        counts = (str(len(one.incidents)), str(len(one.notes)), str(len(one.starts)))
        name, lemon = Text(one.machine, "bold" if named else ""), Text(words, "bold red" if named else "")
        rows.append((name, strip(found, one), *counts, f"{rate:.2f}", lemon, last))
    first = ("lemon", "incidents", "oldest … newest", "rate", "last incident (UTC)")
    show_table(screen, heads, rows, first, ("oldest … newest", "last incident (UTC)"))
    if len(ranked) > top:
        screen.print(Text(f"{len(ranked) - top} more machines are not shown: --top {len(ranked)}"))
    screen.print(Text("   ".join(f"{mark} {words}" for mark, words in _LEGEND.items()), "dim"))
    screen.print(Text("rate: incidents per 1,000 machine-hours, shrunken towards the base rate of the fleet", "dim"))
    screen.print(Text(_lemon_words(found)))
    for line in _card_lines(found):
        screen.print(Text(line))


def draw_machine(found: History, machine: str) -> None:
    """Print what happened to a machine, in order of time."""
    screen = console()
    one, rate, chance, _ = next(entry for entry in found.ranked() if entry[0].machine == machine)
    screen.print(Text(_head(found)))
    screen.print(Text(f"{machine}  ").append_text(strip(found, one)))
    base = found.ranking.prior.base_rate * 1000
    many = f"{one.troubles} separate incident{'s' * (one.troubles != 1)} in {one.hours:.0f} h"
    rates = f"{rate:.2f} per 1,000 machine-hours, shrunken; base rate {base:.2f}; a lemon with probability {chance:.0%}"
    screen.print(Text(f"{many}: {rates}"))
    for at, words in lines(one):
        screen.print(Text(f"{time_format.shown(at)}  {words}"))
    for line in _card_lines(found, machine):
        screen.print(Text(line))


def lines(one: MachineHistory) -> list[tuple[int, str]]:
    """Time (Unix ns) and words of all that happened to a machine, in order."""
    found = [(at, f"note: {words}") for at, words in one.notes]
    found += [(at, f"the operator: {code}{f' ({words})' if words else ''}") for at, code, words in one.actions]
    found += [(at, "a job starts") for at in one.starts]
    found += [(at, "a process leaves its communicators behind") for at in one.exits]
    for alert, serial in zip(one.incidents, one.serials, strict=True):
        card = f" [card {serial}]" if serial else ""
        ended = f", ended after {time_format.ago((alert.end - alert.opened) / 1e9)}" if alert.end else ", still open"
        found.append((alert.opened, f"{alert.worst}: {alert.finding.message}{card}{ended} ({alert.incident})"))
    return sorted(found)


def _head(found: History) -> str:
    days = (found.end - found.first) / DAY_NS
    length = f"{days:.1f} days" if days >= 1 else f"{days * 24:.1f} hours"
    hours = sum(one.hours for one in found.machines.values())
    return (
        f"{len(found.machines)} machines over {length} to {time_format.shown(found.end)} UTC, "
        f"{hours:,.0f} machine-hours"
    )


def _lemon_words(found: History) -> str:
    names = [one.machine for one, _, _, named in found.ranked() if named]
    base = f"{FACTOR:g} times the base rate of {found.ranking.prior.base_rate * 1000:.2f}"
    if not names:
        return f"no lemon: no machine with 2 incidents or more is likely above {base}"
    share = f"{found.ranking.false_share:.0%} of them are expected to be none"
    return f"{len(names)} lemon{'s' * (len(names) != 1)} above {base}: {', '.join(names)}; {share}"


def _card_lines(found: History, machine: str | None = None) -> list[str]:
    """A line for each card with several incidents, or with any in this machine and another one."""
    out = []
    for serial, mine in found.cards().items():
        places = list(dict.fromkeys(f"{name} {alert.finding.device}" for name, alert in mine))
        if len(mine) > 1 and (machine is None or machine in {name for name, _ in mine}):
            out.append(f"card {serial}: {len(mine)} incidents, in {', then '.join(places)}")
    return out
