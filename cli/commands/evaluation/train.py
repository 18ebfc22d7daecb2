"""`peerwatch train-operator-model`: fit the operator model from generated logs; needs scikit-learn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.terminal import say

if TYPE_CHECKING:
    from detector.attribution.operator_log import Log
    from emulator.simulation.operator_log import OperatorsLog

SHAPES = ((2, 1, 1, 4, 1, 8), (4, 2, 1, 4, 1, 4), (2, 2, 2, 2, 2, 2), (4, 1, 4, 2, 1, 8))
LOGS, ITERATIONS = 48, 24
KINDS = ("gpu", "nic", "gpu", "nic", "none")


def train_operator_model(
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    seed: Annotated[int, typer.Option(help="Seed of the random numbers; equal seeds give equal models.")] = 1,
) -> None:
    """Fit the model that classifies communication operators as abnormal, from generated logs."""
    if output.is_dir() or not os.access(output.parent, os.W_OK):
        raise ValueError(f"{output} cannot be written: use a file in a writable folder")
    try:
        from detector.attribution.train import fit
    except ModuleNotFoundError as error:
        raise ValueError(f"training needs scikit-learn (make setup): {error}") from None
    import numpy as np

    from detector.attribution.operator_log import features_of, irregular, usual_of
    from emulator.simulation.operator_log import operators_log

    chance = np.random.default_rng(seed)
    samples, labels, healthy = [], [], []
    for number in range(LOGS):
        shape, kind = SHAPES[number % len(SHAPES)], KINDS[number % len(KINDS)]
        slower = float(chance.uniform(1.05, 1.5))
        generated = operators_log(shape, ITERATIONS, seed * 1000 + number, kind, slower)
        log = log_of(generated)
        usual = usual_of(log, ~generated.faulty)
        calm = np.flatnonzero(~generated.faulty & ~irregular(log.iteration_seconds))[-2:]
        for iteration in [*np.flatnonzero(generated.faulty)[-4:], *calm]:
            samples.append(features_of(log, int(iteration), usual))
            labels.append(generated.abnormal[iteration].reshape(-1))
            healthy.append(np.full(labels[-1].size, not generated.faulty[iteration]))
    forest = fit(np.concatenate(samples), np.concatenate(labels), np.concatenate(healthy), seed)
    forest.save(output)
    say(f"{output}: {forest.origin}, {np.concatenate(labels).mean():.1%} of the samples abnormal")


def train(
    output: Annotated[Path, typer.Argument(help="The file to write.")],
    seed: Annotated[int, typer.Option(help="Seed of the random numbers; equal seeds give equal models.")] = 1,
) -> None:
    """Deprecated: the old name of `peerwatch train-operator-model`."""
    say("peerwatch: train is deprecated: use peerwatch train-operator-model", err=True)
    train_operator_model(output, seed)


def log_of(generated: OperatorsLog) -> Log:
    """The part of a generated log that the detector uses."""
    import numpy as np

    from detector.attribution.operator_log import Log

    paired = np.array([pattern == "SendRecv" for pattern in generated.pattern])
    return Log(generated.elapsed, generated.group, generated.size, paired, generated.iteration_seconds)
