"""Verdicts that rest on sampled probes say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import replay
from detector.engine.sampled_probes import ESTIMATED, SampledProbes
from detector.model.verdict import Verdict
from detector.timeseries.rows import rows_of

SECOND = 10**9


def waits(sampled: float | None) -> pa.Table:
    """Synchronize calls of eight machines, one of which waits twice as long from the 150th second on."""
    rng = np.random.default_rng(7)
    rate = 0.3 + rng.normal(0, 0.01, (300, 8))
    rate[150:, 5] += 0.33
    total = np.cumsum(rate, axis=0).ravel()
    times = np.repeat(np.arange(1, 301) * SECOND, 8)
    machines = np.tile([f"m{n}" for n in range(8)], 300)
    ratio = [sampled if name == "m5" else None for name in machines]
    columns = {"time": times, "machine": machines, "gpu": ["0"] * 2400, "synchronize_seconds_total": total}
    return pa.table({**columns, "sampled_ratio": pa.array(ratio, pa.float64())})


@pytest.mark.parametrize("sampled", [None, 0.37])
def test_a_verdict_on_estimates_says_so(memory: Any, sampled: float | None) -> None:
    """The message has the share of the time in which the probes of the machine were on, if that is not all of it."""
    said = [verdict for verdict in replay(memory({"cuda": waits(sampled)})) if verdict.level in ("warn", "crit")]
    assert {(one.machine, one.metric) for one in said} == {("m5", "cuda.synchronize_seconds_total")}
    words = "(estimated: its probes are on 37% of the time)"
    assert [one.message.endswith(words) for one in said] == [bool(sampled)] * len(said)


def test_what_is_not_estimated_is_not_marked() -> None:
    """Only verdicts on the machine, the GPU and the readings that are estimated are marked, and while they are."""
    probes = SampledProbes()
    columns = {"time": [5, 5], "machine": ["m1", "m1"], "gpu": ["2", "3"], "sampled_ratio": [None, 0.25]}
    probes.feed(rows_of("cuda", pa.table(columns)))

    def noted(machine: str = "m1", device: str | None = "gpu:3", metric: str = "cuda.launches_total") -> str:
        verdict = Verdict(7, "t", machine, device, "peer", metric, 1.5, 6, "warn", "slow")
        return probes.noted([verdict])[0].message

    assert noted() == noted(device=None) == "slow (estimated: its probes are on 25% of the time)"
    assert {noted("m2"), noted(device="gpu:2"), noted(metric="cuda.gc_seconds_total")} == {"slow"}
    probes.feed(rows_of("cuda", pa.table({**columns, "sampled_ratio": pa.array([None, None], pa.float64())})))
    assert noted() == "slow"


def test_what_probes_count_is_known() -> None:
    """The metrics that can be estimated are those that probes on libcudart count."""
    assert "cuda.synchronize_seconds_total" in ESTIMATED
    assert not {"cuda.gc_seconds_total", "cuda.sampled_ratio", "cuda.pid"} & ESTIMATED
