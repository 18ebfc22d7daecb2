"""`peerwatch replay`: what the detector would have said over a recording, as if live."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import time_format
from cli.config import judging, open_place, read_settings
from cli.queries.completion import task_names
from cli.terminal import console, progress, say, say_json
from store.recording import RecordingError
from store.schema.contract import Store, StoreError
from store.schema.time import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

    from detector.model.verdict import Verdict


class Watched:
    """A store that tells how far it has been read, and remembers which machines it has."""

    def __init__(self, store: Store, tell: Callable[[int], None]) -> None:
        self.store = store
        self.tell = tell
        self.machines: set[str] = set()

    def read(self, table: str, after: int = 0, until: int = LATEST, columns: Collection[str] | None = None) -> pa.Table:
        """The store's rows."""
        rows = self.store.read(table, after, until, columns)
        self.machines.update(rows.column("machine").unique().to_pylist())
        self.tell(after)
        return rows

    def span(self, after: int = 0) -> tuple[int, int] | None:
        """The store's span."""
        return self.store.span(after)

    def tables(self) -> tuple[str, ...]:
        """The store's tables."""
        return self.store.tables()


def replay(
    folder: Annotated[str, typer.Argument(help="A recording, the .db file of a store, or an InfluxDB address.")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each verdict.")] = False,
    task: Annotated[str | None, typer.Option(help="Judge this task only.", autocompletion=task_names)] = None,
    machines: Annotated[str | None, typer.Option(help="These machines are one task: A,B,…")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file; only its table detector is used.")] = None,
    method: Annotated[
        str, typer.Option(help="Judge by a method it is compared with instead: minder, median, mahalanobis.")
    ] = "peerwatch",
) -> None:
    """Run the detector over a recording in time order, using nothing later than the time it judges."""
    from detector.engine.pipeline import judge
    from detector.evaluation import run

    asked = [name.strip() for name in machines.split(",") if name.strip()] if machines else None
    settings = read_settings(config)
    said: list[Verdict] = []
    with closing(open_place(folder, settings=settings)) as store:
        span = store.span()
        if span is None:
            raise StoreError(f"{folder} holds no reading, so there is nothing to replay")
        with progress("replaying", span) as tell:
            watched = Watched(store, tell)
            detector = run.detector_of(method, judging(settings), task, asked)
            for verdict in judge(watched, detector):
                if json:
                    say_json(verdict.as_json())
                said.append(verdict)
    strangers = sorted(set(asked or ()) - watched.machines)
    if strangers:
        raise RecordingError(f"{folder} has no machine {strangers[0]}; it has {_some(sorted(watched.machines))}")
    there = detector.state.tasks.names()
    if task and task not in there:
        raise RecordingError(f"{folder} has no task {task}; it has {_some(sorted(there)) or 'none'}")
    for sentence in detector.without_peers():
        say(sentence, err=True)
    if not json:
        _show(said, len(watched.machines))


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:4])}, … {names[-1]} ({len(names)} in all)"


def _show(said: list[Verdict], machines: int) -> None:
    from rich.table import Table
    from rich.text import Text

    if not said:
        say(f"Nobody stands out among {machines} machines.", err=True)
        return
    table = Table("time (UTC)", "level", "machine", "device", "message", box=None, pad_edge=False)
    for verdict in said:
        level = Text(verdict.level, style={"crit": "bold red", "warn": "yellow"}.get(verdict.level, "green"))
        table.add_row(
            time_format.shown(verdict.time),
            level,
            Text(verdict.machine),
            Text(verdict.device or ""),
            Text(verdict.message),
        )
    console().print(table)
