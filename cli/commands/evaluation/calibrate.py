"""`peerwatch calibrate`: learn alarm thresholds from healthy recordings of the own fleet."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.config import read_settings
from cli.options import DetectorConfigOption
from cli.terminal import console, progress, say, say_json

if TYPE_CHECKING:
    from detector.calibration import Calibration
    from detector.config import Config
    from detector.evaluation.calibrate import Studied


def calibrate(
    folders: Annotated[list[Path], typer.Argument(help="Recordings of a healthy fleet, or folders of such.")],
    budget: Annotated[
        str | None,
        typer.Option(
            help="Tolerated rate of false alarms, such as '1/week/1000 machines'; default: the configured one."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write; name it in detector.calibration.")] = Path(
        "calibration.json"
    ),
    config: DetectorConfigOption = None,
    jobs: Annotated[int, typer.Option(min=0, help="Recordings in parallel; 0: one per core.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Learn alarm thresholds from healthy recordings for a stated rate of false alarms."""
    from detector.calibration import Budget, budget_of, save
    from detector.evaluation.calibrate import calibrate as learn

    settings = read_settings(config).detector
    usual = settings.false_pages_per_1000_machine_hours
    if not budget and not usual:
        raise typer.BadParameter("detector.false_pages_per_1000_machine_hours is 0: give a --budget")
    allowed = budget_of(budget) if budget else Budget(usual, 1, 1000)
    found = learn(_studied(_recordings(folders), settings, jobs or os.cpu_count() or 1), allowed, settings)
    save(found, out)
    if json:
        say_json(_as_json(found, out))
        return
    console().print(_table(found, settings))
    say("\n".join(["", *_remarks(found), f'{out} is written; use it with detector.calibration = "{out}"']))


def _recordings(folders: Sequence[Path]) -> list[Path]:
    """The recordings: the folders themselves, or their subfolders."""
    found: list[Path] = []
    for folder in folders:
        inner = (
            [folder] if any(folder.glob("*.parquet")) else sorted({file.parent for file in folder.glob("*/*.parquet")})
        )
        if not inner:
            raise ValueError(f"{folder} holds no recording: create one with peerwatch export {folder}")
        found += inner
    return found


def _studied(recordings: Sequence[Path], config: Config, jobs: int) -> Iterator[Studied]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from detector.evaluation.calibrate import study
    from store.recording import Recording

    if len(recordings) == 1:
        with progress("calibrating", Recording(recordings[0]).span() or (0, 0)) as tell:
            yield study(recordings[0], config, tell)
        return
    # Spawned: a forked child would share the state of numpy's and Arrow's threads.
    pool = ProcessPoolExecutor(min(jobs, len(recordings)), get_context("spawn"))
    with pool, progress("calibrating", (0, len(recordings))) as tell:
        try:
            work = [pool.submit(study, folder, config) for folder in recordings]
            for done, one in enumerate(as_completed(work), 1):
                yield one.result()
                tell(done)
        finally:
            pool.shutdown(cancel_futures=True)


def _table(found: Calibration, config: Config) -> Any:
    """A line for each reading with excursions, and for other methods."""
    from rich.table import Table

    table = Table("reading or method", "excursions", "highest", "threshold", "earliest alarm", box=None, pad_edge=False)
    for name, streams in found.tables.items():
        for reading, one in streams.items():
            if one.peaks:
                soonest = f"{config.earliest_alarm_seconds(name) * one.multiplier:.0f} s"
                cells = f"{len(one.peaks)}", f"{max(one.peaks):.2f}", f"{one.multiplier:.2f}", soonest
                table.add_row(f"{name}.{reading}", *cells)
    for what, tail in found.tails.items():
        few = " (too few to learn from)" if not tail.scale else ""
        table.add_row(what, f"{tail.excursions}{few}", f"{tail.highest:.2f}", f"{tail.caution:.2f}", "–")
    return table


def _remarks(found: Calibration) -> Iterator[str]:
    """The limits of the data, as text."""
    many = "s" * (found.recordings != 1)
    yield (
        "Evidence is in multiples of the uncalibrated alarm threshold. "
        f"From {found.machine_hours:,.1f} healthy machine-hours in {found.recordings} recording{many};"
    )
    wanted = 1 / found.budget.rate
    if found.beyond > 1:
        yield (
            f"one false alarm in {wanted:,.0f} machine-hours needs {found.beyond:,.0f} times as many: "
            "the threshold extrapolates the tail of the distribution."
        )
    else:
        yield f"one false alarm in {wanted:,.0f} machine-hours is within the data."
    for what, tail in found.tails.items():
        if tail.heavy:
            yield f"{what}: some peaks are far above the others; expect more false alarms than the budget."


def _as_json(found: Calibration, out: Path) -> dict[str, Any]:
    import msgspec

    content: dict[str, Any] = msgspec.to_builtins(found)
    return {**content, "file": str(out), "beyond": round(found.beyond, 2)}
