"""Change: one table's readings since an onset against those before, of one machine and of its peers.

A machine's change is compared with the change of its peers over the same time (difference in differences), so that what
a machine always had of its own, and what happens to the whole task, counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.model.metrics import bounds_of
from detector.model.verdict import Verdict
from detector.stats.arrays import Array, Ints
from detector.timeseries.binned import History
from store.schema.time import SECOND

GUARD_S = 15.0
"""The onset is known to no better than this: the seconds before it belong to neither side."""
_NORMAL = 1.4826  # median absolute deviation -> standard deviation of a normal distribution
_SIGMAS = 4.0
_BAND = (10, 50, 90)
_COVERED = 0.3


@dataclass(frozen=True, slots=True)
class MetricShift:
    """A metric by which a machine changed unlike its peers; arrays are [bin], rates a second where it is a counter."""

    key: str
    device: str | None
    effect: float
    """Signed, in multiples of the least difference that counts."""
    value: float
    """Mean since the onset ..."""
    before: float
    """... and before it, NaN where the store does not reach back."""
    usual: float
    """Median of the peers since the onset."""
    peers: int
    """Other machines of the task with this metric; their devices make up the band."""
    onset: int
    """When this metric began to differ, Unix ns."""
    alike: tuple[int, int]
    """How many of the machine's devices moved so, and how many it has."""
    time: Ints
    machine: NDArray[np.float32]
    band: NDArray[np.float32]
    """[3, bin]: the peers' 10th, 50th and 90th percentile."""

    @property
    def sign(self) -> str:
        """As the table of kinds writes it: `gpu.power_watts-`."""
        return f"{self.key}{'+' if self.effect > 0 else '-'}"


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """Another machine that moved the same way by the same metric, less."""

    machine: str
    device: str | None
    effect: float
    value: float


@dataclass(frozen=True, slots=True)
class Times:
    """What was looked at, Unix ns."""

    begin: int
    since: int
    said: int
    """When the verdict was reached: its evidence lies between the onset and this."""
    end: int

    def sides(self, history: History) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """[bin]: whether it lies before the onset, between onset and verdict, and anywhere after the onset."""
        guard, middle = int(GUARD_S * SECOND), history.middle
        after = middle >= self.since
        return history.edges[1:] <= self.since - guard, after & (middle <= self.said), after


