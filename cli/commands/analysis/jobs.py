"""`peerwatch jobs`: step, loss, pace, MFU and checkpoint age of jobs, as they write them themselves."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from cli import time_format
from cli.config import locate_store, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.analysis.job_signals import CURVES, read_job_signals
from cli.terminal import console, say_json
from cli.views.columns import show_table
from cli.views.zoom import block, scale_of
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from cli.queries.analysis.job_signals import JobSignals


def jobs(
    since: Annotated[str, typer.Option(help="From then on: a time (UTC), or a duration such as 1h.")] = "1h",
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show what jobs log: step, step time, loss, gradient norm, MFU, age of the checkpoint. Scheduler's jobs: tasks."""
    place, settings = locate_store(store, config)
    with closing(open_place(place, settings=settings)) as source:
        ends = source.span()
        if ends is None:
            raise StoreError(f"{place} holds no reading yet; start the agent (peerwatch agent)")
        first = time_format.point(since, ends[1])
        found = read_job_signals(source, first, ends[1])
    if json:
        say_json({"first": first, "end": ends[1], "jobs": [one.as_json() for one in found]})
    else:
        _draw(found)


def _draw(found: list[JobSignals]) -> None:
    from rich.text import Text

    heads = ("job", "machine", "step", "step time", "", "loss", "", "gradient norm", "NaN", "MFU", "checkpoint age")
    rows: list[tuple[str | Text, ...]] = []
    for one in found:
        loss, pace = (_curve(one.curves.get(name)) for name in CURVES)
        value = one.values
        age = value["checkpoint_age_seconds"]
        step = (_shown(value["step"], ".0f"), _shown(value["step_seconds"], ".3g", " s"), pace)
        norm = (_shown(value["loss"], ".4g"), loss, _shown(value["gradient_norm"], ".4g"))
        wrong = Text(_shown(value["nan_total"], ".0f"), "bold red" if value["nan_total"] else "")
        checkpoint = "" if age is None else time_format.ago(age)
        rows.append((one.job, one.machine, *step, *norm, wrong, _shown(value["mfu_ratio"], ".1%"), checkpoint))
    screen = console()
    show_table(screen, heads, rows, ("step", "step time", "loss", "NaN", "MFU", *heads), ("machine",))
    for one in found:
        if one.error:
            screen.print(Text(f"{one.job} on {one.machine}: {one.error}", "yellow"))


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def _curve(values: Any) -> str:
    """A sparkline over the time; empty where nothing is known."""
    if values is None or not np.isfinite(values).any():
        return ""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return "".join(block(float(value), low, scale_of(low, high)) for value in values)
