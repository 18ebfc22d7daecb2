"""`peerwatch alerts`: test the sinks, and show the results of delivered alerts."""

from __future__ import annotations

import json as text
import logging
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.config import PLACE, Settings, open_place, read_settings
from cli.queries.completion import sink_names
from cli.terminal import say, say_json
from detector.alerts.alert import sample
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from detector.alerts.delivery_log import DeliveryLog

app = typer.Typer(help="Test the sinks of alerts, and show delivery results.", no_args_is_help=True)

_CONFIG = typer.Option(help=f"Configuration file; else {PLACE}, if it exists.")
_STORE = typer.Option(help="The store, instead of the configuration's.")


@app.callback()
def options() -> None:
    """Test the sinks of alerts, and show delivery results."""


@app.command("test")
def try_out(
    sink: Annotated[
        str | None,
        typer.Argument(help="One sink, configured or not; default: all configured sinks.", autocompletion=sink_names),
    ] = None,
    config: Annotated[Path | None, _CONFIG] = None,
    store: Annotated[str | None, _STORE] = None,
) -> None:
    """Send a test alert to a sink and print the result. Exit code: 0 delivered, 1 failed."""
    from detector.alerts.open import open_sink

    settings = read_settings(config)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    place = store or settings.store
    alert = sample(time.time_ns(), _fleet(place, settings))
    failed = False
    for name in [sink] if sink else settings.alerts.sinks:
        try:
            result = open_sink(name, settings.alerts, place, settings.influxdb).test(alert)
            say(f"{name}: {result}")
        except (OSError, ValueError) as error:
            say(f"{name}: failed: {' '.join(str(error).split())}", err=True)
            failed = True
    raise typer.Exit(int(failed))


@app.command()
def show(
    config: Annotated[Path | None, _CONFIG] = None,
    store: Annotated[str | None, _STORE] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show delivery results by sink, as counted by the detector on this machine."""
    from detector.alerts.delivery_log import read_delivery_log
    from detector.alerts.registry import folder_of

    settings = read_settings(config)
    folder = folder_of(settings.alerts, store or settings.store)
    logs = {name: read_delivery_log(folder / f"{name}.json") for name in settings.alerts.sinks}
    if json:
        say_json({name: text.loads(found.packed()) if found else None for name, found in logs.items()})
        return
    for name, found in logs.items():
        say(f"{name}: {_words(found) if found else f'no delivery yet (no log in {folder})'}")


def _words(found: DeliveryLog) -> str:
    counts = ("delivered", "failed", "refused", "dropped", "hung")
    listed = ", ".join(f"{getattr(found, name)} {name}" for name in counts)
    return f"{listed}, {len(found.reported)} open" + (f"; the last failure: {found.error}" if found.error else "")


def _fleet(place: str, settings: Settings) -> int:
    """Number of machines with recent readings; 0 where the store cannot be read."""
    from cli.queries.fleet_status import LOOK_NS, last_seen

    try:
        with closing(open_place(place, settings=settings)) as opened:
            return len(last_seen(opened, time.time_ns(), LOOK_NS))
    except (StoreError, ValueError):
        return 0
