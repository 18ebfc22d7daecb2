"""`peerwatch doctor`: each source and probe with its state, the reason, and the remedy."""

from __future__ import annotations

import json as text
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.config import Settings, open_place, read_settings
from cli.options import ConfigOption
from cli.queries.agent_service import UNSEEN, report, source_finding
from cli.queries.delivery_health import START, Finding, sinks, stream, writers
from cli.queries.remedies import remedy
from cli.terminal import console
from cli.time_format import ago
from store.nats.config import is_stream
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from agent.context import Context

LOOK_S = 20.0
"""How long to wait for the answers about the libraries of running processes."""
_CELL = 4096
STYLE = {"on": "green", "off": "dim", "blocked": "bold red"}


def doctor(
    config: ConfigOption = None,
    store: Annotated[str | None, typer.Option(help="Where the readings are.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """Ask the agent of this machine for its sources and probes, or look at them where none runs.

    Exit code: 0 nothing is blocked, 1 something is.
    """
    settings = read_settings(config)
    place = store or os.environ.get("PEERWATCH_STORE") or settings.store
    agent, reported = report(place, settings)
    findings = [
        agent,
        *([_mended(finding) for finding in reported] or [*_sources(settings), _stacks()]),
        *_surroundings(),
        _store(place, settings),
        *writers(settings, place),
        *sinks(settings, place),
    ]
    if json:
        typer.echo(text.dumps([asdict(finding) for finding in findings]))
    else:
        _show(findings)
    raise typer.Exit(int(any(finding.state == "blocked" for finding in findings)))


def _sources(settings: Settings) -> Iterator[Finding]:
    """Open each source as the agent does, read it once, and put probes on what runs now, for a moment."""
    from agent.config import SOURCES
    from agent.context import SourceUnavailableError
    from agent.sampling import loop
    from agent.sampling.reader import Reader

    context = loop.open_context(settings.agent)
    reader = Reader()
    try:
        for name in SOURCES:
            if name not in settings.agent.sources:
                yield Finding(f"source {name}", "off", "not in the configuration", f'add "{name}" to agent.sources')
                continue
            try:
                reader.workers.append(loop.open_worker(context, name))
            except (SourceUnavailableError, OSError, ValueError) as error:
                yield _blocked(f"source {name}", str(error))
        batch = loop.read_once(reader, time.time_ns(), settings.agent.name, LOOK_S)
        limits = {worker.name: getattr(worker.source, "limited", "") for worker in reader.workers}
        for sample in batch.samples:
            if sample.table == "source" and sample.values["source"] in SOURCES:
                found = source_finding(sample.values)
                yield _mended(replace(found, why=found.why or limits[str(sample.values["source"])]))
            elif sample.table == "probe" and str(sample.values["library"]).startswith(("tracepoint ", "probes: ")):
                name, why = str(sample.values["library"]), str(sample.values["reason"] or "")
                yield _blocked(name, why) if sample.values["state"] == "blocked" else Finding(name, "on", why)
        yield from _libraries(context)
    finally:
        loop.close(reader, context)


def _libraries(context: Context) -> Iterator[Finding]:
    if context.attachments is None:
        return
    deadline = time.monotonic() + LOOK_S
    while context.attachments.busy and time.monotonic() < deadline:
        time.sleep(0.2)
        context.attachments.update()
    libraries = context.attachments.libraries.values()
    if not libraries:
        yield Finding("libraries", "off", "no process maps libnccl or libcudart now", "start a training process")
    for library in libraries:
        name = f"library {library.path}"
        pids = ", ".join(str(process.pid) for process in sorted(library.users, key=lambda user: user.pid))
        if library.state == "blocked":
            yield _blocked(name, f"{library.words} (pid {pids})")
        else:
            found = [
                f"{len(library.probes)} probes, pid {pids}",
                *["layout known"] * bool(library.layout),
                library.words,
            ]
            yield Finding(name, "on", "; ".join(filter(None, found)))
    if any(library.state == "on" and "nccl" in library.name for library in libraries):
        yield UNSEEN


def _surroundings() -> Iterator[Finding]:
    try:
        Path("/proc/pressure/cpu").read_text()
        yield Finding("pressure (PSI)", "on")
    except OSError:
        yield Finding("pressure (PSI)", "off", "this kernel does not account for it", "boot with psi=1")
    compiler = shutil.which("cc")
    yield (
        Finding("emulated fleet", "on")
        if compiler
        else Finding("emulated fleet", "off", "there is no C compiler", "apt-get install gcc libc6-dev")
    )


def _stacks() -> Finding:
    """Take the stacks of this very process, as the agent takes those of others."""
    from agent.process.procfs import Processes
    from agent.stacks.py_spy import spy_path
    from agent.stacks.worker import take

    me = Processes().find(os.getpid())
    found = take(me, spy_path()) if me else {"form": "none", "error": "/proc does not show this process"}
    if found["form"] == "python":
        return Finding("stacks", "on", "Python stacks of ranks that hang; kernel stacks of other processes")
    why = str(found["error"])
    return Finding("stacks", "off", f"kernel stacks only: {why}", remedy(why))


def _store(place: str, settings: Settings) -> Finding:
    name = f"store {place}"
    if is_stream(place):
        return stream(place, settings)
    try:
        store = open_place(place, settings=settings)
        try:
            span = store.span()
        finally:
            store.close()
    except StoreError as error:
        return Finding(name, "off", str(error), START)
    if span is None:
        return Finding(name, "off", "it holds no reading yet", START)
    age_s = (time.time_ns() - span[1]) / 1e9
    return Finding(name, "on" if age_s < 60 else "off", f"last reading {ago(age_s)} ago", "" if age_s < 60 else START)


def _blocked(name: str, why: str) -> Finding:
    return _mended(Finding(name, "blocked", why))


def _mended(finding: Finding) -> Finding:
    """The finding with the remedy of its reason, where it is blocked and one is known."""
    known = remedy(finding.why) if finding.state == "blocked" else ""
    return replace(finding, mend=known or finding.mend)


def _show(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from agent.stacks.kernel_threads import plain

    table = Table("what", "is", "why", "mend", box=None, pad_edge=False)
    for finding in findings:
        # Users choose paths, so these may contain control characters of a terminal.
        name, why = (Text(plain(words, _CELL)) for words in (finding.name, finding.why))
        table.add_row(name, Text(finding.state, STYLE[finding.state]), why, Text(finding.mend, "cyan"))
    console().print(table)
