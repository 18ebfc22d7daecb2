"""`peerwatch simulate`: recordings of pretend fleets with known faults, to try the detector on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.terminal import progress, say
from emulator.simulation.faults import FAULTS, WEAK

if TYPE_CHECKING:
    from emulator.simulation.simulate import Plan

KINDS = (*FAULTS, *WEAK)


def simulate(
    folder: Annotated[Path, typer.Argument(help="Folder that the recording is written to.")],
    machines: Annotated[int, typer.Option(min=1, help="Machines in the fleet, up to 10,000.")] = 64,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in each machine.")] = 8,
    minutes: Annotated[float, typer.Option(help="Length of the recording.")] = 30.0,
    step: Annotated[float, typer.Option(help="Seconds from one reading to the next.")] = 1.0,
    fault: Annotated[
        str,
        typer.Option(
            help=f"What goes wrong: {', '.join(KINDS)}; A,B strike together, random draws one, none is healthy.",
            autocompletion=lambda: ["random", "none", *KINDS],
        ),
    ] = "random",
    stages: Annotated[int, typer.Option(min=0, help="Stages of the pipeline; 0 draws.")] = 0,
    shifts: Annotated[bool, typer.Option(help="Give single stages less to do for minutes at a time.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same recording.")] = 0,
    many: Annotated[
        int, typer.Option(min=0, help="Write so many recordings into the folder; sizes, steps and faults are drawn.")
    ] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace the recording that is there.")] = False,
) -> None:
    """Write a recording of a pretend fleet, or many; labels.json says what is wrong with each."""
    from emulator.simulation import simulate as pretend

    if many:
        for name, plan in pretend.many(many, seed):
            _write(folder / name, plan, overwrite)
        say(f"{many} recordings in {folder}; try: peerwatch evaluate {folder}")
        return
    labels = _write(folder, pretend.Plan(machines, gpus, minutes, step, fault, seed, stages, shifts), overwrite)
    wrong = ", ".join(f"{one['kind']} on {one['machine']}" for one in labels["faults"]) or "nothing"
    say(f"wrong in {folder}: {wrong}; try: peerwatch replay {folder}")


def _write(folder: Path, plan: Plan, overwrite: bool) -> dict[str, Any]:
    from emulator.simulation.simulate import pieces
    from store.transfer.export import RecordingWriter

    labels, parts = pieces(plan)
    with RecordingWriter(folder, overwrite) as writer, progress(f"simulating {folder}", _span(plan)) as tell:
        for part in parts:
            for table, columns in part.items():
                writer.add(table, columns)
            tell(int(max(columns["time"][-1] for columns in part.values() if len(columns["time"]))))
        writer.label(labels)
    return labels


def _span(plan: Plan) -> tuple[int, int]:
    from emulator.simulation.fleet_model import START
    from store.schema.time import SECOND

    return START, START + int(plan.minutes * 60 * SECOND)
