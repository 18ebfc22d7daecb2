"""The baseline `distribution`: entropy and divergence of calls and waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.config import Config
from detector.evaluation.run import replay
from detector.methods.baselines.distribution import features

START = 1_700_000_000 * 10**9


def test_entropy_and_divergence_of_known_distributions() -> None:
    """A constant has no entropy, two values in halves have one bit; disjoint distributions diverge by one bit."""
    windows = np.full((1, 4, 60), 0.1)
    windows[0, 2, ::2] = 0.9
    windows[0, 3] = 0.5
    got = features(windows, 16)
    assert got[:, 0] == pytest.approx([0.0, 0.0, 0.25, 0.0])  # log 2 / log 16
    assert got[3, 1] == pytest.approx(1.0)
    assert got[0, 1] < got[2, 1] < got[3, 1]


@pytest.mark.parametrize("odd", [True, False])
def test_another_distribution_of_the_same_mean_is_found(odd: bool, memory: Any) -> None:
    """A machine with waits that alternate between short and long is named; without it none is."""
    steps, machines = 700, 11
    rate = 0.5 + 0.02 * np.random.default_rng(19).normal(0, 1, (steps, machines))
    if odd:
        rate[330:, 7] = 0.5 + 0.3 * (-1.0) ** np.arange(steps - 330)
    time = START + np.arange(steps, dtype=np.int64)[:, None] * 10**9 + np.zeros(machines, np.int64)
    table = pa.table(
        {
            "time": time.reshape(-1),
            "machine": np.tile([f"m{number}" for number in range(machines)], steps),
            "gpu": np.full(steps * machines, "0"),
            "synchronize_seconds_total": np.cumsum(rate, axis=0).reshape(-1),
        }
    )
    said = list(replay(memory({"cuda": table}), "distribution", Config()))
    assert {(v.machine, v.metric) for v in said} == ({("m7", "cuda.synchronize_seconds_total")} if odd else set())
