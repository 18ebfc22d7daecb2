"""`peerwatch behaviour`: how each rank behaves, compared with its peers and with a healthy run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import time_format
from cli.config import locate_store, open_place
from cli.options import ConfigOption, JsonOption, StoreOption, is_file_name
from cli.queries.analysis.logs import is_store
from cli.terminal import console, progress, say, say_json
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from analysis.behaviour.measures import Behaviour
    from store.schema.contract import Store


def behaviour(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="Kineto traces of one run (files or folders), a store, or a task of the store as `tasks` names it; "
            "else all that the store has."
        ),
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="Compare with the healthy run saved in this file.")] = None,
    save_baseline: Annotated[Path | None, typer.Option(help="Save this run as healthy in a file.")] = None,
    last: Annotated[str, typer.Option(help="How much of the store to read, back from --at: 90s, 15m, 2h.")] = "15m",
    at: Annotated[
        str | None, typer.Option(help="End of what is read, such as 2026-05-01T12:00 (UTC); else the last reading.")
    ] = None,
    json: JsonOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Show distributions of throughput, compute, bandwidth, issue latency, voids and stalls of each rank."""
    from analysis.behaviour.baseline import load, save
    from analysis.behaviour.comparison import against_history, against_peers
    from cli.views.analysis.behaviour import as_json, show

    found = _read(what or [], store, config, last, at)
    history = load(baseline, found) if baseline else None
    findings = (against_history(found, history) if history else []) + against_peers(found)
    if save_baseline:
        save(found, save_baseline)
        say(f"{save_baseline}: saved as healthy, {len(found.ranks)} ranks", err=True)
    if json:
        say_json(as_json(found, findings))
    else:
        show(found, findings, history is not None)


def _read(what: list[str], store: str | None, config: Path | None, last: str, at: str | None) -> Behaviour:
    """From a store where one is named, from traces where what is named exists, else from the usual store."""
    from analysis.behaviour.from_traces import read_traces
    from analysis.traces.reading import files_of

    if len(what) == 1 and not store and is_store(what[0]):
        what, store = [], what[0]
    if what and (len(what) > 1 or is_file_name(what[0])):
        files = files_of(map(Path, what))
        with progress("reading", (0, len(files))) as tell:
            found = read_traces(files, tell)
        if not found.values:
            raise ValueError(f"{what[0]} holds no kernel and no step: nothing to measure")
        return found
    place, settings = locate_store(store, config)
    with closing(open_place(place, settings=settings)) as source:
        return _of_store(source, place, what[0] if what else None, last, at)


def _of_store(source: Store, place: str, task: str | None, last: str, at: str | None) -> Behaviour:
    from analysis.behaviour.from_store import read_store

    span = source.span()
    if span is None:
        raise StoreError(f"{place} holds no reading")
    until = time_format.moment(at) if at else span[1]
    with console(err=True).status(f"reading {last} of the store"):
        found = read_store(source, until - time_format.duration(last), until, _machines(source, task, until))
    if not found.values:
        raise StoreError(f"{place} holds nothing of a training task in the {last} before then: use --at or --last")
    return found


def _machines(source: Store, task: str | None, until: int) -> tuple[str, ...] | None:
    """The machines of a task; None: all."""
    from cli.queries.jobs import is_meant, read_named_tasks

    if task is None:
        return None
    known = read_named_tasks(source, until)
    for name, one in known:
        if is_meant(task, name, one):
            return one.machines
    names = ", ".join(name for name, _ in known[:6]) or "none"
    raise StoreError(f"{task} is neither a file nor a task of the store at that time; it has {names}")
