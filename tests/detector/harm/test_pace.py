"""The pace of a task with iterations longer than a block of time."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.pace import BLOCK_NS, SIGNALS, Pace
from detector.harm.rhythm import rhythm, trailing_mean
from detector.methods.peers.state import Panel
from detector.timeseries.live_window import Window

RNG = np.random.default_rng(53)


def swinging(blocks: int, period: float, signals: int = 3) -> np.ndarray:
    """[block, signal]: a task that computes in two thirds of each iteration and communicates in the rest."""
    phase = (np.arange(blocks)[:, None] / period + np.linspace(0, 0.1, signals)) % 1.0
    return np.where(phase < 2 / 3, 1.4, 0.2) + RNG.normal(0, 0.01, (blocks, signals))


@pytest.mark.parametrize("period", [3, 4, 6, 9])
def test_iterations_longer_than_a_block_are_averaged_out(period: int) -> None:
    """The averaged pace of a healthy task hardly swings, whatever its iteration's length."""
    shares = swinging(160, period)
    length = rhythm(shares)
    assert length >= period - 1
    assert abs(length - period * round(length / period)) <= 1
    averaged = trailing_mean(shares, length)[2 * period :]
    assert averaged.std(axis=0).max() < 0.6 * shares.std(axis=0).min()


def test_a_steady_pace_is_taken_as_it_is() -> None:
    """Small noise and a lasting fall call for no averaging, so that the fall is seen at once."""
    shares = 1 + RNG.normal(0, 0.007, (170, 4))
    assert rhythm(shares) == 1
    shares[91:] *= 0.6
    assert rhythm(shares) == 1


def test_noise_without_a_rhythm_is_averaged_over_few_blocks() -> None:
    """Noise alone delays little: fifteen seconds in most of many trials."""
    assert np.median([rhythm(1 + RNG.normal(0, 0.11, (177, 5))) for _ in range(31)]) <= 3


def test_few_blocks_are_taken_as_they_are() -> None:
    """Of less than a minute nothing can be said about a rhythm."""
    assert rhythm(swinging(7, 3)) == 1


def test_trailing_mean_leaves_out_what_is_unknown() -> None:
    """A block's mean is of the known ones among the last three; an unknown block stays unknown."""
    values = np.array([[2.0], [4.0], [np.nan], [9.0], [11.0]])
    found = trailing_mean(values, 3)[:, 0]
    np.testing.assert_allclose(found, [2.0, 3.0, np.nan, 6.5, 10.0])


def paced(levels: list[float]) -> Pace:
    """The pace of one task, a block each level; NaN: nothing is known."""
    pace, count = Pace(), len(levels)
    pace.tasks, pace.times = ["pretrain"], np.arange(1, count + 1) * BLOCK_NS
    pace.values = np.full((count, 1, len(SIGNALS)), np.nan, np.float32)
    pace.values[:, 0, :2] = np.array(levels)[:, None]
    pace.level = np.full((1, len(SIGNALS)), 0.6, np.float32)
    return pace


@pytest.mark.parametrize("unknown", [0, 4])
def test_what_a_task_needs_to_begin_is_no_pause(unknown: int) -> None:
    """Of a task that loads for long, then pauses for seven blocks, the pause alone counts."""
    begins = [np.nan] * unknown + [0.0] * 31
    pace = paced([*begins, *[0.6] * 23, *[0.0] * 7, *[0.6] * 29])
    assert pace.longest_pause("pretrain", int(pace.times[-1])) == 7 * BLOCK_NS
    assert pace.longest_pause("pretrain", int(pace.times[len(begins) + 9])) == 0


def test_a_task_is_asked_about_in_its_first_seconds() -> None:
    """Nothing is known of a task that has just begun beside others, or as another one ended: that is no error."""
    pace, panel = Pace(), Panel(Window("gpu"))
    for at, tasks in enumerate((["job 31"], ["job 31", "job 37"], ["job 37", "job 41"])):
        panel.tasks = tasks
        pace.add({"gpu": panel})
        assert not pace.paused(tasks[-1]).any()
        assert not pace.is_known_without(tasks[-1], "gpu.power_watts")
        pace.end((at + 1) * BLOCK_NS)
    assert pace.tasks == ["job 37", "job 41"]
    assert pace.values.shape[:2] == (3, 2)
