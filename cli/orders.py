"""`peerwatch clear` and `peerwatch maintenance`: what people tell the detector, as events in the store."""

from __future__ import annotations

import time
from contextlib import closing
from difflib import get_close_matches
from typing import Annotated

import typer

from cli import times
from cli.config import open_place, open_signed, read_settings, store_place
from cli.standing import LOOK_NS, in_words, last_seen
from cli.standing import maintenance as now_in_maintenance
from store.contract import Store, StoreError
from store.sample import Batch, Sample, Value

_HOUR_NS = 3600 * 10**9


def _complete(begun: str) -> list[str]:
    """Names of machines for the shell; none where the store cannot be asked."""
    try:
        with closing(open_place(store_place(None))) as store:
            return [name for name in machines(store, LOOK_NS) if name.startswith(begun)]
    except (OSError, ValueError):
        return []


_STORE = typer.Option(help="Where the readings are.")
_REASON = typer.Option(help="Why, for those who read the verdicts.")
_MACHINE = typer.Argument(help="Its name, as `peerwatch status` shows it.", autocompletion=_complete)


def clear(
    machine: Annotated[str, _MACHINE],
    device: Annotated[str | None, typer.Option(help="Only what is held against this device, such as gpu:3.")] = None,
    reason: Annotated[str | None, _REASON] = None,
    store: Annotated[str | None, _STORE] = None,
) -> None:
    """Forget what is held against a machine. What is still wrong with it is found anew."""
    if device and ":" not in device:
        raise ValueError(f"{device!r} is no device: write it as verdicts do, such as gpu:3 or rdma:mlx5_0/1")
    place = store_place(store)
    with closing(open_signed(place, False, read_settings())) as kept:
        _check(kept, machine, place)
        _order(kept, machine, "clear", {"device": device, "message": reason})
    who = f"{machine} {device}" if device else machine
    typer.echo(f"{who}: what was held against it until now is forgotten; a running detector says so within seconds")


def maintenance(
    machine: Annotated[str | None, _MACHINE] = None,
    span: Annotated[str | None, typer.Option("--for", help="How long, such as 2h; else until it is ended.")] = None,
    end: Annotated[bool, typer.Option("--end", help="End it now.")] = False,
    reason: Annotated[str | None, _REASON] = None,
    store: Annotated[str | None, _STORE] = None,
) -> None:
    """Say nothing about a machine while it is worked on, nor afterwards about what was. Alone: show who is in it."""
    if end and span:
        raise typer.BadParameter("name either --for or --end")
    if machine is None and (end or span or reason):
        raise typer.BadParameter("name the machine")
    place = store_place(store)
    if machine is None:
        with closing(open_place(place)) as kept:
            found = now_in_maintenance(kept, time.time_ns())
            typer.echo("\n".join(f"{name} {in_words(period)}" for name, period in found.items()) or "no machine is")
        return
    with closing(open_signed(place, False, read_settings())) as kept:
        _check(kept, machine, place)
        if end:
            if machine not in now_in_maintenance(kept, time.time_ns()):
                raise StoreError(f"{machine} is in no maintenance; who is: peerwatch maintenance")
            _order(kept, machine, "maintenance_end", {"message": reason})
            typer.echo(f"{machine}: its maintenance has ended; it is judged by what it shows from now on")
            return
        until = time.time_ns() + times.duration(span) if span else None
        _order(kept, machine, "maintenance", {"message": reason, "until": until})
    till = f"until {times.shown(until)} UTC" if until else f"until: peerwatch maintenance {machine} --end"
    typer.echo(f"{machine}: nothing is said about it {till}")


def machines(store: Store, back: int) -> list[str]:
    """Names of the machines seen in the last `back` ns of the store, or of which something was said."""
    ends = store.span()
    if ends is None:
        return []
    seen = set(last_seen(store, min(ends[1], time.time_ns()), back))
    return sorted(seen | set(store.read("verdict", columns=()).column("machine").to_pylist()))


def _check(store: Store, machine: str, place: str) -> None:
    """Refuse a name that nobody has; who was silent for an hour and is no suspect either is not known."""
    if machine in machines(store, LOOK_NS):
        return
    known = machines(store, _HOUR_NS)
    if machine not in known:
        near = get_close_matches(machine, known, 3) or known[:3]
        hint = f"did you mean {' or '.join(near)}?" if near else "it holds no reading; start the agent"
        raise StoreError(f"{place} knows no machine {machine}: {hint}")


def _order(store: Store, machine: str, code: str, values: dict[str, Value]) -> None:
    now, ends = time.time_ns(), store.span()
    # A detector reads on from the newest readings: this clock may be behind those of the machines.
    if ends and now < ends[1] < now + _HOUR_NS // 6:
        now = ends[1]
    given = {name: value for name, value in values.items() if value is not None}
    row = Sample("event", {"source": "operator", "code": code, "severity": "info", **given})
    store.write([Batch(machine, now, (row,))])
