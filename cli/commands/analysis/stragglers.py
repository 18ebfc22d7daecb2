"""`peerwatch report stragglers`: what stragglers cost training jobs, from traces or from a store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.config import open_place
from cli.options import JsonOption
from cli.queries.analysis.logs import is_kineto, is_store
from cli.terminal import console, progress, say, say_json
from store.schema.contract import StoreError
from store.schema.time import SECOND

if TYPE_CHECKING:
    from analysis.whatif.model import Model
    from analysis.whatif.slowdown import Slowdown


def stragglers(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE",
            help="Operation timelines (Parquet, CSV); or Kineto traces of one job, files or a folder of them; or one "
            "recording, .db file or InfluxDB address of Peerwatch's own: all its jobs.",
        ),
    ],
    meta: Annotated[
        Path | None,
        typer.Option(help="YAML with the job's size (world_size, …); else meta-NAME.yaml beside trace-NAME.parquet."),
    ] = None,
    days: Annotated[float, typer.Option(min=0.01, max=366, help="Of a store: its last days.")] = 7.0,
    json: JsonOption = False,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page to this file as well.")] = None,
) -> None:
    """Replay training jobs without their stragglers: slowdown, GPU-hours lost, and to what."""
    if any(map(is_store, traces)):
        if len(traces) > 1 or meta is not None:
            raise ValueError("a store goes alone, without --meta: its jobs are found by themselves")
        _of_store(traces[0], days, json, html)
    else:
        _of_traces([*map(Path, traces)], meta, json, html)


def _of_traces(traces: list[Path], meta: Path | None, json: bool, html: Path | None) -> None:
    from cli.views.analysis import stragglers as stragglers_screen
    from cli.views.analysis import stragglers_html

    profiled = [trace for trace in traces if trace.is_file() and is_kineto(trace)]
    jobs = [[trace] for trace in traces if trace not in profiled] + [profiled] * bool(profiled)
    found = [(_name(job[0]), _analysed(job, meta)) for job in jobs]
    if html is not None:
        _write(html, stragglers_html.page(found))
    if json:
        say_json(stragglers_screen.as_json(found))
        return
    stragglers_screen.show(console(), found)
    if html is not None:
        say(f"{html}: heat map of the workers, shares by cause, slowdown of every step")


def _write(html: Path, page: str) -> None:
    try:
        html.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OSError(f"{html} cannot be written: {error.strerror}; use another file") from error


def _of_store(place: str, days: float, json: bool, html: Path | None) -> None:
    from analysis.whatif.fleet import read_losses
    from cli.views.analysis import losses, losses_html

    with closing(open_place(place)) as store:
        span = store.span()
        if span is None:
            raise StoreError(f"{place} holds no reading yet; start the agent (peerwatch agent)")
        first = max(span[0] - 1, span[1] - int(days * 86400 * SECOND))
        with progress("reading", (first, span[1])) as tell:
            found = read_losses(store, first, span[1], tell)
    if not found:
        raise StoreError(f"{place} holds no job of two ranks and more: it needs the table nccl with iterations")
    if html is not None:
        _write(html, losses_html.page(found))
    if json:
        say_json(losses.as_json(found))
        return
    losses.show(console(), found)
    if html is not None:
        say(f"{html}: GPU-hours lost by cause and day, heat map of the workers of each job")


def _name(trace: Path) -> str:
    return trace.name.split(".")[0].removeprefix("trace-") or trace.name


def _analysed(job: list[Path], meta: Path | None) -> Slowdown:
    """The measures of one job. Raises ValueError with the file's name."""
    from analysis.whatif.meta_file import JobMeta, beside, read_meta
    from analysis.whatif.slowdown import analyse, replays

    described = meta or beside(job[0])
    about = read_meta(described) if described else JobMeta()
    done = 0
    try:
        model = _model(job)
        with progress(f"replaying {job[0].name}", (0, replays(model))) as advance:

            def step() -> None:
                nonlocal done
                done += 1
                advance(done)

            return analyse(model, about, step)
    except ValueError as error:
        raise ValueError(f"{job[0]}: {error}" if str(job[0]) not in str(error) else str(error)) from error


def _model(job: list[Path]) -> Model:
    """The graph of a job's operations, with the notes of its reader."""
    from analysis.traces.reading import files_of, read_logs
    from analysis.whatif.model import build_model
    from analysis.whatif.timeline import timeline
    from analysis.whatif.trace_file import read_trace

    if not is_kineto(job[0]):
        read = read_trace(job[0])
        model = build_model(read.found)
        model.notes[:0] = read.notes
        return model
    files = files_of(job)
    with progress("reading", (0, len(files))) as tell:
        return timeline(read_logs(files, tell).operations)
