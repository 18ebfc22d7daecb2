"""`peerwatch history`: incidents, notes, repairs and restarts of machines and cards over weeks, and the lemons."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from cli import time_format
from cli.config import locate_store, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.completion import machine_names
from cli.terminal import console, say_json
from store.schema.contract import StoreError


def history(
    machine: Annotated[
        str | None, typer.Argument(help="A machine; without: the fleet, lemons first.", autocompletion=machine_names)
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="Length of the window, in days.")] = 28,
    until: Annotated[str | None, typer.Option(help="End of the window, such as 2026-05-01T12:00 (UTC).")] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of machines to show.")] = 20,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what happened to machines and cards over weeks, and which have incidents more often than by chance."""
    from analysis.history.machine_history import read_history
    from cli.views.analysis import history as history_view

    place, settings = locate_store(store, config)
    with closing(open_place(place, settings=settings)) as source:
        ends = source.span()
        if ends is None:
            raise StoreError(f"{place} holds no reading yet; start the agent (peerwatch agent)")
        end = time_format.moment(until) if until else ends[1]
        with console(err=True).status(f"reading {days} days of history"):
            found = read_history(source, end, days)
    if machine is not None and machine not in found.machines:
        raise StoreError(f"{place} has no machine {machine} in that time; list them with: peerwatch history")
    if json:
        say_json(history_view.as_json(found, machine))
    elif machine is None:
        history_view.draw_fleet(found, top)
    else:
        history_view.draw_machine(found, machine)
