"""`peerwatch report`: reports on one verdict, and on the start-up of a training run; `stragglers` is an analysis."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from cli import time_format
from cli.config import Settings, locate_store, open_marked
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.completion import verdict_numbers
from cli.queries.probes import read_uncounted
from cli.queries.startup_phases import BEFORE, OWN, PHASES, Starts, read_starts
from cli.queries.startup_trend import Trend, read_job_starts, read_trend
from cli.queries.verdict_history import pick, read_verdicts, with_operator_actions
from cli.terminal import console, say, say_json
from store.schema.contract import StoreError
from store.schema.time import LATEST

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

app = typer.Typer(
    help="Report on one verdict, on the start-up of a training run, or on what stragglers cost it.",
    no_args_is_help=True,
)

_WIDTH = 40
_SYMBOLS = {
    "late": ("·", "dim"),
    "load": ("▒", "blue"),
    "read": ("█", "yellow"),
    "prepare": ("░", "magenta"),
    "connect": ("═", "cyan"),
    "work": ("▪", "green"),
}
"""Symbol and colour of each phase."""


@app.callback()
def options() -> None:
    """Report on one verdict, on the start-up of a training run, or on what stragglers cost it."""


@app.command()
def verdict(
    verdict: Annotated[
        str,
        typer.Argument(
            help="Number, machine (its last verdict) or TIME/MACHINE: see `show`.", autocompletion=verdict_numbers
        ),
    ],
    html: Annotated[Path, typer.Option(help="The file to write; it is self-contained.")],
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a verdict as an HTML page: cause, readings against the band of the peers, timeline."""
    from cli.views.html_page import page
    from detector.alerts.briefing import identity
    from detector.explain.explanation import explain

    place, settings = locate_store(store, config)
    with closing(open_marked(place, settings)) as source:
        one = with_operator_actions(source, pick(read_verdicts(source, place), verdict, place))
        explained = explain(source, one.verdict, one.closed)
        hardware = identity(source, one.verdict.machine, one.verdict.device, one.verdict.since)
        uncounted = read_uncounted(source, one.verdict)
    try:
        html.write_text(page(one, explained, place, hardware, uncounted), encoding="utf-8")
    except OSError as error:
        raise OSError(f"{html} cannot be written: {error.strerror}; use another file") from error
    say(f"{html}: verdict {one.number}: {one.verdict.message}")


@app.command()
def startup(
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    since: Annotated[str | None, typer.Option(help="Start time, such as 2026-05-01T12:00 (UTC).")] = None,
    until: Annotated[str | None, typer.Option(help="End time: shows an earlier run.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of machines to show, the slowest first.")] = 20,
    days: Annotated[
        int | None, typer.Option(min=1, max=366, help="Show all jobs that started in so many days instead.")
    ] = None,
) -> None:
    """Show the start-up phases of the latest run: by machine, the slowest first, against median and last week."""
    place, settings = locate_store(store, config)
    if days is not None:
        if since:
            raise ValueError("--days has no --since: give --until where it is not to end now")
        _fleet(place, settings, days, until, json)
        return
    with closing(open_marked(place, settings)) as source:
        ends = source.span()
        if ends is None:
            raise StoreError(f"{place} holds no reading yet; start the agent (peerwatch agent)")
        end = time_format.moment(until) if until else LATEST
        # Agents repeat the rows of running processes each minute.
        first = time_format.moment(since) - 1 if since else min(ends[1], end) - time_format.duration("10m")
        found = read_starts(source, first, end)
        trend = read_trend(source, found)
    if json:
        say_json(as_json(found) | {"trend": trend.as_json()})
    else:
        show(found, trend, top)


def _fleet(place: str, settings: Settings, days: int, until: str | None, json: bool) -> None:
    """The starts of all jobs of some days."""
    from cli.views import startup_fleet

    with closing(open_marked(place, settings)) as source:
        ends = source.span()
        if ends is None:
            raise StoreError(f"{place} holds no reading yet; start the agent (peerwatch agent)")
        end = time_format.moment(until) if until else ends[1]
        with console(err=True).status(f"reading {days} days of starts"):
            jobs = read_job_starts(source, max(ends[0] - 1, end - days * time_format.duration("1d")), end)
    if not jobs:
        raise StoreError(f"no job started within {days} days under the agents of {place}")
    if json:
        say_json(startup_fleet.as_json(jobs))
    else:
        startup_fleet.show(console(), jobs)


