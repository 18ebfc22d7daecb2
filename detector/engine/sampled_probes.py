"""Verdicts that rest on sampled probes say so: an agent counts CUDA calls in windows where all would cost too much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows
from store.schema.catalogue import METRICS

_RATIO = "sampled_ratio"
_NOT_PROBED = ("cuda.gc_", "cuda.startup", "cuda.pid", f"cuda.{_RATIO}")
ESTIMATED = frozenset(key for key in METRICS if key.startswith("cuda.") and not key.startswith(_NOT_PROBED))
"""Metrics that are estimated where probes sample."""


@dataclass(slots=True)
class SampledProbes:
    """By machine and GPU, the share of the time in which probes on CUDA's calls are on, where that is not all of it."""

    ratio: dict[tuple[str, str], float] = field(default_factory=dict)

    def feed(self, rows: Rows) -> None:
        """Learn from rows of the table `cuda`, one a GPU and reading."""
        sampled = rows.number(_RATIO)
        if not self.ratio and not np.isfinite(sampled).any():
            return
        for machine, gpu, ratio in zip(rows.who(0), rows.who(1), sampled.tolist(), strict=True):
            if np.isfinite(ratio):
                self.ratio[machine, gpu] = ratio
            else:
                self.ratio.pop((machine, gpu), None)

    def of(self, verdict: Verdict) -> float:
        """The share for what a verdict rests on; 1: all is counted."""
        if verdict.metric not in ESTIMATED or verdict.level == "ok":
            return 1.0
        gpu = (verdict.device or "").removeprefix("gpu:")
        shares = (one for (machine, its), one in self.ratio.items() if machine == verdict.machine and gpu in ("", its))
        return min(shares, default=1.0)

    def noted(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """The verdicts; those that rest on sampled probes with a sentence that says it."""
        return [
            replace(one, message=f"{one.message} (estimated: its probes are on {share:.0%} of the time)")
            if (share := self.of(one)) < 1.0
            else one
            for one in verdicts
        ]
