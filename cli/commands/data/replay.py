"""`peerwatch replay`: run the detector over a recording as if live, and print its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cli import time_format
from cli.config import detector_config, open_place, read_settings
from cli.options import DetectorConfigOption
from cli.queries.completion import task_names
from cli.terminal import console, progress, say, say_json
from store.recording import RecordingError
from store.schema.contract import Store, StoreError
from store.schema.time import LATEST

if TYPE_CHECKING:
    import pyarrow as pa

    from detector.model.verdict import Verdict


class ProgressStore:
    """A store that reports read progress to `tell`, and collects the names of its machines."""

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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line for each verdict.")] = False,
    task: Annotated[str | None, typer.Option(help="Judge this task only.", autocompletion=task_names)] = None,
    machines: Annotated[str | None, typer.Option(help="Judge these machines as one task: A,B,…")] = None,
    config: DetectorConfigOption = None,
    method: Annotated[
        str, typer.Option(help="Use a baseline method instead: minder, median, mahalanobis, distribution.")
    ] = "peerwatch",
) -> None:
    """Run the detector over a recording in time order; no step uses later readings."""
    from detector.engine.pipeline import judge
    from detector.evaluation import run

    selected = [name.strip() for name in machines.split(",") if name.strip()] if machines else None
    settings = read_settings(config)
    verdicts: list[Verdict] = []
    with closing(open_place(folder, settings=settings)) as store:
        span = store.span()
        if span is None:
            raise StoreError(f"{folder} holds no reading")
        with progress("replaying", span) as tell:
            tracked = ProgressStore(store, tell)
            detector = run.detector_of(method, detector_config(settings), task, selected)
            for verdict in judge(tracked, detector):
                if json:
                    say_json(verdict.as_json())
                verdicts.append(verdict)
    unknown = sorted(set(selected or ()) - tracked.machines)
    if unknown:
        raise RecordingError(f"{folder} has no machine {unknown[0]}; it has {_some(sorted(tracked.machines))}")
    known = detector.state.tasks.names()
    if task and task not in known:
        raise RecordingError(f"{folder} has no task {task}; it has {_some(sorted(known)) or 'none'}")
    for sentence in detector.uncompared_text():
        say(sentence, err=True)
    if not json:
        _show(verdicts, len(tracked.machines))


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:4])}, … {names[-1]} ({len(names)} in all)"


def _show(verdicts: list[Verdict], machines: int) -> None:
    from rich.table import Table
    from rich.text import Text

    if not verdicts:
        say(f"No verdict: none of {machines} machines differs from its peers.", err=True)
        return
    table = Table("time (UTC)", "level", "machine", "device", "message", box=None, pad_edge=False)
    for verdict in verdicts:
        level = Text(verdict.level, style={"crit": "bold red", "warn": "yellow"}.get(verdict.level, "green"))
        table.add_row(
            time_format.shown(verdict.time),
            level,
            Text(verdict.machine),
            Text(verdict.device or ""),
            Text(verdict.message),
        )
    console().print(table)
