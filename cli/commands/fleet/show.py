"""`peerwatch show`: list recent verdicts, or explain one: cause, changed readings, timeline."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from cli import time_format
from cli.config import locate_store, open_marked
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.analysis.shared_switch import read_shared
from cli.queries.completion import verdict_numbers
from cli.queries.iteration_time import pace_json, pace_of
from cli.queries.probes import read_uncounted
from cli.queries.verdict_history import RECENT, VerdictRecord, pick, read_verdicts, with_operator_actions
from cli.terminal import console, say_json


def show(
    verdict: Annotated[
        str | None,
        typer.Argument(
            help="Number, machine (its last verdict), TIME/MACHINE or the key of an alert; without: a list.",
            autocompletion=verdict_numbers,
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Explain a verdict: likely cause, changed readings against the peers' band, timeline, next candidates."""
    place, settings = locate_store(store, config)
    with closing(open_marked(place, settings)) as source:
        records = read_verdicts(source, place)
        if verdict is None:
            _list(records, place, json)
            return
        from cli.views.verdict_json import explanation_json
        from detector.alerts.briefing import identity
        from detector.alerts.past_incidents import earlier
        from detector.explain.explanation import explain

        record = pick(records, verdict, place)
        explained = explain(source, record.verdict, record.closed)
        record = with_operator_actions(source, record)
        hardware = identity(source, record.verdict.machine, record.verdict.device, record.verdict.since)
        anomalies = pace_of(source, record.verdict.machine, record.verdict.since)
        past = earlier(source, record.verdict, record.verdicts[0].since)
        uncounted = read_uncounted(source, record.verdict)
        shared = read_shared(source, record.verdict.machine, record.closed or time.time_ns(), settings.topology)
    if json:
        more = {
            "hardware": hardware,
            "irregular": [*map(pace_json, anomalies)],
            "earlier": past.as_json(),
            "uncounted": uncounted,
        }
        switch = {"shared_switch": asdict(shared) if shared else None}
        say_json(explanation_json(record, explained) | more | switch)
        return
    from cli.views.verdict_screen import draw

    draw(record, explained, anomalies, place, hardware, past.words, shared.in_words() if shared else "", uncounted)


def _list(records: list[VerdictRecord], place: str, json: bool) -> None:
    """Print the recent verdicts, the last one last."""
    from rich.table import Table
    from rich.text import Text

    from cli.views.verdict_json import heading_json
    from cli.views.verdict_screen import STYLE

    if json:
        say_json([heading_json(record) for record in records])
        return
    screen = console()
    if not records:
        screen.print(Text(f"{place} holds no verdict: no fault was found, or no detector ran"))
        return
    table = Table("", "time (UTC)", "level", "machine", "device", "until", "message", box=None, pad_edge=False)
    for record in records[-RECENT:]:
        verdict, until = record.verdict, time_format.shown(record.closed)[-8:] if record.closed else "open"
        level, time = Text(verdict.level, STYLE[verdict.level]), time_format.shown(record.verdicts[0].time)
        cells = Text(verdict.machine), Text(verdict.device or ""), until, Text(verdict.message)
        table.add_row(str(record.number), time, level, *cells)
    screen.print(table)
    if len(records) > RECENT:
        screen.print(f"{len(records) - RECENT} earlier verdicts are not listed; their numbers are lower")
    screen.print(f"explain the last one: peerwatch show {records[-1].number}")
