"""Liveness: when each machine and device was last read, how often, and after which silence."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.stats.arrays import grown
from detector.stats.grouped import median
from detector.timeseries.live_window import Entity
from detector.timeseries.rows import Rows, device_of
from store.schema.time import NEVER, SECOND

_FIXED = ("gpu", "rdma")  # tables of devices that do not come and go with the task
_LONGEST_HABIT_S = 120.0
_HALF_NS = 3600 * SECOND
_ROLLING, _ROLLING_NS = 3, 900 * SECOND
"""So many machines that came back lately from a silence are agents that restart one after another: an upgrade."""
NOT_LIFE = ("event", "verdict", "task")
"""Tables that are written late, by the detector itself, by people, or by a scheduler."""


@dataclass(slots=True)
class Liveness:
    """When each machine was last heard of; arrays over machines and devices."""

    number: dict[Entity, int] = field(default_factory=dict)
    seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    period: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Usual seconds between two rows."""
    back: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """When each last came back from a long silence."""
    gap: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Seconds of each one's longest silence that ended by itself, halved each hour; at most two minutes."""
    fed: int = NEVER
    """When rows came last, Unix ns."""
    places: dict[str, tuple[tuple[tuple[str, ...], ...], NDArray[np.int64]]] = field(default_factory=dict)
    """Table -> its identities, as last seen, and the numbers [2, identity] of their machines and devices."""

    def feed(self, rows: Rows, long_s: float) -> None:
        """Note the newest row of each machine, and of each device that is there whatever the task does."""
        newest = np.full(len(rows.idents), NEVER)
        newest[rows.ident] = rows.time  # rows are in order of time: of several, the last one stays
        place = self._places(rows)
        self.seen = grown(self.seen, (len(self.number),), NEVER)
        self.period = grown(self.period, (len(self.number),), 0.0)
        self.back = grown(self.back, (len(self.number),), NEVER)
        self.gap = grown(self.gap, (len(self.number),), 0.0)
        self._fade(int(newest.max(initial=NEVER)))
        before = self.seen.copy()
        np.maximum.at(self.seen, place, np.stack([newest, newest]))
        came = np.flatnonzero((self.seen > before) & (before > NEVER))
        gap = (self.seen[came] - before[came]) / SECOND
        usual = np.where(self.period[came] > 0, self.period[came], gap)
        back = gap[gap > 5 * usual]
        again = came[gap > np.maximum(long_s, 5 * usual)]
        self.back[again] = self.seen[again]
        self.gap[came[gap > 5 * usual]] = np.maximum(
            self.gap[came[gap > 5 * usual]], np.minimum(back, _LONGEST_HABIT_S)
        )
        self.period[came] = usual + 0.1 * (np.minimum(gap, 3 * usual) - usual)

    def _fade(self, now: int) -> None:
        """Forget half of what is usual every hour."""
        if now > self.fed > NEVER:
            self.gap *= 0.5 ** ((now - self.fed) / _HALF_NS)
        self.fed = max(self.fed, now)

    def habit(self) -> float:
        """Seconds for which a machine of this fleet is silent now and then: half of them were."""
        return median(self.gap) if len(self.gap) else 0.0

    def restarts(self, now: int) -> float:
        """Seconds that an agent is away in an upgrade of the fleet, two minutes at most; 0: there is none now."""
        back = np.flatnonzero(now - self.back < _ROLLING_NS)
        if len(back) < _ROLLING:
            return 0.0
        names = list(self.number)
        whole = [at for at in back.tolist() if names[at][1] is None]
        return float(self.gap[whole].max()) if len(whole) >= _ROLLING else 0.0

    def _places(self, rows: Rows) -> NDArray[np.int64]:
        if rows.table not in self.places or self.places[rows.table][0] is not rows.idents:
            machines: list[Entity] = [(ident[0], None) for ident in rows.idents]
            fixed = rows.table in _FIXED
            which = [(ident[0], device_of(rows.table, ident[1:])) for ident in rows.idents] if fixed else machines
            numbers = [
                [self.number.setdefault(name, len(self.number)) for name in names] for names in (machines, which)
            ]
            self.places[rows.table] = (rows.idents, np.array(numbers, np.int64))
        return self.places[rows.table][1]

    def newest(self) -> int:
        """When anything was heard last, Unix ns."""
        return int(self.seen.max(initial=NEVER))

    def evict(self, before: int) -> frozenset[str]:
        """Forget machines not heard of since `before` (Unix ns), and with them their devices; which these are."""
        names = list(self.number)
        gone = frozenset(who for (who, device), at in self.number.items() if device is None and self.seen[at] < before)
        if not gone:
            return gone
        left = np.flatnonzero([name not in gone for name, _ in names])
        self.number = {names[old]: new for new, old in enumerate(left.tolist())}
        self.seen, self.back = self.seen[left], self.back[left]
        self.period, self.gap = self.period[left], self.gap[left]
        self.places = {}
        return gone

    def acknowledge(self, machine: str, until: int) -> None:
        """Take a machine and its devices, if they are known, as heard of at `until` (Unix ns)."""
        mine = [place for (name, _), place in self.number.items() if name == machine]
        self.seen[mine] = np.maximum(self.seen[mine], until)