class DifferenceInDifferences:
    """One table: each entity's change since the onset against the peers' change; arrays are [metric, entity]."""

    def __init__(self, history: History, times: Times, verdict: Verdict, team: set[str], config: Config) -> None:
        self.history, self.times, self.verdict = history, times, verdict
        names = [machine for machine, _ in history.entities]
        self.mine = np.array([name == verdict.machine for name in names], bool)
        self.peer = np.array([name in team and name != verdict.machine for name in names], bool)
        before, until, after = times.sides(history)
        self.before, soon = self._mean(before), self._mean(until)
        # What is read once a minute may not have been read between onset and verdict.
        unread = np.isnan(soon).all(-1, keepdims=True)
        self.after = np.where(unread, self._mean(after), soon)
        self.usual = _median(self.after[:, self.peer])
        self.effect = self._effect(config)

    def _mean(self, side: NDArray[np.bool_]) -> Array:
        """[metric, entity]: mean over some bins; NaN for who was read in far fewer of them than its peers."""
        values = self.history.values[:, :, side]
        count = (~np.isnan(values)).sum(-1)
        usual = _median(count[:, self.peer].astype(np.float64))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Array = np.nansum(values, -1, dtype=np.float64) / count
            mean[count < _COVERED * np.nan_to_num(usual)[:, None]] = np.nan
        return mean

    def _effect(self, config: Config) -> Array:
        off = self._off()
        spread = _NORMAL * _median(np.abs(off[:, self.peer]))
        bounds = bounds_of(self.history.table, list(self.history.metrics), config)
        least = np.fmax(bounds.floor, bounds.relative * np.abs(self.usual))
        reach = np.fmax(np.fmax(least, _SIGMAS * np.nan_to_num(spread)), np.finfo(np.float32).tiny)
        effect: Array = off / reach[:, None]
        return np.clip(effect, -99, 99)

    def _off(self) -> Array:
        """How far each has gone beyond its peers, in the metric's unit.

        A slower task may take as much from everybody or from each its share: what either explains is no one's own.
        """
        change = self.after - self.before
        # Where the store does not reach back there is only the level to compare.
        change = np.where(np.isnan(self.before).all(-1, keepdims=True), self.after, change)
        off = change - _median(change[:, self.peer])[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = _median(self.after[:, self.peer] / self.before[:, self.peer])[:, None]
            by_share = self.after - self.before * share
        known = np.isfinite(by_share)
        least = np.where(off * by_share > 0, np.sign(off) * np.fmin(np.abs(off), np.abs(by_share)), 0.0)
        return np.where(known, least, off)

    def moved(self) -> Iterator[MetricShift]:
        """Each metric by which a device of the machine, the one that moved farthest or is named, moved at all."""
        if not self.mine.any() or self.peer.sum() < 2:
            return
        mine = np.flatnonzero(self.mine)
        for place, key in enumerate(self.keys()):
            effect = np.nan_to_num(self.effect[place, mine])
            at = self._chosen(effect, mine)
            if abs(effect[at]) >= 1 or (key == self.verdict.metric and self.verdict.kind == "peer"):
                yield self._moved(place, key, (mine, at))

    def keys(self) -> list[str]:
        """Names of the metrics as people see them."""
        return [f"{self.history.table}.{metric}" for metric in self.history.metrics]

    def _chosen(self, effect: Array, mine: Ints) -> int:
        named = [at for at, entity in enumerate(mine) if self.history.entities[entity][1] == self.verdict.device]
        if named and 2 * abs(effect[named[0]]) >= abs(effect).max():
            return named[0]
        return int(np.abs(effect).argmax())

    def _moved(self, place: int, key: str, which: tuple[Ints, int]) -> MetricShift:
        mine, at = which
        entity, history = int(mine[at]), self.history
        effect = self.effect[place, mine]
        alike = int((np.sign(effect[at]) * np.nan_to_num(effect) >= 1).sum())
        curve, peers = history.values[place, entity], history.values[place, self.peer]
        band = _percentiles(peers)
        return MetricShift(
            key,
            history.entities[entity][1],
            float(effect[at]),
            float(self.after[place, entity]),
            float(self.before[place, entity]),
            float(self.usual[place]),
            len({history.entities[at][0] for at in np.flatnonzero(self.peer & ~np.isnan(self.after[place]))}),
            self._onset(curve - band[1]),
            (alike, len(mine)),
            history.middle,
            curve,
            band,
        )

    def _onset(self, off: Array) -> int:
        """The change point of a step: where the sum of what exceeds half of it is least (Page 1954)."""
        before, after, _ = self.times.sides(self.history)
        known = ~np.isnan(off) & (self.history.edges[:-1] <= self.times.said)
        if not (before & known).any() or not (after & known).any():
            return self.times.since
        low, high = float(np.mean(off[before & known])), float(np.mean(off[after & known]))
        excess = np.where(known, (off - (low + high) / 2) * np.sign(high - low), 0.0)
        tail = np.cumsum(excess[::-1])[::-1]
        return int(self.history.edges[int(tail.argmax())])

    def gone(self) -> Iterator[tuple[str, str | None, int]]:
        """Devices with rows that ended while those of most peers went on to the end."""
        there, edges = self.history.there, self.history.edges
        width = int(edges[1] - edges[0])
        quiet = max(2, int(GUARD_S * SECOND) // width)
        late: NDArray[np.bool_] = np.any(there[:, -quiet:], axis=1)
        if not self.peer.any() or late[self.peer].mean() < 0.5:
            return
        for entity in np.flatnonzero(self.mine & ~late & np.any(there, axis=1)):
            last = int(edges[1 + np.flatnonzero(there[entity])[-1]])
            yield self.history.table, self.history.entities[entity][1], last

    def runners_up(self) -> tuple[RunnerUp, ...]:
        """The three machines next to this one by the metric of the verdict."""
        if self.verdict.metric not in self.keys() or not self.mine.any():
            return ()
        place = self.keys().index(self.verdict.metric)
        effect, mine = np.nan_to_num(self.effect[place]), np.flatnonzero(self.mine)
        way = np.sign(effect[mine[self._chosen(effect[mine], mine)]])
        best: dict[str, int] = {}
        for at in np.argsort(-way * effect):
            if self.peer[at] and way * effect[at] > 0:
                best.setdefault(self.history.entities[at][0], int(at))
            if len(best) == 3:
                break
        return tuple(
            RunnerUp(*self.history.entities[at], float(effect[at]), float(self.after[place, at]))
            for at in best.values()
        )


def _median(values: Array) -> Array:
    return _percentiles(np.swapaxes(values, 0, 1), (50,))[0] if values.shape[1] else np.full(len(values), np.nan)


def _percentiles(values: Array, wanted: tuple[int, ...] = _BAND) -> NDArray[np.float32]:
    """[wanted, column] of what is known of `values` [row, column]; NaN where nothing is."""
    ordered = np.sort(values, axis=0)  # NaN goes to the end
    count = (~np.isnan(ordered)).sum(0)
    at = np.array(wanted)[:, None] / 100 * np.maximum(count - 1, 0)
    low, high = np.floor(at).astype(np.int64), np.ceil(at).astype(np.int64)
    columns = np.arange(values.shape[1])
    found = ordered[low, columns] * (1 - at % 1) + ordered[high, columns] * (at % 1)
    return np.where(count > 0, found, np.nan).astype(np.float32)
