"""Share: whether a machine's GPUs have less to do beside their peers than those of any other machine."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.share import BUSY, SIGNALS, Share


@pytest.mark.parametrize(("without", "answer"), [(40, True), (17, None)])
def test_what_lasts_longer_than_is_remembered_has_nothing_to_be_compared_with(
    without: int, answer: bool | None
) -> None:
    """Of 170 blocks a quarter of those with a deviation, at least, has to be without it."""
    machines, blocks = 9, 170
    values = np.random.default_rng(21).normal(0, 0.004, (blocks, machines, len(SIGNALS))).astype(np.float32)
    on = np.arange(blocks) >= without
    values[:, 4, BUSY] -= 0.07 * on[:, None]
    share = Share({f"m{at}": at for at in range(machines)}, values)
    assert share.held_up("m4", on, np.ones(blocks, bool), 1) is answer


@pytest.mark.parametrize(("lost", "answer"), [(0.12, True), (0.0, False)])
def test_an_effect_that_comes_and_goes_is_no_noise(lost: float, answer: bool) -> None:
    """A machine waits in some of its long iterations, ever longer, and none of the others does; or it does not wait."""
    machines, blocks = 9, 70
    values = np.random.default_rng(22).normal(0, 0.003, (blocks, machines, len(SIGNALS))).astype(np.float32)
    on = np.arange(blocks) >= 20
    swings = (np.arange(blocks) // 6 % 2) * np.linspace(0.2, 1.8, blocks)
    values[:, 5, BUSY[0]] -= lost * on * swings
    share = Share({f"m{at}": at for at in range(machines)}, values)
    assert share.held_up("m5", on, np.ones(blocks, bool), 1) is answer
