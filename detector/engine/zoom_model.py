"""Where reconstruction from peers will fail: how far a machine's readings will be from its peers' in the next seconds.

After TDFN (arXiv 2501.15603): the second, finer channel looks where |reconstruction - input| of the first is largest,
and the model of where to look is trained on just that. Here the peers' median reconstructs a machine's readings; what
remains is the deviation. The target is its mean over the next seconds, so what passes by itself counts little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.methods.peers.state import Panel
from detector.stats.arrays import Floats, Ints

FEATURES = ("evidence", "deviation", "second", "lasting", "readings", "one")
"""Of an entity: its CUSUM, the largest and second largest deviation, the largest as it has lasted, how many readings
deviate (logarithm), and a constant."""
WEIGHTS = np.array([0.151, 0.606, 0.039, 0.27, -0.019, 0.008])
"""Least squares over recordings of two faults at once (`fit`); docs/explanations.md has what it does on others."""
HORIZON_S = 20.0
_MOST_EVIDENCE, _MOST_DEVIATION = 3.0, 8.0
_RISE = 0.1  # of the way up, a step: what lasts follows a fall at once


@dataclass(slots=True)
class ZoomModel:
    """The state that features need: by table, the deviation that has lasted, and when it was last updated."""

    weights: Floats = field(default_factory=lambda: WEIGHTS)
    lasting: dict[str, Floats] = field(default_factory=dict)
    updated: dict[str, int] = field(default_factory=dict)

    def expected(self, panels: Mapping[str, Panel]) -> dict[str, tuple[Ints, Floats]]:
        """By table, the entities that deviate now, and the error to be expected of each, in significant deviations."""
        found = {}
        for table, panel in panels.items():
            entities, samples = self.features(table, panel)
            found[table] = entities, samples @ self.weights
        return found

    def features(self, table: str, panel: Panel) -> tuple[Ints, Floats]:
        """The entities that deviate now, and [entity, feature] in the order of FEATURES."""
        cells, size = panel.cells, len(panel.group)
        evidence, first, second, readings = np.zeros((4, size))
        deviation = np.nan_to_num(np.clip(cells.deviation, 0.0, _MOST_DEVIATION))
        np.maximum.at(evidence, cells.entity, np.minimum(panel.evidence, _MOST_EVIDENCE))
        np.maximum.at(first, cells.entity, deviation)
        np.maximum.at(second, cells.entity, np.where(deviation < first[cells.entity], deviation, 0.0))
        np.add.at(readings, cells.entity, deviation >= 1)
        lasting = self._update(table, panel, first)
        entities = np.unique(cells.entity)
        columns = evidence, first, second, lasting, np.log1p(readings), np.ones(size)
        return entities, np.stack([column[entities] for column in columns], 1)

    def _update(self, table: str, panel: Panel, first: Floats) -> Floats:
        """The largest deviation of each entity as it has lasted, at most once a step."""
        past = self.lasting.get(table, np.zeros(0))
        if len(past) > len(first):  # entities were evicted, and those that are left have other numbers
            past = past[:0]
        lasting = np.pad(past, (0, len(first) - len(past)))
        if self.updated.get(table) != panel.judged_at:
            lasting = np.where(first < lasting, first, lasting + _RISE * (first - lasting))
            self.lasting[table], self.updated[table] = lasting, panel.judged_at
        return lasting


def errors_ahead(deviations: Floats, steps: int) -> Floats:
    """[step, entity]: the mean of the largest deviation over the next `steps`, of [step, entity]."""
    count = len(deviations)
    total = np.concatenate([np.zeros_like(deviations[:1]), np.cumsum(deviations, 0)])
    end, begin = np.minimum(np.arange(count) + 1 + steps, count), np.arange(count) + 1
    return np.asarray((total[end] - total[begin]) / np.maximum(end - begin, 1)[:, None])


def fit(samples: Floats, errors: Floats) -> Floats:
    """Weights of FEATURES for samples [sample, feature] and the errors that followed: ridge regression."""
    return np.asarray(np.linalg.solve(samples.T @ samples + np.eye(samples.shape[1]), samples.T @ errors))
