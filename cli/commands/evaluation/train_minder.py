"""`peerwatch train-minder`: fit the model of the baseline `minder` from recordings; needs scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.terminal import progress, say


def train_minder(
    recordings: Annotated[
        list[Path], typer.Argument(help="Recordings, or folders of such; labels.json tells which parts are faulty.")
    ],
    output: Annotated[Path, typer.Option(help="The model file to write (.npz).")],
    denoiser: Annotated[
        str, typer.Option(help="perceptron: an autoencoder for each metric; components: a linear one.")
    ] = "perceptron",
    priority: Annotated[
        str, typer.Option(help="Order of metrics: tree (learned from labelled windows) or paper (the published one).")
    ] = "tree",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random numbers; equal seeds give equal models.")] = 0,
) -> None:
    """Fit the model of the baseline minder: nets on healthy windows, the order of metrics on labelled ones."""
    folder = output.absolute().parent
    if output.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{output} cannot be written: use a file in a writable folder")
    found = [inner for one in recordings for inner in _recordings(one)]
    try:
        from detector.evaluation.minder_training import train

        with progress("training", (0, len(found))) as tell:
            model = train(found, denoiser, priority, seed, tell)
    except ModuleNotFoundError as error:
        raise ValueError(f"training needs scikit-learn (make setup): {error}") from None
    model.save(output)
    say(
        f"{output}: {', '.join(model.metrics)}; {model.origin['windows']} windows of {len(found)} recordings, "
        f"mean squared error {model.origin['mean_squared_error']:g}, order: {model.origin['order']}"
    )


def _recordings(folder: Path) -> list[Path]:
    """The recording itself, or the recordings in a folder. Raises ValueError."""
    if any(folder.glob("*.parquet")):
        return [folder]
    inner = sorted({file.parent for file in folder.glob("*/*.parquet")})
    if not inner:
        raise ValueError(f"{folder} holds no recording; write some with peerwatch simulate or peerwatch export")
    return inner
