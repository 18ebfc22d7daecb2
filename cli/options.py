"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.config import PLACE, STORE
from cli.terminal import say

ORDER = f"--store, else PEERWATCH_STORE of the environment, else that of the configuration, else {STORE}"

StoreOption = Annotated[
    str | None,
    typer.Option(
        help="The store: a .db file, the folder of a recording, or http://SERVER:8086/DATABASE; "
        f"else PEERWATCH_STORE of the environment, else that of the configuration, else {STORE}."
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(help=f"Configuration file; else {PLACE}, if it exists.")]
DetectorConfigOption = Annotated[
    Path | None,
    typer.Option(help=f"Configuration file, of which the table detector is used; else {PLACE}, if it exists."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def is_file_name(word: str) -> bool:
    """Whether a word that is a file or a task means a file: it exists, or is written as one."""
    return Path(word).exists() or word.startswith(("/", ".")) or word.endswith((".json", ".gz"))


def renamed(value: Any, old: str, new: str) -> Any:
    """The value of a deprecated option; one line on standard error where it is used."""
    if value:
        say(f"peerwatch: {old} is deprecated: use {new}", err=True)
    return value
