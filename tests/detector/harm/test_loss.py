"""Loss: whether a task goes slower while a machine deviates."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.before_after import YES
from detector.harm.blamed import Blamed
from detector.harm.loss import goes_slower
from detector.harm.pace import SIGNALS
from detector.model.verdict import Verdict
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
