"""`peerwatch import`: convert public data sets to labelled recordings for evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.queries.completion import data_sets
from cli.terminal import say


def dataset(
    kind: Annotated[str, typer.Argument(help="asd, jumpstarter, smd or mlperf_power.", autocompletion=data_sets)],
    path: Annotated[Path, typer.Argument(help="The data set's file.")],
    folder: Annotated[Path, typer.Argument(help="Folder of the new recordings, one for each part of the data set.")],
    overwrite: Annotated[bool, typer.Option(help="Replace existing recordings.")] = False,
) -> None:
    """Convert a public data set to recordings; labels.json has the faults that its publisher lists."""
    from store.transfer.export import write_recording
    from store.transfer.public_datasets import read

    for name, tables, labels in read(kind, path):
        write_recording(folder / name, tables, labels, overwrite)
        say(f"{folder / name}: {labels['machines']} machines, {len(labels['faults'])} faults")
