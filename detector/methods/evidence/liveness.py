"""Liveness: when each machine and device was last read, and which are silent while their peers are read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.model.text import subject
from detector.model.verdict import Level, Verdict
from detector.stats.arrays import grown
from detector.stats.grouped import median
from detector.timeseries.live_window import Entity
from detector.timeseries.rows import Rows, device_of
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

_FIXED = ("gpu", "rdma")  # tables of devices that do not come and go with the task
_LONGEST_HABIT_S = 120.0
_HALF_NS = 3600 * SECOND
_ROLLING, _ROLLING_NS = 3, 900 * SECOND
"""So many machines that came back lately from a silence are agents that restart one after another: an upgrade."""
_ALONE_S = 300.0
"""So long a silence has to last where no other machine of the task shows by its pace that it waits."""
_EARLY_S, _EARLY_PERIODS = 10.0, 3.0
"""A silence is looked into from here on: it is said sooner than usual if the task stands since then."""
_CLUE = 0.5
"""Multiples of what raises an alarm, of a silence that is no fault of the device."""
SHARED = 0.0
"""The score of a silence of several machines at once: of their readings' way, unless the task stands since then."""
_LISTED = 5
_RELEASED_NS = 600 * SECOND
"""A machine that falls silent so soon after its job's end, in a task of few, may have been switched off."""
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


def missed_heartbeats(liveness: Liveness, now: int, tasks: Tasks, config: Config) -> list[Verdict]:
    """A verdict on each machine or device without a row for long, while its peers in the task go on.

    For a task of few machines those of the whole fleet stand in: that rows come needs no like work.
    Where more machines than `common_cause_share` are silent, but no more than half, each has a note: a rack, or the way
    of its readings.
    """
    count = len(liveness.number)
    known = liveness.period[:count][liveness.period[:count] > 0]
    if not len(known):
        return []
    quiet = (now - liveness.seen[:count]) / SECOND
    period = np.maximum(liveness.period[:count], median(known))
    usual = max(2 * liveness.habit(), restarts := liveness.restarts(now))
    limit = np.maximum(np.maximum(config.silent_seconds, 10 * period), usual)
    early = np.minimum(limit, np.maximum(max(_EARLY_S, restarts), _EARLY_PERIODS * period))
    suspects = np.flatnonzero((quiet > early) & (liveness.seen[:count] > NEVER))
    away = (quiet > early) | (now - liveness.back[:count] < early * SECOND)  # what comes back does so one by one
    if not len(suspects):
        return []
    names = list(liveness.number)
    # A scheduler takes a machine that died out of its task: it is missed there all the same.
    heard = liveness.seen[:count].tolist()
    team = np.array([tasks.task_at(name, last) or "" for (name, _), last in zip(names, heard, strict=True)], object)
    machines = np.array([name for name, _ in names], object)
    kind = np.array([(device or "").partition(":")[0] for _, device in names], object)
    out = []
    for at in suspects:
        machine, device = names[at]
        others_alike = (kind == kind[at]) & (np.arange(count) != at)
        peers = others_alike & (team == team[at])
        alone = len(np.unique(machines[team == team[at]])) < config.min_peers
        if alone and heard[at] - tasks.moved(machine) > _RELEASED_NS:
            peers = others_alike
        # What has only just come back was gone as well: after an outage not all come back at once.
        bound = limit if quiet[at] > limit[at] else early
        gone = int((peers & ((quiet > bound / 2) | (now - liveness.back[:count] < bound * SECOND / 2))).sum())
        few = max(1, int(config.common_cause_share * (peers.sum() + 1)))
        # Of a machine that is silent itself, the devices need no word.
        goes_on = device is None or _goes_on(liveness, liveness.number[machine, None], now, float(bound[at]))
        if not team[at] or not goes_on or peers.sum() + 1 < config.min_peers:
            continue
        if gone < few or (device is None and 2 * (gone + 1) <= peers.sum() + 1):
            level: Level = "crit" if quiet[at] >= 2 * limit[at] else "warn" if quiet[at] > limit[at] else "note"
            level = "note" if alone and quiet[at] < _ALONE_S else level
            mine = (machines == machine) & (kind == kind[at])
            score, since = float(quiet[at] / limit[at]), int(liveness.seen[at])
            others = "while its peers go on"
            if gone >= few:
                level, score = "note", SHARED
                others = f"nor of {_listed(machines[peers & (quiet > bound / 2)].tolist())} while other peers go on"
            elif device and level != "note" and away[mine].all():
                level, score = "note", _CLUE  # all devices of one table at once: rather its source than each of them
            message = f"{subject(machine, device)}: no reading since {quiet[at]:.0f} s {others}"
            found = (team[at], machine, device, "evidence", "event.silent", score, since, level, message)
            out.append(Verdict(now, *found))
    return out


def _listed(names: list[str]) -> str:
    """The first of them, and how many others there are."""
    rest = len(names) - _LISTED
    return ", ".join(sorted(names)[:_LISTED]) + (f" and {rest} others" if rest > 0 else "")


def _goes_on(liveness: Liveness, machine: int, now: int, bound_s: float) -> bool:
    """Whether a machine is heard of, and not just back: its devices come back one by one."""
    quiet, back = (now - liveness.seen[machine]) / SECOND, (now - liveness.back[machine]) / SECOND
    return bool(quiet <= bound_s / 3 and back > bound_s)
