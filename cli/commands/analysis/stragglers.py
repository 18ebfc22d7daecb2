"""`peerwatch report stragglers`: what stragglers cost a training job, from a trace of its operations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import JsonOption
from cli.terminal import console, progress, say, say_json

if TYPE_CHECKING:
    from analysis.whatif.slowdown import Slowdown


def stragglers(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE", help="Operation timelines: Parquet or CSV, one row an operation, seconds."),
    ],
    meta: Annotated[
        Path | None,
        typer.Option(help="YAML with the job's size (world_size, …); else meta-NAME.yaml beside trace-NAME.parquet."),
    ] = None,
    json: JsonOption = False,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page to this file as well.")] = None,
) -> None:
    """Replay training jobs without their stragglers: slowdown, GPU-hours lost, and to what."""
    from cli.views.analysis import stragglers as stragglers_screen
    from cli.views.analysis import stragglers_html

    found = [(_name(trace), _analysed(trace, meta)) for trace in traces]
    if html is not None:
        try:
            html.write_text(stragglers_html.page(found), encoding="utf-8")
        except OSError as error:
            raise OSError(f"{html} cannot be written: {error.strerror}; use another file") from error
    if json:
        say_json(stragglers_screen.as_json(found))
        return
    stragglers_screen.show(console(), found)
    if html is not None:
        say(f"{html}: heat map of the workers, shares by cause, slowdown of every step")


def _name(trace: Path) -> str:
    return trace.name.split(".")[0].removeprefix("trace-") or trace.name


def _analysed(trace: Path, meta: Path | None) -> Slowdown:
    """The measures of one trace. Raises ValueError with the file's name."""
    from analysis.whatif.meta_file import JobMeta, beside, read_meta
    from analysis.whatif.model import build_model
    from analysis.whatif.slowdown import analyse, replays
    from analysis.whatif.trace_file import read_trace

    described = meta or beside(trace)
    job = read_meta(described) if described else JobMeta()
    read = read_trace(trace)
    done = 0
    try:
        model = build_model(read.found)
        with progress(f"replaying {trace.name}", (0, replays(model))) as advance:

            def step() -> None:
                nonlocal done
                done += 1
                advance(done)

            found = analyse(model, job, step)
    except ValueError as error:
        raise ValueError(f"{trace}: {error}") from error
    found.notes[:0] = read.notes
    return found
