"""The plainest baseline: robust z-scores of each machine over its peers, metric by metric, and continuity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.methods.baselines.frames import Frame, Frames
from detector.methods.contract import Method
from detector.model.text import comparison
from detector.model.verdict import Finding, Verdict
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import SECOND

_NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
_LEAST = 0.01  # of the peers' value: below it the spread of what never moves is taken to be


@dataclass(frozen=True, slots=True)
class Parameters:
    """As somebody chooses them on first reading of the method."""

    threshold: float = 6.0
    """Robust standard deviations."""
    continuity_s: float = 120.0


@dataclass(slots=True)
class Median(Method):
    """The method and its memory: since when each machine has been an outlier by each metric."""

    config: Config
    parameters: Parameters = field(default_factory=Parameters)
    frames: Frames = field(default_factory=Frames)
    since: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """By task, machine and metric, Unix ns."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Read new rows; the findings on machines that have been outliers for long enough."""
        return self.frames.judge(now, rows, tasks, self._judge)

    def _judge(self, frame: Frame, now: int) -> list[Finding]:
        known = ~np.isnan(frame.values).all(1)
        middle = np.full((len(frame.values), 1), np.nan)
        spread = middle.copy()
        middle[known, 0] = np.nanmedian(frame.values[known], axis=1)
        spread[known, 0] = _NORMAL * np.nanmedian(np.abs(frame.values - middle)[known], axis=1)
        least = np.maximum(_LEAST * np.abs(middle), 1e-9)
        far = np.abs(frame.values - middle) / np.maximum(spread, least)
        score = np.minimum(np.nan_to_num(far) / self.parameters.threshold, 99.0)
        out = np.argwhere(score > 1)
        keys = {(frame.task, frame.machines[m], frame.metrics[k]): (int(k), int(m)) for k, m in out}
        others = {key: at for key, at in self.since.items() if key[0] != frame.task}
        self.since = others | {key: self.since.get(key, now) for key in keys}
        found: dict[str, Finding] = {}
        for key, (k, m) in keys.items():
            if now - self.since[key] < self.parameters.continuity_s * SECOND:
                continue
            sides = float(frame.values[k, m]), float(middle[k, 0])
            message = comparison(key[1], key[2], *sides, len(frame.machines) - 1)
            verdict = Verdict(
                now, frame.task, key[1], None, "median", key[2], float(score[k, m]), self.since[key], "crit", message
            )
            if key[1] not in found or found[key[1]].verdict.score < verdict.score:
                found[key[1]] = Finding(verdict, False, 1.5)
        return list(found.values())
