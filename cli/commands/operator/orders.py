"""`peerwatch ack` and `peerwatch maintenance`: what people tell the detector, as events in the store."""

from __future__ import annotations

import os.path
import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli import time_format
from cli.config import Settings, located, open_place, open_signed
from cli.options import ConfigOption, StoreOption
from cli.queries.completion import machine_names, targets
from cli.queries.fleet_status import in_words, open_verdicts, said_of
from cli.queries.names import check_device, machines, matching
from cli.queries.verdict_history import pick, read_told
from cli.terminal import say
from store.influx.config import is_address
from store.schema.contract import Store, StoreError
from store.schema.sample import Batch, Sample, Value

if TYPE_CHECKING:
    from detector.topology.maintenance import Maintenance, OperatorState

_INCIDENT = re.compile(r"#?\d+|\d[^/]*/.+|[0-9a-f]{16}", re.DOTALL)
"""A number, TIME/MACHINE, or the key of an alert."""
_HOUR_NS = 3600 * 10**9
_FARTHEST_NS = 366 * 24 * _HOUR_NS
_MOST_TIMES = 366

_REASON = typer.Option(help="Why, for those who read it later: status, show and reports have it.")
_DEVICE = typer.Option(help="Only what was said of this device, such as gpu:3.")


def ack(
    incident: Annotated[
        str,
        typer.Argument(
            help="A machine, a verdict's number, TIME/MACHINE, or the key in an alert.", autocompletion=targets
        ),
    ],
    device: Annotated[str | None, _DEVICE] = None,
    reason: Annotated[str | None, _REASON] = None,
    mended: Annotated[
        bool, typer.Option("--mended", help="It was repaired: close it, and forget what was counted until now.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Acknowledge an incident: it stays open, and raises no alert again until it gets worse or recovers.

    With --mended it is closed instead: errors counted until now are forgotten. A fault that is still there is reported
    again after a minute.
    """
    place, settings = located(store, config)
    with closing(_open(place, settings)) as kept:
        machine = _machine(kept, incident, place)
        if device:
            check_device(kept, machine, device)
        if not mended:
            _check_open(kept, machine, device)
        _order(kept, machine, "clear" if mended else "ack", {"device": device, "message": reason})
    who = f"{machine} {device}" if device else machine
    if mended:
        say(f"{who}: closed, and what was counted until now is forgotten; a fault that lasts is reported in a minute")
    else:
        say(f"{who}: acknowledged; no alert is raised again until it gets worse or recovers")


def clear(
    machine: Annotated[str, typer.Argument(help="Its name.", autocompletion=machine_names)],
    device: Annotated[str | None, _DEVICE] = None,
    reason: Annotated[str | None, _REASON] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Deprecated: the old name of `peerwatch ack MACHINE --mended`."""
    say("peerwatch clear is deprecated: write peerwatch ack MACHINE, or after a repair ... --mended, as now", err=True)
    ack(machine, device, reason, True, store, config)


def maintenance(
    machine: Annotated[
        list[str] | None,
        typer.Argument(help="Machines, or patterns such as 'm00*'; none: list.", autocompletion=machine_names),
    ] = None,
    span: Annotated[str | None, typer.Option("--for", help="How long, such as 2h; else until it is ended.")] = None,
    begin: Annotated[str | None, typer.Option("--from", help="When, such as 2026-05-01T02:00 (UTC); else now.")] = None,
    every: Annotated[str | None, typer.Option(help="And again each time this long after, such as 1d or 1w.")] = None,
    count: Annotated[
        int, typer.Option("--times", min=2, max=_MOST_TIMES, help="With --every: how many times in all.")
    ] = 7,
    end: Annotated[bool, typer.Option("--end", help="End it now, what is still to come too.")] = False,
    reason: Annotated[str | None, _REASON] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Silence machines while they are worked on. Without a name: list machines in maintenance, and those to come."""
    if end and (span or begin or every):
        raise typer.BadParameter("name either --end or a time")
    if not machine and (end or span or begin or every or reason):
        raise typer.BadParameter("name a machine")
    if every and not span:
        raise typer.BadParameter("--every needs --for: how long each time")
    place, settings = located(store, config)
    if not machine:
        with closing(open_place(place, settings=settings)) as kept:
            _list(kept)
        return
    values: dict[str, Value] = {} if end else _window(span, begin, every, count)
    with closing(_open(place, settings)) as kept:
        names = matching(kept, machine, place)
        if end:
            names = _ending(kept, names)
        for name in names:
            _order(kept, name, "maintenance_end" if end else "maintenance", {"message": reason, **values})
    for name in names:
        say(f"{name}: {_told(name, values, end)}")


def _window(span: str | None, begin: str | None, every: str | None, count: int) -> dict[str, Value]:
    """The columns of a row that orders a maintenance. Raises ValueError for times that cannot be meant."""
    now = time.time_ns()
    first = time_format.moment(begin) if begin else now
    long, again = time_format.duration(span) if span else None, time_format.duration(every) if every else 0
    if long is not None and first + long <= now:
        raise ValueError(f"{begin} is over: name a later --from")
    if every and long is not None and not long < again:
        raise ValueError(f"--for {span} is no shorter than --every {every}: that would be without end")
    if max(first - now, again * (count - 1)) > _FARTHEST_NS:
        raise ValueError(
            "the last time would begin more than a year from now: name fewer --times, or an earlier --from"
        )
    values: dict[str, Value] = {"begin": first} if begin else {}
    values |= {"until": first + long} if long is not None else {}
    return values | ({"every": again, "times": count} if every else {})


def _told(name: str, values: dict[str, Value], end: bool) -> str:
    """What will happen, in words."""
    if end:
        return "its maintenance has ended; it is judged by what it shows from now on"
    begin, until, every = (int(values.get(key) or 0) for key in ("begin", "until", "every"))
    words = f"in maintenance from {time_format.shown(begin)}" if begin else "in maintenance"
    words += f" until {time_format.shown(until)} UTC" if until else f" until: peerwatch maintenance {name} --end"
    words += f", every {time_format.ago(every / 1e9)}, {values['times']} times" if every else ""
    return f"{words}; its alerts are silenced"


def _list(store: Store) -> None:
    from detector.topology.maintenance import in_maintenance, planned

    now = time.time_ns()
    orders = said_of(store, now)[0]
    found = [f"{name} {in_words(period)}" for name, period in in_maintenance(orders).items()]
    found += [f"{name} later: {in_words(period)}" for name, period in planned(orders, now).items()]
    say("\n".join(found) or "no machine is in maintenance")


def _ending(store: Store, names: list[str]) -> list[str]:
    """Those of the machines whose maintenance can be ended. Raises StoreError where there is none."""
    periods: dict[str, Maintenance] = _orders(store).periods
    found = [name for name in names if name in periods and periods[name].ends() > time.time_ns()]
    if not found:
        raise StoreError(f"{', '.join(names)}: in no maintenance; which machines are: peerwatch maintenance")
    return found


def _orders(store: Store) -> OperatorState:
    return said_of(store, time.time_ns())[0]


def _open(place: str, settings: Settings) -> Store:
    """The store to write a signed order to; none is begun for it."""
    there = is_address(place) or os.path.exists(os.path.expanduser(place))
    return open_signed(place, there, settings)


def _machine(store: Store, word: str, place: str) -> str:
    """The machine that is meant: by its name, or by an incident of it that is open. Raises StoreError."""
    if word in machines(store, _HOUR_NS):
        return word
    if not _INCIDENT.fullmatch(word):
        return matching(store, [word], place)[0]
    one = pick(read_told(store, place), word, place)
    if one.over:
        raise StoreError(
            f"verdict {one.number} on {one.verdict.machine} is over since {time_format.shown(one.over)} UTC"
        )
    return one.verdict.machine


def _check_open(store: Store, machine: str, device: str | None) -> None:
    """Refuse to acknowledge where no incident is open."""
    rows = open_verdicts(store, time.time_ns())
    if any(row["machine"] == machine and device in (None, row.get("device")) for row in rows):
        return
    others = ", ".join(sorted({str(row["machine"]) for row in rows})) or "none"
    what = f"{machine} {device}" if device else machine
    raise StoreError(f"nothing is open on {what}, so there is nothing to acknowledge; open incidents: {others}")


def _order(store: Store, machine: str, code: str, values: dict[str, Value]) -> None:
    now, ends = time.time_ns(), store.span()
    # A detector reads on from the newest readings: this clock may be behind those of the machines.
    if ends and now < ends[1] < now + _HOUR_NS // 6:
        now = ends[1]
    given = {name: value for name, value in values.items() if value is not None}
    row = Sample("event", {"source": "operator", "code": code, "severity": "info", **given})
    store.write([Batch(machine, now, (row,))])
