"""`peerwatch import`: public data sets as recordings with labels, to evaluate with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.queries.completion import data_sets
from cli.terminal import say


def dataset(
    kind: Annotated[str, typer.Argument(help="asd, jumpstarter, smd or mlperf_power.", autocompletion=data_sets)],
    path: Annotated[Path, typer.Argument(help="The data set's file.")],
    folder: Annotated[Path, typer.Argument(help="Folder in which a recording is made for each part of it.")],
    overwrite: Annotated[bool, typer.Option(help="Replace recordings that are there.")] = False,
) -> None:
    """Bring a public data set into recordings; labels.json says what its publisher knows to be wrong."""
    from store.transfer.export import write_recording
    from store.transfer.public_datasets import read

    for name, tables, labels in read(kind, path):
        write_recording(folder / name, tables, labels, overwrite)
        say(f"{folder / name}: {labels['machines']} machines, {len(labels['faults'])} faults")
