"""`peerwatch simulate`: a recording of a pretend fleet with a known fault, to try the detector on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    folder: Annotated[Path, typer.Argument(help="Folder that the recording is written to.")],
    machines: Annotated[int, typer.Option(min=1, help="Machines in the fleet.")] = 64,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in each machine.")] = 8,
    minutes: Annotated[float, typer.Option(help="Length of the recording.")] = 30.0,
    step: Annotated[float, typer.Option(help="Seconds from one reading to the next.")] = 1.0,
    fault: Annotated[str, typer.Option(help="What goes wrong; `random` draws a fault, `none` is healthy.")] = "random",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same recording.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace the folder if it is there.")] = False,
) -> None:
    """Write a recording of a pretend fleet; labels.json says what is wrong with it."""
    from emulator import simulate as pretend
    from store.export import write_recording

    tables, labels = pretend.simulate(machines, minutes, step, fault, seed, gpus)
    write_recording(folder, tables, labels, overwrite)
    wrong = ", ".join(f"{one['kind']} on {one['machine']}" for one in labels["faults"]) or "nothing"
    typer.echo(f"wrong in {folder}: {wrong}; try: peerwatch replay {folder}")
