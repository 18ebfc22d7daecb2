"""`peerwatch operators`: which device makes iterations irregular, from logs of communication operations."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.config import open_place
from cli.options import JsonOption
from cli.queries.analysis.logs import is_store
from cli.terminal import progress, say, say_json
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from analysis.traces.reading import Logs


def operators(
    logs: Annotated[
        list[str],
        typer.Argument(
            help="Logs of one job, files or folders of them: NCCL Inspector (JSON), PyTorch Flight Recorder (JSON, "
            "pickle), Kineto traces (JSON, gzip); or one recording, .db file or InfluxDB address of Peerwatch's own."
        ),
    ],
    topology: Annotated[
        Path | None,
        typer.Option(help="Leaf and pod of each machine (docs/analysis/placement.md): makes switches candidates."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find the device that makes iterations irregular, from how long each rank was in each operation (seconds)."""
    from analysis.operators.analysis import analyse
    from analysis.topology.files import read_topology
    from cli.views.analysis.operators import as_json, show
    from detector.attribution.forest import load

    above = read_topology([topology]).above() if topology else None
    read = _read(logs)
    for file in read.files:
        if file.get("cut_off"):
            say(f"{file['file']}: the last line is cut off and left out", err=True)
    found = analyse(read.operations, load(), above)
    if json:
        say_json(as_json(read, found))
    else:
        show(read, found)


def _read(places: list[str]) -> Logs:
    """What the logs hold: of a store if one is named, else of files."""
    from analysis.traces.reading import files_of, read_logs

    if len(places) == 1 and is_store(places[0]):
        return _recorded(places[0])
    files = files_of(map(Path, places))
    with progress("reading", (0, len(files))) as tell:
        return read_logs(files, tell)


def _recorded(place: str) -> Logs:
    from analysis.traces import recorded
    from analysis.traces.reading import Logs
    from store.schema.time import LATEST

    with closing(open_place(place)) as store:
        table = recorded.read(store, 0, LATEST)
    if not len(table.rank):
        raise StoreError(f"{place} holds no NCCL operation in flight: it needs the table nccl with iterations")
    about: dict[str, Any] = {"file": place, "format": "recording", "operations": len(table.rank)}
    return Logs(table, [about])
