"""`peerwatch ack` and `peerwatch maintenance`: the operator's actions, as signed events in the store."""

from __future__ import annotations

import os.path
import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli import time_format
from cli.config import Settings, locate_store, open_place, open_signed
from cli.options import ConfigOption, StoreOption
from cli.queries.completion import machine_names, targets
from cli.queries.fleet_status import in_words, open_verdicts, operator_state_of
from cli.queries.names import check_device, machines, matching
from cli.queries.verdict_history import pick, read_verdicts
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

_REASON = typer.Option(help="A reason, shown by status, show and reports.")
_DEVICE = typer.Option(help="Only verdicts on this device, such as gpu:3.")


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
        bool, typer.Option("--mended", help="After a repair: close it, and ignore errors counted until now.")
    ] = False,
    false_alarm: Annotated[
        bool, typer.Option("--false-alarm", help="There is no fault: close it, and raise the thresholds it crossed.")
    ] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Acknowledge an incident: it stays open and raises no further alert until it gets worse or recovers.

    With --mended it is closed: errors counted until now are ignored, and a fault that persists is reported again
    after a minute. With --false-alarm it is closed too, and the thresholds that it crossed are raised for a week, on
    all machines.
    """
    if mended and false_alarm:
        raise typer.BadParameter("use either --mended or --false-alarm")
    place, settings = locate_store(store, config)
    with closing(_open(place, settings)) as opened:
        machine = _machine(opened, incident, place)
        if device:
            check_device(opened, machine, device)
        if not mended:
            _check_open(opened, machine, device)
        code = "false_alarm" if false_alarm else "clear" if mended else "ack"
        _order(opened, machine, code, {"device": device, "message": reason})
    name = f"{machine} {device}" if device else machine
    if false_alarm:
        say(f"{name}: closed as a false alarm; the thresholds that it crossed are raised for a week")
    elif mended:
        say(f"{name}: closed; earlier errors are ignored; a persistent fault is reported again in a minute")
    else:
        say(f"{name}: acknowledged; no further alert until it gets worse or recovers")


def clear(
    machine: Annotated[str, typer.Argument(help="Name of the machine.", autocompletion=machine_names)],
    device: Annotated[str | None, _DEVICE] = None,
    reason: Annotated[str | None, _REASON] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Deprecated: the old name of `peerwatch ack MACHINE --mended`."""
    say("peerwatch: clear is deprecated: use peerwatch ack MACHINE --mended", err=True)
    ack(machine, device, reason, True, False, store, config)


