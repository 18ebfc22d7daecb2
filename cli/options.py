"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.config import PLACE, STORE

ORDER = f"--store, else the environment's PEERWATCH_STORE, else the configuration's, else {STORE}"

StoreOption = Annotated[
    str | None,
    typer.Option(
        help="Where the readings are: a .db file, the folder of a recording, or http://SERVER:8086/DATABASE; "
        f"else the environment's PEERWATCH_STORE, else the configuration's, else {STORE}."
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(help=f"Configuration file; else {PLACE}, if it is there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of words.")]
