"""Loss: whether a task goes slower while a machine deviates."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.before_after import NO, YES
from detector.harm.blamed import Blamed
from detector.harm.loss import goes_slower, lingers
from detector.harm.pace import SIGNALS
from detector.model.verdict import Verdict
from tests.detector.harm.test_pace import swinging
from tests.detector.harm.test_silence import standing


@pytest.mark.parametrize(
    ("metric", "is_slower"), [("rdma.transmit_bytes_total", False), ("gpu.duty_cycle_ratio", True)]
)
def test_the_edges_of_a_pause_are_no_loss_of_pace(metric: str, is_slower: bool) -> None:
    """A checkpoint of 10 s takes half of the blocks next to it; other traffic since then does no harm by that.

    What a device is at may be why the task pauses, so that these blocks count for it.
    """
    shares = np.random.default_rng(27).normal(1, 0.004, (64, len(SIGNALS)))
    shares[59:63] *= np.array([0.55, 0.01, 0.01, 0.45])[:, None]
    pace = standing(shares, 1)
    pace.values[-1] = 1.0
    verdict = Verdict(
        int(pace.times[-1]), "job-7", "m5", None, "peer", metric, 1.4, int(pace.times[58]), "warn", "m5 deviates"
    )
    answer = goes_slower(pace, Blamed(), verdict, pace.times > verdict.since)
    assert (answer == YES) == is_slower


def test_what_comes_with_one_phase_of_a_long_iteration_is_compared_with_the_time_before() -> None:
    """A GPU at its power limit in a part of each 42 s does not slow the task; with a pace 9 % lower since then it does.

    The other phases of the same iterations are as slow, as the pace is averaged over them.
    """
    usual, answers = swinging(176, 8.5, len(SIGNALS)), []
    on = np.r_[np.zeros(98, bool), usual[96:-2, 0] > 1]
    for less in (1.0, 0.91):
        pace = standing(np.r_[usual[:96], usual[96:] * less], 1)
        pace.values[-1] = 1.0
        verdict = Verdict(
            int(pace.times[-1]), "job-7", "m3", "gpu:2", "peer", "gpu.throttle_power_seconds_total", 2.6,
            int(pace.times[96]), "crit", "m3 GPU 2 deviates",
        )  # fmt: skip
        answers.append(goes_slower(pace, Blamed(), verdict, on))
    assert answers == [NO, YES]


@pytest.mark.parametrize(("blocks", "lasting"), [(1, "0100011000"), (3, "0111011110"), (5, "0111111111")])
def test_what_was_on_lingers_for_as_long_as_the_pace_is_averaged(blocks: int, lasting: str) -> None:
    """The mean over the last three blocks shows what a block had in two more."""
    on = np.array([flag == "1" for flag in "0100011000"])
    assert lingers(on, blocks).tolist() == [flag == "1" for flag in lasting]
