"""Lasting: small differences from the peers that last for minutes, in the readings that tell how a device works.

Two means of a reading's relative comparison from its peers, over one minute and over four, less what it was in the half
hour before. The spread of the same differences over the peers, and over the past of the entity, is the unit: no floor
in the metric's own unit is needed, so a few per cent are found where peers are that much alike, and only there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from detector.methods.peers.baseline import Baseline
from detector.stats.arrays import Ints, Singles, grown
from detector.stats.grouped import Groups
from detector.stats.robust import NORMAL
from store.schema.time import SECOND

SPANS_S = (60.0, 240.0)
"""Time constants of the two means ..."""
BASE_S = 1800.0
"""... of the usual comparison, and of the spreads."""
LEAST = 0.012
"""The least relative change that is looked at: less costs a task nothing that is worth a repair."""
WARM_S = 240.0
"""So long a reading has to be known before it is judged."""
ENOUGH = 6.0
"""Spreads that make a finding ..."""
LASTS_NS = 60 * SECOND
"""... after this long, ..."""
_CLEARLY, _CLEAR_S = 2.0, 30.0
"""... and times as many after half of it (seconds)."""
_LATEST_S = 20.0
"""Time constant of what an entity reads just now."""
_LONGEST_STEP_S = 15.0
"""Readings that are rarer than this are taken as if they came that often, so all takes longer."""
SUSPECT = 3.0
"""Spreads from which on what is seen says little of what is usual."""
_PAUSED = 0.4
"""Below this share of the usual level the peers stand still, and relative distances say nothing."""
_MOST = 0.5
_FARTHEST = 0.15
"""More than this is no small difference, and counts as this."""
_NOISIER = 5.0
"""Times as much as its peers an entity may wander; more is what it did while it started, or is at fault."""
_TINY = 1e-12


@dataclass(slots=True)
class Lasting:
    """The memory of it; arrays are [row, entity], a row being one of the metrics looked at."""

    rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Metrics of the table that are looked at."""
    base: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    means: Singles = field(default_factory=lambda: np.zeros((len(SPANS_S), 0, 0), np.float32))
    latest: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    power: Singles = field(default_factory=lambda: np.zeros((len(SPANS_S), 0, 0), np.float32))
    """[span, row, entity]: mean square of the differences so far."""
    known_s: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """Seconds of readings."""
    since: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """When a difference began, Unix ns; 0 while there is none."""
    odd_s: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """For how many seconds since then the peers were read, and it too: what an agent missed lasts no longer for it."""
    far: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """Signed differences in spreads, of the mean that is farther."""
    size: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """The same as shares of the peers' reading."""
    beside: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """How far the last minute's mean is from the peers', as a share of their reading, whatever is usual; the sign of
    `size` is taken for plus."""
    found: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), bool))
    """Whether it is a finding."""
    level: Singles = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """[row, group]: what the peers read while they work; -1 where that was never known."""
    usual: Singles = field(default_factory=lambda: np.zeros((len(SPANS_S), 0, 0), np.float32))
    """[span, row, group]: the usual spread over the peers."""
    counted_s: float = 0.0
    """Seconds that count of those since it was looked at before: fewer than passed where readings are rare."""
    enough: Singles = field(default_factory=lambda: np.full((0, 0), ENOUGH, np.float32))
    """[row, entity]: spreads that make a finding."""
    at: int = 0
    """When it was looked at last, Unix ns."""

    def update(
        self, now: int, values: Singles, baseline: Baseline, groups: Groups, rows: Ints, learned: Singles
    ) -> None:
        """Take in what all read at `now` (Unix ns), [row, entity], where `baseline` says that they are peers.

        `learned` [row, entity] are multiples of the built-in threshold, counted from where a difference is odd.
        """
        seconds = self.counted_s = min((now - self.at) / SECOND, _LONGEST_STEP_S)
        self.at = now
        self._fit(rows, values.shape[1], groups.count + 1)
        center = groups.middle(values - baseline.offset[rows, : values.shape[1]])
        works = self._works(center, groups, seconds)
        with np.errstate(invalid="ignore", divide="ignore"):
            away: Singles = values - groups.each(center)
            # By what they read at work: in the pauses of long iterations a share of little would be much.
            apart = (away / groups.each(np.fmax(np.abs(center), self.level))).astype(np.float32)
        known = (
            np.isfinite(apart)
            & np.isfinite(baseline.active_threshold[rows, : apart.shape[1]])
            & groups.each(works[None])
        )
        missed = np.isnan(values) & ~np.isnan(groups.each(center))
        apart[~known] = 0.0
        np.clip(apart, -_MOST, _MOST, out=apart)
        self._follow(apart, known, seconds)
        self.enough = SUSPECT + (ENOUGH - SUSPECT) * learned
        self._compare(apart, known, missed, groups, now)
        self._learn(apart, known, seconds)

    def reset(self, entities: Ints) -> None:
        """Forget some entities."""
        some = entities[entities < self.known_s.shape[1]]
        for array in (self.known_s, self.since, self.odd_s, self.far, self.size, self.beside, self.found):
            array[:, some] = 0

    def select(self, left: Ints) -> None:
        """Forget the entities that are not left."""
        some = left[left < self.known_s.shape[1]]
        for name in ("base", "latest", "means", "power", "known_s", "since", "odd_s", "far", "size", "beside", "found"):
            setattr(self, name, getattr(self, name)[..., some])
        self.enough = self.enough[:, left[left < self.enough.shape[1]]]

    def _fit(self, rows: Ints, entities: int, groups: int) -> None:
        if not np.array_equal(rows, self.rows):
            fresh = Lasting(rows, counted_s=self.counted_s, at=self.at)
            for part in fields(fresh):
                setattr(self, part.name, getattr(fresh, part.name))
        shape = (len(rows), entities)
        for name in ("base", "latest", "known_s", "odd_s", "far", "size", "beside", "since", "found"):
            setattr(self, name, grown(getattr(self, name), shape, 0))
        for name in ("means", "power"):
            setattr(self, name, grown(getattr(self, name), (len(SPANS_S), *shape), 0))
        if self.level.shape != (len(rows), groups):
            self.level = np.full((len(rows), groups), -1.0, np.float32)
            self.usual = np.zeros((len(SPANS_S), len(rows), groups), np.float32)

    def _works(self, center: Singles, groups: Groups, seconds: float) -> NDArray[np.bool_]:
        """[group]: whether the peers read what they do at work, by most rows.

        Their level follows them up at once and down slowly. Where it rises manifold work has only begun: what was usual
        before says nothing of it.
        """
        reading, seen = np.nan_to_num(np.abs(center)), self.level >= 0
        level = np.maximum(self.level, 0)
        known = np.maximum((reading > _TINY).sum(0), 1)
        begins = 2 * (seen & (reading > _TINY) & (_PAUSED * reading > level)).sum(0) >= known
        works: NDArray[np.bool_] = 2 * ((reading > _TINY) & (reading > _PAUSED * level)).sum(0) > known
        follows = level + np.where(begins | (level <= _TINY), 1.0, 0.1) * (reading - level)
        level = np.where(works, follows, level * (1 - min(seconds / BASE_S, 1.0)))
        self.level = np.where(seen | ~np.isnan(center), level, self.level)
        if begins.any():
            self.reset(np.flatnonzero(groups.each(begins[None])[0] & np.ones(len(groups.of), bool)))
        return works

    def _follow(self, apart: Singles, known: NDArray[np.bool_], seconds: float) -> None:
        count = apart.shape[1]
        new = known & (self.known_s[:, :count] <= 0)
        self.base[:, :count][new] = apart[new]
        for mean, span in zip([self.latest[:, :count], *self.means[:, :, :count]], (_LATEST_S, *SPANS_S), strict=True):
            mean[new] = apart[new]
            rate = np.maximum(1 - np.exp(-seconds / span), seconds / np.maximum(self.known_s[:, :count], seconds))
            away = np.clip(apart - mean, -_FARTHEST, _FARTHEST)
            mean += np.where(known, rate * away, 0.0).astype(np.float32)
        self.known_s[:, :count] += np.where(known, seconds, 0.0).astype(np.float32)

    def _compare(
        self, apart: Singles, known: NDArray[np.bool_], missed: NDArray[np.bool_], groups: Groups, now: int
    ) -> None:
        count, seconds = known.shape[1], self.counted_s
        base, known_s = self.base[:, :count], self.known_s[:, :count]
        judged = known_s >= WARM_S
        best, size = np.zeros((2, *known.shape), np.float32)
        rate = min(seconds / BASE_S, 1.0)
        for span, mean in enumerate(self.means[:, :, :count]):
            away = np.where(judged, mean - base, np.nan)
            away -= groups.each(groups.middle(away))
            spread = NORMAL * np.nan_to_num(groups.middle(np.abs(away)))
            usual = self.usual[span]
            usual += np.maximum(rate, 0.02) * (spread - usual) if (usual > 0).any() else spread
            young = 1 + WARM_S / np.maximum(known_s, 1.0)
            theirs = groups.each(np.maximum(spread, usual))
            own = np.minimum(np.sqrt(self.power[span, :, :count]), _NOISIER * theirs)
            unit = np.maximum(np.maximum(theirs, own) * young, LEAST / SUSPECT / 2)
            far = np.nan_to_num(away / unit).astype(np.float32)
            held = np.clip(np.nan_to_num(away), -2 * unit, 2 * unit)
            power = self.power[span, :, :count]
            learns = np.maximum(rate, seconds / np.maximum(known_s, 1)) * np.where(np.abs(far) > SUSPECT, 0.05, 1.0)
            power += np.where(judged, learns * (held**2 - power), 0)
            farther = np.abs(far) > np.abs(best)
            best, size = np.where(farther, far, best), np.where(farther, np.nan_to_num(away), size)
        alike = (np.abs(best) > SUSPECT) & self._comes_back(groups)
        known_s[alike] = 0.0
        best[alike | (np.abs(size) < LEAST)] = 0.0
        self.far[:, :count], self.size[:, :count] = best, size
        odd = np.abs(best) > SUSPECT
        since = self.since[:, :count]
        since[odd & (since == 0)] = now
        since[~odd] = 0
        lasted = self.odd_s[:, :count]
        lasted += np.where(missed | (since == now), 0.0, seconds)
        lasted[~odd] = 0.0
        self._decide(best, size, apart, groups)

    def _decide(self, far: Singles, size: Singles, apart: Singles, groups: Groups) -> None:
        """Begin and end findings; what is over by the latest readings is none, whatever the means still are."""
        count = far.shape[1]
        found = self.found[:, :count]
        base, late = self.base[:, :count], self.latest[:, :count]
        latest, now, beside = (
            (array - groups.each(groups.middle(array))) * np.sign(size)
            for array in (late - base, apart - base, self.means[0, :, :count])
        )
        # One that was faster than its peers, and is now as fast, holds none of them up.
        self.beside[:, :count] = beside
        found &= (np.abs(far) > SUSPECT) & (latest > LEAST / 2) & (beside > LEAST / 2)
        alike = groups.each(self.usual[-1]) < LEAST  # of peers that agree less nothing so small is to be said
        enough = self.enough[:, :count]
        # What lasts is farther off just now than on average over the last minute; what is over is less.
        grows = (latest >= np.abs(size)) & (now >= np.abs(size))
        clear = grows & (np.abs(far) >= _CLEARLY * enough) & (self.odd_s[:, :count] >= _CLEAR_S)
        lasts = alike & (self.lasts()[:, :count] | clear)
        found |= (np.abs(far) >= enough) & (latest >= LEAST) & (now > LEAST / 4) & (beside > LEAST) & lasts

    def lasts(self) -> NDArray[np.bool_]:
        """[row, entity]: what is odd for long enough to be a finding."""
        return (self.since > 0) & (self.odd_s >= LASTS_NS / SECOND)

    def _comes_back(self, groups: Groups) -> NDArray[np.bool_]:
        """[row, entity]: who was odd among the peers by what is usual for it, and comes nearer to them: it recovers."""
        known = self.known_s[:, : len(groups.of)] > 0
        usual, now = (np.where(known, array[:, : len(groups.of)], np.nan) for array in (self.base, self.means[0]))
        usual, now = (array - groups.each(groups.middle(array)) for array in (usual, now))
        spread = NORMAL * groups.each(groups.middle(np.abs(usual)))
        back: NDArray[np.bool_] = (np.abs(usual) > SUSPECT * spread) & (np.abs(now) < np.abs(usual) - LEAST / 2)
        return back

    def _learn(self, apart: Singles, known: NDArray[np.bool_], seconds: float) -> None:
        count = apart.shape[1]
        rate = np.maximum(seconds / BASE_S, seconds / np.maximum(self.known_s[:, :count], seconds))
        odd = np.abs(self.far[:, :count]) > SUSPECT
        rate = np.where(known, np.where(odd, 0.05 * rate, rate), 0.0)
        self.base[:, :count] += (rate * (apart - self.base[:, :count])).astype(np.float32)

    def cells(self, high: NDArray[np.bool_], low: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Metric and entity of all findings in a direction that is bad; `high`, `low` [metric] say which is."""
        bad = np.where(self.far > 0, high[self.rows, None], low[self.rows, None])
        return [(int(self.rows[row]), int(entity)) for row, entity in np.argwhere(self.found & bad)]

    def others(self, metric: int, entity: int) -> bool:
        """Whether another reading of an entity is odd, or is not read at all."""
        row = int(np.searchsorted(self.rows, metric))
        known = self.known_s[:, entity] >= WARM_S
        known[row] = False
        return not known.any() or bool((np.abs(self.far[known, entity]) > SUSPECT).any())

    def lasted_s(self, metric: int, entity: int) -> float:
        """For how long (s) an entity is odd, of the time that counts."""
        return float(self.odd_s[int(np.searchsorted(self.rows, metric)), entity])

    def of(self, metric: int, entity: int) -> tuple[float, int]:
        """How far an entity is in multiples of what makes a finding, and since when (Unix ns)."""
        row = int(np.searchsorted(self.rows, metric))
        return abs(float(self.far[row, entity] / self.enough[row, entity])), int(self.since[row, entity])

    def share(self, metric: int, entity: int) -> tuple[float, float]:
        """By which share of the peers' reading an entity differs from them more than it usually does, signed; and by
        how much it differs at all, in the same direction.
        """
        row = int(np.searchsorted(self.rows, metric))
        return float(self.size[row, entity]), float(self.beside[row, entity])
