"""`peerwatch evaluate`: accuracy, delay and cost of the detector and baselines on labelled recordings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.config import detector_config, read_settings
from cli.options import DetectorConfigOption
from cli.terminal import console, progress, say, say_json

if TYPE_CHECKING:
    from detector.evaluation.outcome import Outcome

METHODS = (
    "peerwatch, minder, median, mahalanobis, distribution; minder's ablations: minder-raw, minder-concatenated, "
    "minder-integrated, minder-manhattan, minder-chebyshev, minder-no-continuity"
)


def evaluate(
    folders: Annotated[list[Path], typer.Argument(help="Labelled recordings, or folders of such, of any generator.")],
    methods: Annotated[
        str, typer.Option(help=f"Methods to compare: {METHODS}.")
    ] = "peerwatch,minder,median,mahalanobis",
    minder_model: Annotated[
        Path | None, typer.Option(help="Model of minder (train-minder); without one it learns from what it has seen.")
    ] = None,
    config: DetectorConfigOption = None,
    groups: Annotated[
        str, typer.Option(help="Faulty machines of one rack or switch: one (a fault together) or each (one a machine).")
    ] = "one",
    window: Annotated[
        float, typer.Option(min=0, help="Also count windows of this many minutes, machine by machine; 0: none.")
    ] = 0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds after the end of a fault in which a verdict still counts.")
    ] = 60,
    jobs: Annotated[int, typer.Option(min=0, help="Recordings in parallel; 0: one per core.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print all figures and failures as one JSON object.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with tables and charts.")] = None,
    failures: Annotated[bool, typer.Option(help="Also list missed faults and false alarms.")] = False,
) -> None:
    """Replay labelled recordings through several methods: precision, recall, delay and cost of each."""
    from detector.evaluation.metrics import figures

    names = [name.strip() for name in methods.split(",") if name.strip()]
    measure = _measure(names, (grace, groups, 60 * window), minder_model, config)
    if html and (html.is_dir() or not os.access(html.absolute().parent, os.W_OK)):
        raise ValueError(f"{html} cannot be written: use a file in a writable folder")
    outcomes = _outcomes(_recordings(folders), measure, jobs or os.cpu_count() or 1)
    found = {name: figures([one for one in outcomes if one.method == name]) for name in names}
    counted = _counted(groups, grace, outcomes)
    if html:
        from cli.views.evaluation.page import page

        html.write_text(page(found, counted), encoding="utf-8")
    if json:
        listed = [line for one in outcomes for line in _failures(one)]
        say_json({"counted": counted, "methods": found, "failures": listed})
        return
    _show(found, counted)
    for line in (line for one in outcomes * failures for line in _failures(one)):
        say(" ".join(f"{key}={value}" for key, value in line.items() if value not in (None, "")))


def _show(found: dict[str, dict[str, Any]], counted: str) -> None:
    from cli.views.evaluation.tables import parts, summary

    console().print(summary(found))
    for title, key in (("kind of fault", "by_kind"), ("machines", "by_machines")):
        console().print("\n", parts(title, key, found))
    say(f"\n{counted}")


def _measure(
    names: Sequence[str], counting: tuple[float, str, float], model: Path | None, config: Path | None
) -> Callable[[Path], list[Outcome]]:
    """What is done with a recording, with wrong names and files refused before the work. Raises ValueError."""
    from functools import partial

    from detector.evaluation.outcome import Counting
    from detector.evaluation.run import evaluate as measure
    from detector.evaluation.run import methods_of
    from detector.methods.baselines.minder_model import load

    if not names:
        raise ValueError(f"--methods names no method: choose of {METHODS}")
    for name in names:
        methods_of(name)
    if counting[1] not in ("one", "each"):
        raise ValueError(f"--groups is {counting[1]}: it must be one or each")
    settings = detector_config(read_settings(config))
    return partial(measure, names=names, how=Counting(*counting), model=load(model) if model else None, config=settings)


def _counted(groups: str, grace: float, outcomes: Sequence[Outcome]) -> str:
    """How it was counted, in a sentence."""
    together = max((1 + len(one.fault.others) for outcome in outcomes for one in outcome.found), default=1)
    named = (
        f"faulty machines of one rack or switch count as one fault (at most {together} here), found where any is named"
        if groups == "one"
        else "each faulty machine of a rack or switch counts as one fault"
    )
    return f"{named}; a verdict counts until {grace:g} s after a fault's end; ranges are 95 % intervals"


def _recordings(folders: Sequence[Path]) -> list[Path]:
    """The recordings: the folders themselves, or their subfolders."""
    found: list[Path] = []
    for folder in folders:
        inner = sorted(file.parent for file in folder.glob("*/labels.json"))
        if not (folder / "labels.json").is_file() and not inner:
            raise ValueError(f"{folder} holds no labels.json")
        found += [folder] if (folder / "labels.json").is_file() else inner
    return found


def _outcomes(recordings: Sequence[Path], measure: Callable[[Path], list[Outcome]], jobs: int) -> list[Outcome]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # Spawned: a forked child would share the state of numpy's and Arrow's threads.
    pool = ProcessPoolExecutor(min(jobs, len(recordings)), get_context("spawn"))
    with pool, progress("evaluating", (0, len(recordings))) as tell:
        work = [pool.submit(measure, folder) for folder in recordings]
        try:
            for done, _ in enumerate(as_completed(work), 1):
                tell(done)
            return [outcome for one in work for outcome in one.result()]
        finally:
            pool.shutdown(cancel_futures=True)


def _failures(outcome: Outcome) -> list[dict[str, Any]]:
    """Missed faults and false alarms, one object each."""
    where = {"method": outcome.method, "recording": outcome.recording, "machines": outcome.machines}
    missed = [
        {"what": "missed", **where, "machine": one.fault.machine, "device": one.fault.device, "kind": one.fault.kind}
        for one in outcome.found
        if one.delay_s is None
    ]
    vain = [
        {"what": "false", **where, "time": alarm.time, "machine": alarm.machine, "device": alarm.device}
        | {"by": alarm.kind, "metric": alarm.metric, "during": alarm.during, "message": alarm.message}
        for alarm in outcome.alarms
    ]
    return missed + vain
