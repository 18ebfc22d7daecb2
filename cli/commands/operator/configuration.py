"""`peerwatch config`: check, show or create the configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.config import PLACE, ConfigError, Settings, detector_config, locate_store, read_settings, signing_key
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.reference import keys, template
from cli.terminal import say, say_json
from store.signed import zoom_key

app = typer.Typer(help="Check, show or create the configuration.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Check, show or create the configuration."""


@app.command()
def check(config: ConfigOption = None) -> None:
    """Check a configuration and the files that it names. Exit code: 0 valid, 1 invalid."""
    settings = read_settings(config)
    detector_config(settings)
    _check_tokens(settings)
    place = config or PLACE
    there = place.is_file()
    name = str(place) if there else f"{place} does not exist, so the defaults apply"
    say(f"{name}: ok; store {locate_store(None, config)[0]}, alerts to {', '.join(settings.alerts.sinks) or 'no sink'}")


@app.command()
def show(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show every key with its value, and mark those that differ from the default."""
    now, usual = keys(read_settings(config)), keys()
    if json:
        say_json({table or "": {key.name: key.default for key in found} for table, found in now.items()})
        return
    for table, found in now.items():
        if table:
            say(f"\n[{table}]")
        for key, default in zip(found, usual[table], strict=True):
            say(f"{key.name} = {key.default}" + ("" if key.default == default.default else "  # changed"))


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The file to write; -: standard output.")] = PLACE,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
) -> None:
    """Create a configuration: every key as a comment, with its description and default."""
    if str(file) == "-":
        say(template())
        return
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} exists already: use another file or --overwrite")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(template(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}; run as root, or use another file") from error
    say(f"{file} is written; edit it, then run: peerwatch config check --config {file}")


@app.command("zoom-key")
def print_zoom_key(
    machine: Annotated[str, typer.Argument(help="The machine's name in the store.")],
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the key with which the agent of a machine checks zoom requests: a secret of that machine."""
    place, settings = locate_store(store, config)
    say(zoom_key(signing_key(place, settings, False), machine).decode())


def _check_tokens(settings: Settings) -> None:
    """Raises ConfigError for a named file that cannot be read."""
    webhook = settings.alerts.webhook
    named = {
        "influxdb.token_file": settings.influxdb.token_file,
        "agent.zoom_key_file": settings.agent.zoom_key_file,
        "influxdb.ca_file": settings.influxdb.ca_file,
        "nats.token_file": settings.nats.token_file,
        "nats.ca_file": settings.nats.ca_file,
        "alerts.webhook.url_file": webhook.url_file,
        "alerts.webhook.token_file": webhook.token_file,
        "alerts.webhook.ca_file": webhook.ca_file,
    }
    for key, file in named.items():
        if file and not (os.path.isfile(file) and os.access(file, os.R_OK)):
            raise ConfigError(f"{key} names {file}, which does not exist or is not readable by this user")