def maintenance(
    machine: Annotated[
        list[str] | None,
        typer.Argument(help="Machines, or patterns such as 'm00*'; without: list.", autocompletion=machine_names),
    ] = None,
    span: Annotated[str | None, typer.Option("--for", help="Duration, such as 2h; default: until --end.")] = None,
    begin: Annotated[
        str | None, typer.Option("--from", help="Begin, such as 2026-05-01T02:00 (UTC); default: now.")
    ] = None,
    every: Annotated[str | None, typer.Option(help="Repeat at this interval, such as 1d or 1w.")] = None,
    count: Annotated[int, typer.Option("--times", min=2, max=_MOST_TIMES, help="With --every: number of windows.")] = 7,
    end: Annotated[bool, typer.Option("--end", help="End the maintenance now, including later windows.")] = False,
    reason: Annotated[str | None, _REASON] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Silence machines during maintenance. Without a name: list current and planned maintenance."""
    if end and (span or begin or every):
        raise typer.BadParameter("use either --end or a time")
    if not machine and (end or span or begin or every or reason):
        raise typer.BadParameter("name a machine")
    if every and not span:
        raise typer.BadParameter("--every needs --for: the length of each window")
    place, settings = locate_store(store, config)
    if not machine:
        with closing(open_place(place, settings=settings)) as opened:
            _list(opened)
        return
    values: dict[str, Value] = {} if end else _window(span, begin, every, count)
    with closing(_open(place, settings)) as opened:
        names = matching(opened, machine, place)
        if end:
            names = _ending(opened, names)
        for name in names:
            _order(opened, name, "maintenance_end" if end else "maintenance", {"message": reason, **values})
    for name in names:
        say(f"{name}: {_state_text(name, values, end)}")


def _window(span: str | None, begin: str | None, every: str | None, count: int) -> dict[str, Value]:
    """The time columns of a maintenance row. Raises ValueError for invalid times."""
    now = time.time_ns()
    first = time_format.moment(begin) if begin else now
    long, again = time_format.duration(span) if span else None, time_format.duration(every) if every else 0
    if long is not None and first + long <= now:
        raise ValueError(f"the maintenance from {begin} would be over already: use a later --from")
    if every and long is not None and not long < again:
        raise ValueError(f"--for {span} is not shorter than --every {every}: windows would overlap")
    if max(first - now, again * (count - 1)) > _FARTHEST_NS:
        raise ValueError(
            "the last window would begin more than a year from now: use fewer --times or an earlier --from"
        )
    values: dict[str, Value] = {"begin": first} if begin else {}
    values |= {"until": first + long} if long is not None else {}
    return values | ({"every": again, "times": count} if every else {})


def _state_text(name: str, values: dict[str, Value], end: bool) -> str:
    """The state of a machine after the command, as text."""
    if end:
        return "maintenance ended; readings from now on are judged"
    begin, until, every = (int(values.get(key) or 0) for key in ("begin", "until", "every"))
    words = f"in maintenance from {time_format.shown(begin)}" if begin else "in maintenance"
    words += f" until {time_format.shown(until)} UTC" if until else f" until: peerwatch maintenance {name} --end"
    words += f", every {time_format.ago(every / 1e9)}, {values['times']} times" if every else ""
    return f"{words}; its alerts are silenced"


def _list(store: Store) -> None:
    from detector.topology.maintenance import in_maintenance, planned

    now = time.time_ns()
    orders = operator_state_of(store, now)[0]
    found = [f"{name} {in_words(period)}" for name, period in in_maintenance(orders).items()]
    found += [f"{name} later: {in_words(period)}" for name, period in planned(orders, now).items()]
    say("\n".join(found) or "no machine is in maintenance")


def _ending(store: Store, names: list[str]) -> list[str]:
    """The machines with a current or planned maintenance. Raises StoreError without any."""
    periods: dict[str, Maintenance] = _orders(store).periods
    found = [name for name in names if name in periods and periods[name].ends() > time.time_ns()]
    if not found:
        raise StoreError(
            f"{', '.join(names)}: not in maintenance; list machines in maintenance with: peerwatch maintenance"
        )
    return found


def _orders(store: Store) -> OperatorState:
    return operator_state_of(store, time.time_ns())[0]


def _open(place: str, settings: Settings) -> Store:
    """The store for a signed action; a missing one is not created."""
    there = is_address(place) or os.path.exists(os.path.expanduser(place))
    return open_signed(place, there, settings)


def _machine(store: Store, word: str, place: str) -> str:
    """The machine with this name or this open incident. Raises StoreError."""
    if word in machines(store, _HOUR_NS):
        return word
    if not _INCIDENT.fullmatch(word):
        return matching(store, [word], place)[0]
    one = pick(read_verdicts(store, place), word, place)
    if one.closed is not None:
        raise StoreError(
            f"verdict {one.number} on {one.verdict.machine} was closed at {time_format.shown(one.closed)} UTC"
        )
    return one.verdict.machine


def _check_open(store: Store, machine: str, device: str | None) -> None:
    """Raises StoreError where no incident is open."""
    rows = open_verdicts(store, time.time_ns())
    if any(row["machine"] == machine and device in (None, row.get("device")) for row in rows):
        return
    others = ", ".join(sorted({str(row["machine"]) for row in rows})) or "none"
    what = f"{machine} {device}" if device else machine
    raise StoreError(f"{what} has no open incident; machines with open incidents: {others}")


def _order(store: Store, machine: str, code: str, values: dict[str, Value]) -> None:
    now, ends = time.time_ns(), store.span()
    # A detector continues from the newest readings, and this clock may be behind those of the machines.
    if ends and now < ends[1] < now + _HOUR_NS // 6:
        now = ends[1]
    given = {name: value for name, value in values.items() if value is not None}
    row = Sample("event", {"source": "operator", "code": code, "severity": "info", **given})
    store.write([Batch(machine, now, (row,))])
