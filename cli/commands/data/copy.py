"""`peerwatch copy`: copy the history of one store to another."""

from __future__ import annotations

from contextlib import closing
from shlex import quote
from typing import Annotated

import typer

from cli import time_format
from cli.config import open_place, read_settings
from cli.options import ConfigOption
from cli.terminal import progress, say
from store.influx.config import is_address
from store.schema.contract import StoreError
from store.schema.time import LATEST


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A .db file, a recording, or an InfluxDB address.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="A .db file, or an InfluxDB address.")],
    since: Annotated[str | None, typer.Option(help="Start time, such as 2026-05-01T12:00 (UTC).")] = None,
    until: Annotated[str | None, typer.Option(help="End time.")] = None,
    config: ConfigOption = None,
) -> None:
    """Copy the readings of one store to another. Repeat it after an interruption: no row is written twice."""
    from store.transfer.copy import copy as copy_rows  # loads pyarrow, which the agent's process must not

    if source == target:
        raise StoreError(f"{source} cannot be copied onto itself")
    first = time_format.moment(since) - 1 if since else 0
    settings = read_settings(config) if config or is_address(source) or is_address(target) else None
    with (
        closing(open_place(source, settings=settings)) as giver,
        closing(open_place(target, True, settings)) as taker,
    ):
        ends = giver.span(first)
        if ends is None:
            raise StoreError(f"{source} holds no reading in that time")
        last = min(ends[1], time_format.moment(until) if until else LATEST)
        with progress("copying", (ends[0], max(last, ends[0]))) as tell:
            written, there = copy_rows(giver, taker, (first, last), tell)
    newest = time_format.shown(last).replace(" ", "T")
    look = f"peerwatch status --store {quote(target)} --at {newest}"
    say(f"{written} rows copied, {there} existed already; show them with: {look}")
