"""Whether JumpStarter's faults of single machines show at all beside machines of the same load, by any reading."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = pytest.mark.bench
FILE = os.environ.get("PEERWATCH_JUMPSTARTER", "")
"""The data set's machines.npz."""
INCIDENTS = (((0, 2, 3, 28, 29), 4540, 4815), ((28,), 2841, 3034))
"""Machines labelled together while fewer than a quarter are, and the steps of five minutes at which."""
DAY, HOURS_2, LOAD = 288, 24, 13
Floats = NDArray[np.float64]


def _figures(readings: Floats, begin: int, end: int) -> Floats:
    """[figure, machine]: levels, extremes and spread in the incident, against two days before, and its first step."""
    during, before = readings[:, begin:end], readings[:, begin - 2 * DAY : begin - HOURS_2 // 2]
    found = [np.diff(during, axis=1).std(1)]
    found.append(readings[:, begin : begin + HOURS_2].mean(1) - readings[:, begin - HOURS_2 : begin - 2].mean(1))
    for of in (np.mean, np.median, np.std, np.max, np.min):
        found += [of(during, axis=1), of(during, axis=1) - of(before, axis=1)]
    return np.concatenate(found, axis=1).T


def _apart(figures: Floats, labelled: NDArray[np.bool_]) -> Floats:
    """[figure]: how well it tells the labelled machines from the others: 0.5 as dice do, 1 without fail."""
    one, other = figures[:, labelled, None], figures[:, None, ~labelled]
    return np.abs(((one > other) + 0.5 * (one == other)).mean((1, 2)) - 0.5) + 0.5


@pytest.mark.skipif(not FILE, reason="PEERWATCH_JUMPSTARTER names no file")
@pytest.mark.parametrize(("machines", "begin", "end"), INCIDENTS)
def test_labels_against_chance(machines: tuple[int, ...], begin: int, end: int) -> None:
    """The bench compares labelled machines with as many random ones, by every figure of every reading."""
    values = np.load(FILE)["test"].astype(np.float64)
    level = np.median(values[:, :, LOAD], axis=1)
    alike = np.flatnonzero(level > 0.5 * level.max())
    group, labelled = values[alike], np.isin(alike, machines)
    figures = np.concatenate([_figures(x, begin, end) for x in (group, group - np.median(group, axis=0))])
    figures = figures[np.ptp(figures, axis=1) > 0]
    dice = np.random.default_rng(3)
    drawn = [_apart(figures, dice.permutation(labelled)) for _ in range(1000)]
    ours = _apart(figures, labelled)
    print(
        f"\n{len(machines)} of {len(alike)} machines of one load, {len(figures)} figures: the best tells the labelled "
        f"ones apart at {ours.max():.2f}, all at {ours.mean():.3f} on average; of as many drawn at random "
        f"{np.mean([x.max() >= ours.max() for x in drawn]):.0%} do as well by the best, "
        f"{np.mean([x.mean() >= ours.mean() for x in drawn]):.0%} on average"
    )