def as_json(found: Starts) -> dict[str, Any]:
    """The object of `report startup --json`: seconds by phase, null where unknown."""
    worst, above = found.worst()
    names = list(PHASES)
    return {
        "start_time_seconds": float(found.start.min()),
        "median": _seconds(found.median()),
        "median_before": _seconds(found.median_before(), BEFORE),
        "machines": [
            {
                "machine": machine,
                "gpu": found.gpus[at],
                "start_time_seconds": float(found.start[at]),
                "ready_seconds": _number(found.ready[at]),
                "phases": _seconds(found.phases[at]),
                "before": _seconds(found.before[at], BEFORE),
                "read_bytes": _number(found.read_bytes[at]),
                "slowest_phase": names[worst[at]] if above[at] > 0 else None,
                "above_median_seconds": _number(max(above[at], 0.0)),
            }
            for at, machine in enumerate(found.machines)
        ],
        "machines_of_earlier_runs": found.earlier,
    }


def _seconds(values: Any, phases: Iterable[str] = PHASES) -> dict[str, float | None]:
    return {f"{name}_seconds": _number(value) for name, value in zip(phases, values, strict=True)}


def _number(value: float) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None


def show(found: Starts, trend: Trend, top: int) -> None:
    """Print the slowest machines, the median, the legend, what came before the processes, and the trend."""
    from rich.text import Text

    screen = console()
    screen.print(Text(_head(found)))
    screen.print(table(found, top))
    if len(found.machines) > top:
        screen.print(Text(f"{len(found.machines) - top} faster machines are not shown: --top {len(found.machines)}"))
    legend = Text()
    for name, words in PHASES.items():
        legend.append(f"{_SYMBOLS[name][0]} ", _SYMBOLS[name][1]).append(f"{words}   ")
    screen.print(legend)
    screen.print(Text(_before_words(found)))
    screen.print(Text(trend.words(), "bold yellow" if trend.slower else ""))


def _before_words(found: Starts) -> str:
    """The phases before the processes in a line: the median, and the slowest machine of each."""
    known = np.isfinite(found.before)
    if not known.any():
        return "before the processes: not known (no container or Slurm cgroup seen)"
    parts = []
    for at, words in enumerate(BEFORE.values()):
        if not known[:, at].any():
            parts.append(f"{words} not known")
            continue
        slowest = int(np.nanargmax(found.before[:, at]))
        median, most = found.median_before()[at], found.before[slowest, at]
        parts.append(f"{words} {median:.1f} s, at most {most:.1f} s in {found.machines[slowest]}")
    return f"before the processes: {'; '.join(parts)}"


def table(found: Starts, top: int) -> Table:
    """One row per machine: time until ready, phases as a bar, and the phase furthest above the median."""
    from rich.table import Table
    from rich.text import Text

    whole = np.nan_to_num(found.phases).sum(axis=1).max()
    scale = _WIDTH / whole if whole > 0 else 0.0
    worst, above = found.worst()
    median = found.median()
    ready = float(np.nanmedian(found.ready)) if np.isfinite(found.ready).any() else np.nan
    live_display = Table("machine", "gpu", "ready", "phases", "", box=None, pad_edge=False)
    live_display.columns[2].justify = "right"
    live_display.columns[3].no_wrap = True
    for at, machine in enumerate(found.machines[:top]):
        words = _words(found.phases[at], median, int(worst[at]), float(above[at]))
        bar = _bar(found.phases[at], scale)
        live_display.add_row(Text(machine), Text(found.gpus[at]), _short(found.ready[at]), bar, Text(words))
    live_display.add_row("median", "", _short(ready), _bar(median, scale), "", style="bold")
    return live_display


def _bar(phases: Any, scale: float) -> Text:
    from rich.text import Text

    bar = Text()
    # Round ends, not lengths, so that the bar has the length of its sum.
    ends = np.rint(np.clip(np.cumsum(np.nan_to_num(phases)) * scale, 0, _WIDTH)).astype(int)
    for name, length in zip(PHASES, np.diff(ends, prepend=0).tolist(), strict=True):
        bar.append(_SYMBOLS[name][0] * length, _SYMBOLS[name][1])
    return bar


def _words(phases: Any, median: Any, worst: int, above: float) -> str:
    if not np.isfinite(phases[1:]).any():
        return "no phases: the job started before the agent, or the probes were attached late"
    if above < 1 or above < 0.2 * np.nansum(median[:OWN]):
        return ""
    name = list(PHASES)[worst]
    return f"{PHASES[name]}: {phases[worst]:.1f} s, the median {median[worst]:.1f} s"


def _short(seconds: float) -> str:
    return f"{seconds:.1f} s" if np.isfinite(seconds) else "not seen"


def _head(found: Starts) -> str:
    begun = time_format.shown(int(found.start.min() * 1e9))
    text = f"{len(found.machines)} machines started at {begun} UTC"
    return f"{text}; {found.earlier} more in an earlier run (--until)" if found.earlier else text
