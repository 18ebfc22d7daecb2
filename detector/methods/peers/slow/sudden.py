"""Sudden: where readings are rare, machines on which many of them change at once, beside their peers and their hours.

Readings that are minutes apart see the hours of a day. How far a machine is from its peers wanders with the load then,
and the spread of that hides a fall from one sample to the next. So each distance from the peers is compared with those
some samples ago, in units of what such changes usually are. Jobs of every day change many readings at the same hour:
what a machine did at this hour before is taken off, so a day is learned from first. One reading alone says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.methods.peers.baseline import Baseline, Comparison, least_distance
from detector.methods.peers.slow.daily import DAY_NS, Daily
from detector.model.metrics import Bounds
from detector.stats.arrays import Array, Bools, Floats, Ints, Singles, fitted
from detector.stats.grouped import Groups
from store.schema.time import SECOND

RARE_NS = 60 * SECOND
"""Readings that are this far apart at least are rare."""
_NEAR, _FAR = 4, 12
"""Samples ago that the present one is compared with: a change is fresh, and like nothing in all that time."""
_SHARE, _FEWEST, _TIMES = 3, 3, 3
"""One in so many readings changes at once, and so many at least; and they differ for so many samples."""
_HELD = 48
"""Samples after which what a machine reads is usual for it."""
_MEMORY, _CLIPPED_NORMAL = 300.0, 1 / 0.92
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(slots=True)
class Sudden:
    """The memory of it; arrays are [metric, entity] or [entity]."""

    daily: Daily = field(default_factory=Daily)
    ring: Singles = field(default_factory=lambda: np.zeros((_FAR + 1, 0, 0), np.float32))
    """[sample, metric, entity]: distances from the peers, the newest last."""
    variance: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Mean square of the changes."""
    samples: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    before: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """The distance before the change, ..."""
    change: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """... and how far it went then; 0: it did not."""
    lasted: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Samples since the change; 0: there is none."""
    since: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """When that was, Unix ns."""
    shared: Bools = field(default_factory=lambda: np.zeros(0, bool))
    """Whether so many machines changed with it that none of them is the cause."""
    height: Floats = field(default_factory=lambda: np.zeros(0))
    """How far it went, in multiples of the least that counts: the least of as many readings as it takes."""

    def update(
        self,
        times: tuple[int, int],
        comparison: Comparison,
        baseline: Baseline,
        groups: Groups,
        bounds: Bounds,
        config: Config,
    ) -> None:
        """Take in how far all are from their peers, at a time and some time after the last; `times` (ns) are both."""
        now, step_ns = times
        shape = comparison.residual.shape
        self._fit(shape)
        self.daily.turn(now, shape)
        away = comparison.residual + baseline.offset[:, : shape[1]]
        self.ring = np.concatenate([self.ring[1:], (away - groups.each(groups.middle(away)))[None]])
        change = self._changes(groups)
        noise = np.sqrt(np.maximum(self.variance, groups.each(self._common(groups))))
        floor = groups.each(least_distance(comparison, baseline, groups, bounds, slice(None), config))
        least = np.maximum(np.fmax(config.deviation_sigmas * noise, floor), _TINY)
        judged = (self.samples >= DAY_NS // step_ns) & (self.variance > 0)
        judged &= ~np.isnan(baseline.active_threshold[: shape[0], : shape[1]])
        far = np.where(judged, self.daily.without(change) / least, 0.0)
        self._decide(now, far, comparison.residual, judged.sum(0))
        self._learn(change)

    def share(self, group: Ints, machine: Ints, step_ns: int, share: float) -> None:
        """Mark what more than a share of a group's machines did at once; `group` and `machine` are [entity]."""
        count = len(self.lasted)
        self.shared &= self.lasted > 0
        for one in np.flatnonzero((self.lasted > 0) & (self.lasted <= _FAR) & ~self.shared).tolist():
            alike = group[:count] == group[one]
            near = alike & (self.lasted > 0) & (np.abs(self.since - self.since[one]) <= _FAR * step_ns)
            most = max(1, int(share * len(np.unique(machine[:count][alike]))))
            if len(np.unique(machine[:count][near])) > most:
                self.shared |= near

    def found(self) -> Ints:
        """Entities that differ for long enough since they changed, and few with them."""
        return np.flatnonzero((self.lasted >= _TIMES) & ~self.shared)

    def strongest(self, entity: int) -> tuple[int, int]:
        """The metric that changed most for its kind, and how many did."""
        far = np.abs(self.change[:, entity]) / np.sqrt(np.maximum(self.variance[:, entity], _TINY))
        return int(far.argmax()), int((far > 0).sum())

    def reset(self, entities: Ints) -> None:
        """Forget some entities, as when they change their task."""
        some = entities[entities < len(self.lasted)]
        self.ring[:, :, some], self.lasted[some], self.samples[:, some], self.variance[:, some] = np.nan, 0, 0, 0

    def select(self, left: Ints) -> None:
        """Forget the entities that are not left."""
        some = left[left < len(self.lasted)]
        self.daily.select(left)
        for name in ("ring", "variance", "samples", "before", "change", "lasted", "since", "shared", "height"):
            setattr(self, name, getattr(self, name)[..., some])

    def _fit(self, shape: tuple[int, ...]) -> None:
        if self.variance.shape == shape:
            return
        self.ring = fitted(self.ring, (_FAR + 1, *shape), np.nan)
        for name in ("variance", "samples", "before", "change"):
            setattr(self, name, fitted(getattr(self, name), shape))
        for name in ("lasted", "since", "shared", "height"):
            setattr(self, name, fitted(getattr(self, name), shape[1:]))

    def _changes(self, groups: Groups) -> Singles:
        """[metric, entity]: the least change from any of the samples some time ago; 0 where not all agree which way."""
        away = self.ring[-1] - self.ring[: _FAR - _NEAR + 1]
        change: Singles = np.nan_to_num(np.maximum(away.min(0), 0) - np.maximum((-away).min(0), 0))
        change -= np.nan_to_num(groups.each(groups.middle(change)))
        return change

    def _common(self, groups: Groups) -> Array:
        """[metric, group]: the mean over the members of what is usual."""
        mean: Array = np.nan_to_num(groups.total(self.variance)) / np.maximum(groups.total(self.samples > 0), 1)
        return mean

    def _decide(self, now: int, far: Array, residual: Singles, judged: Ints) -> None:
        """Begin, go on with and end changes; `far` [metric, entity] is how far each goes.

        A change to what is usual, by the `residual` from that, is the end of another.
        """
        held = self.lasted > 0
        before = self.ring[: _FAR - _NEAR + 1].mean(0)
        went = self.ring[-1] - np.where(held, self.before, before)
        off = np.sign(went) * np.nan_to_num(np.clip(residual * np.sign(went), 0, np.abs(went)))
        still = (off * np.sign(self.change) >= np.abs(self.change) / 2) & (self.change != 0)
        goes_on = held & (2 * still.sum(0) >= (self.change != 0).sum(0)) & (self.lasted < _HELD)
        counts = np.abs(np.where(np.abs(off) >= np.abs(went) / 2, far, 0.0))
        enough = np.maximum(-(-judged // _SHARE), _FEWEST)
        height = -np.sort(-counts, axis=0)[np.minimum(enough, len(far)) - 1, np.arange(far.shape[1])]
        begins = ~held & (height >= 1) & (judged >= enough)
        self.before = np.where(begins, before, self.before)
        self.change = np.where(begins, np.where(counts >= 1, went, 0), self.change)
        self.since = np.where(begins, now, self.since)
        self.lasted = np.where(begins, 1, np.where(goes_on, self.lasted + 1, 0))
        self.height = np.where(begins, height, np.where(goes_on, np.maximum(self.height, height), 0.0))

    def _learn(self, change: Singles) -> None:
        known = ~np.isnan(self.ring[[0, -1]]).any(0)
        self.samples += ~np.isnan(self.ring[-1])
        seen = np.maximum(self.samples - _FAR, 1)
        limit = np.where(seen > _FAR, 2 * np.sqrt(np.maximum(self.variance, _TINY)), np.inf)
        square = np.minimum(np.abs(change), limit) ** 2 * np.where(seen > _FAR, _CLIPPED_NORMAL, 1.0)
        self.variance += np.where(known, (square - self.variance) / np.minimum(seen, _MEMORY), 0.0)
        self.daily.note(change)
