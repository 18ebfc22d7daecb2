"""What is said of one finding."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.judge import Harm
from detector.harm.pace import SIGNALS
from detector.model.verdict import Finding, Verdict
from store.schema.time import SECOND
from tests.detector.harm.test_silence import standing


@pytest.mark.parametrize(
    ("metric", "lasts_s", "is_answered"),
    [("gpu.power_watts", 270, False), ("gpu.power_watts", 310, True), ("gpu.sm_clock_hertz", 275, True)],
)
def test_a_small_difference_in_power_has_to_last_for_five_minutes(metric: str, lasts_s: int, is_answered: bool) -> None:
    """Heat and load move what a GPU draws for a few minutes; a clock that is lower is judged before."""
    harm = Harm()
    harm.pace = standing(np.ones((140, len(SIGNALS))), 1)
    harm.pace.values[-1] = 1.0
    now = int(harm.pace.times[-1])
    verdict = Verdict(now, "job-7", "m4", "gpu:5", "peer", metric, 1.7, now - lasts_s * SECOND, "warn", "m4 GPU 5")
    said = harm.graded(Finding(verdict, False, 1.7, small=True), {}, now)
    assert (said is not None) == is_answered


@pytest.mark.parametrize(
    ("score", "lasts_s", "is_answered"), [(1.4, 100, False), (1.4, 135, True), (2.3, 65, True), (1.8, 65, False)]
)
def test_a_difference_near_its_threshold_has_to_last_for_longer(score: float, lasts_s: int, is_answered: bool) -> None:
    """Twice the threshold is enough after a minute; what is 1.4 times as much takes two, to be as sure."""
    harm = Harm()
    harm.pace = standing(np.ones((140, len(SIGNALS))), 1)
    harm.pace.values[-1] = 1.0
    now = int(harm.pace.times[-1])
    verdict = Verdict(
        now, "job-9", "m6", "gpu:3", "peer", "gpu.sm_active_ratio", score, now - lasts_s * SECOND, "warn", ""
    )
    said = harm.graded(Finding(verdict, False, score, small=True), {}, now)
    assert (said is not None) == is_answered
