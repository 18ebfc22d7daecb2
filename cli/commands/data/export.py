"""`peerwatch export`: write a time range of the store as a recording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import time_format
from cli.config import locate_store, open_place
from cli.options import ConfigOption, StoreOption
from cli.terminal import progress, say
from store.schema.contract import StoreError
from store.schema.time import LATEST


def export(
    folder: Annotated[Path, typer.Argument(help="Folder of the new recording.")],
    store: StoreOption = None,
    config: ConfigOption = None,
    since: Annotated[str | None, typer.Option(help="Start time, such as 2026-05-01T12:00 (UTC).")] = None,
    until: Annotated[str | None, typer.Option(help="End time.")] = None,
    last: Annotated[
        str | None, typer.Option(help="Only the newest readings of this duration, such as 1h or 2d.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing recording.")] = False,
) -> None:
    """Write a time range of the store as a recording: a folder of Parquet files for `replay`."""
    from store.transfer import export as writing  # loads pyarrow, which the agent's process must not

    if last and since:
        raise typer.BadParameter("use either --last or --since")
    place, settings = locate_store(store, config)
    if folder.resolve() == Path(place).expanduser().resolve():
        raise StoreError(f"{place} cannot be exported onto itself: use another folder")
    source = open_place(place, settings=settings)
    try:
        ends = source.span()
        if ends is None:
            raise StoreError(f"{place} holds no reading yet")
        first = time_format.moment(since) - 1 if since else 0
        end = time_format.moment(until) if until else LATEST
        if last:
            first = min(ends[1], end) - time_format.duration(last)
        with progress("exporting", (max(first, ends[0]), min(end, ends[1]))) as tell:
            rows = writing.export(source, folder, (first, end), tell, overwrite)
    finally:
        source.close()
    say(f"{rows} rows in {folder}; replay them with: peerwatch replay {folder}")
