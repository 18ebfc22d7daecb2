"""`peerwatch simulate`: generate recordings of simulated fleets with known faults."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import renamed
from cli.terminal import progress, say
from emulator.simulation.faults import FAULTS, WEAK

if TYPE_CHECKING:
    from emulator.simulation.simulate import Plan

KINDS = (*FAULTS, *WEAK)
WHOLE = ("task", "event")


def simulate(
    folder: Annotated[Path, typer.Argument(help="Folder of the new recording.")],
    machines: Annotated[int, typer.Option(min=1, help="Number of machines, up to 10,000.")] = 64,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs per machine.")] = 8,
    minutes: Annotated[float, typer.Option(help="Length of the recording in minutes.")] = 30.0,
    step: Annotated[float, typer.Option(help="Seconds between readings.")] = 1.0,
    fault: Annotated[
        str,
        typer.Option(
            help=f"Kind of fault: {', '.join(KINDS)}; A,B: both at once; random: drawn; none: healthy.",
            autocompletion=lambda: ["random", "none", *KINDS],
        ),
    ] = "random",
    stages: Annotated[int, typer.Option(min=0, help="Pipeline stages; 0: drawn at random.")] = 0,
    stage_shifts: Annotated[
        bool, typer.Option("--stage-shifts/--no-stage-shifts", help="Give single stages less load for minutes.")
    ] = False,
    shifts: Annotated[bool, typer.Option("--shifts", hidden=True, help="Old name of --stage-shifts.")] = False,
    disturbances: Annotated[
        str,
        typer.Option(
            help="Harmless things (cron, backups, agent restarts, corrected errors ...): none, some or many.",
            autocompletion=lambda: ["none", "some", "many"],
        ),
    ] = "none",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the random numbers; equal seeds give equal recordings.")
    ] = 0,
    many: Annotated[
        int, typer.Option(min=0, help="Write this many recordings with random sizes, steps and faults.")
    ] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing recording.")] = False,
) -> None:
    """Generate a recording of a simulated fleet, or many; labels.json has the faults of each."""
    from emulator.simulation import simulate as simulator

    if many:
        for name, drawn in simulator.many(many, seed, disturbances=disturbances):
            _write(folder / name, drawn, overwrite)
        say(f"{many} recordings in {folder}; try: peerwatch evaluate {folder}")
        return
    shifts = stage_shifts or renamed(shifts, "--shifts", "--stage-shifts")
    plan = simulator.Plan(machines, gpus, minutes, step, fault, seed, stages, shifts, disturbances)
    labels = _write(folder, plan, overwrite)
    faults = ", ".join(f"{one['kind']} on {one['machine']}" for one in labels["faults"]) or "none"
    say(f"{folder}: faults: {faults}; try: peerwatch replay {folder}")


def _write(folder: Path, plan: Plan, overwrite: bool) -> dict[str, Any]:
    from emulator.simulation.simulate import pieces
    from store.transfer.export import RecordingWriter

    labels, parts = pieces(plan)
    with RecordingWriter(folder, overwrite) as writer, progress(f"simulating {folder}", _span(plan)) as tell:
        for part in parts:
            for table, columns in part.items():
                writer.add(table, columns)
            # Tasks and events come whole, before the readings: they say nothing of how far it is.
            ends = [columns["time"] for table, columns in part.items() if table not in WHOLE and len(columns["time"])]
            if ends:
                tell(int(max(times[-1] for times in ends)))
        writer.label(labels)
    return labels


def _span(plan: Plan) -> tuple[int, int]:
    from emulator.simulation.fleet_model import START
    from store.schema.time import SECOND

    return START, START + int(plan.minutes * 60 * SECOND)
