"""`peerwatch evaluate`: accuracy, delay and cost of the detector and baselines on labelled recordings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.terminal import console, progress, say, say_json

if TYPE_CHECKING:
    from detector.evaluation.labels import Outcome

_ROWS = (
    ("recordings", ("recordings",)),
    ("precision, by recording", ("precision",)),
    ("recall", ("recall",)),
    ("F1", ("f1",)),
    ("precision, by fault", ("by_fault", "precision")),
    ("recall", ("by_fault", "recall")),
    ("F1", ("by_fault", "f1")),
    ("right machine first", ("right_machine",)),
    ("right device", ("right_device",)),
    ("delay, median (s)", ("delay_median_s",)),
    ("delay, P90 (s)", ("delay_p90_s",)),
    ("false alarms per 1,000 healthy machine-hours", ("false_per_1000h",)),
    ("healthy machine-hours", ("machine_hours",)),
    ("false alarms on other machines during a fault", ("blamed",)),
    ("CPU time a step (ms)", ("step_ms",)),
    ("memory of the method (MB)", ("state_mb",)),
)


def evaluate(
    folders: Annotated[list[Path], typer.Argument(help="Labelled recordings, or folders of such.")],
    methods: Annotated[
        str, typer.Option(help="Methods to compare: peerwatch, minder, median, mahalanobis.")
    ] = "peerwatch,minder,median,mahalanobis",
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds after the end of a fault in which a verdict still counts.")
    ] = 60,
    jobs: Annotated[int, typer.Option(min=0, help="Recordings in parallel; 0: one per core.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print all figures and failures as one JSON object.")] = False,
    failures: Annotated[bool, typer.Option(help="Also list missed faults and false alarms.")] = False,
) -> None:
    """Replay labelled recordings through several methods: precision, recall, delay and cost of each."""
    from detector.evaluation.metrics import figures
    from detector.evaluation.run import methods_of

    names = [name.strip() for name in methods.split(",") if name.strip()]
    for name in names:
        methods_of(name)  # refuse a wrong name before the work
    outcomes = _outcomes(_recordings(folders), names, grace, jobs or os.cpu_count() or 1)
    by_method = {name: [one for one in outcomes if one.method == name] for name in names}
    found = {name: figures(mine) for name, mine in by_method.items()}
    if json:
        say_json({"methods": found, "failures": [line for one in outcomes for line in _failures(one)]})
        return
    console().print(_table(found))
    for table in (_parts("kind of fault", "by_kind", found), _parts("machines", "by_machines", found)):
        console().print("\n", table)
    if failures:
        for line in (line for one in outcomes for line in _failures(one)):
            say(" ".join(f"{key}={value}" for key, value in line.items() if value not in (None, "")))


def _recordings(folders: Sequence[Path]) -> list[Path]:
    """The recordings: the folders themselves, or their subfolders."""
    found: list[Path] = []
    for folder in folders:
        inner = sorted(file.parent for file in folder.glob("*/labels.json"))
        if not (folder / "labels.json").is_file() and not inner:
            raise ValueError(f"{folder} holds no labels.json")
        found += [folder] if (folder / "labels.json").is_file() else inner
    return found


def _outcomes(recordings: Sequence[Path], names: Sequence[str], grace: float, jobs: int) -> list[Outcome]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from detector.evaluation.run import evaluate as measure

    # Spawned: a forked child would share the state of numpy's and Arrow's threads.
    pool = ProcessPoolExecutor(min(jobs, len(recordings)), get_context("spawn"))
    with pool, progress("evaluating", (0, len(recordings))) as tell:
        work = [pool.submit(measure, folder, names, grace) for folder in recordings]
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


def _table(found: dict[str, dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table("", *found, box=None, pad_edge=False)
    for label, path in _ROWS:
        table.add_row(label, *(_shown(_at(figures, path)) for figures in found.values()))
    return table


def _parts(title: str, key: str, found: dict[str, dict[str, Any]]) -> Any:
    """Number of faults found and the median delay, for each kind of fault or fleet size."""
    from rich.table import Table

    table = Table(title, *found, box=None, pad_edge=False)
    for part in sorted({part for figures in found.values() for part in figures[key]}, key=_in_order):
        table.add_row(part, *(_part(figures[key].get(part)) for figures in found.values()))
    return table


def _part(part: dict[str, Any] | None) -> str:
    if part is None:
        return "–"
    right, there = part.get("found", part.get("right")), part.get("faults", part.get("of"))
    delay = "" if part["delay_median_s"] is None else f" in {part['delay_median_s']:g} s"
    wrong = f", {part['wrong']} wrong" if part.get("wrong") else ""
    return f"{right} of {there}{delay}{wrong}"


def _in_order(part: str) -> tuple[int, str]:
    return (int(part.split()[1]) + part.startswith("over"), "") if part.split()[-1].isdigit() else (0, part)


def _at(figures: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = figures
    for key in path:
        value = value[key]
    return value


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:,g}" if isinstance(value, int | float) else str(value)
