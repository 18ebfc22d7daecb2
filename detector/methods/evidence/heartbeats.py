"""Heartbeats: which machines and devices are silent while their peers are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.methods.evidence.liveness import Liveness
from detector.model.text import subject
from detector.model.verdict import Level, Verdict
from detector.stats.grouped import median
from detector.timeseries.live_window import Entity
from detector.topology.tasks import Tasks
from store.schema.time import NEVER, SECOND

LOST_NS = 300 * SECOND
"""A machine that is silent for longer is missed, whether or not its task shows by its pace that it waits."""
_ALONE_NS = 180 * SECOND
"""The same of one that trains alone, of which nothing tells but its silence: its agent restarts in less."""
_EARLY_S, _EARLY_PERIODS = 10.0, 3.0
"""A silence is looked into from here on: it is said sooner than usual if the task stands since then."""
CLUE = 0.5
"""Multiples of what raises an alarm, of a silence that is no fault of the device but of what reads it."""
SHARED = 0.0
"""The score of a silence of several machines at once: of their readings' way, unless the task stands since then."""
_LISTED = 5
_RELEASED_NS = 600 * SECOND
"""A machine that falls silent so soon after its job's end, in a task of few, may have been switched off."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """How long each machine and device [entity] is silent, and how long it may be; seconds."""

    quiet: NDArray[np.float64]
    since_back: NDArray[np.float64]
    """Since it came back from a long silence."""
    limit: NDArray[np.float64]
    early: NDArray[np.float64]
    """From here on a silence is looked into."""

    def bound(self, at: int) -> NDArray[np.float64]:
        """The limit that entity `at` is beyond: its own or the early one."""
        return self.limit if self.quiet[at] > self.limit[at] else self.early

    def away(self, bound: NDArray[np.float64]) -> NDArray[np.bool_]:
        """[entity]: who is silent for so long, or only just back: what comes back does so one by one."""
        return (self.quiet > bound) | (self.since_back < bound)


@dataclass(frozen=True, slots=True)
class _Fleet:
    """The machines and devices [entity]."""

    names: list[Entity]
    machine: NDArray[np.object_]
    kind: NDArray[np.object_]
    """The table of a device; empty: a machine."""
    team: NDArray[np.object_]
    """The task in which it was heard of last."""


def missed_heartbeats(liveness: Liveness, now: int, tasks: Tasks, config: Config) -> list[Verdict]:
    """A verdict on each machine or device without a row for long, while its peers in the task go on.

    For a task of few machines those of the whole fleet stand in: that rows come needs no like work.
    Where more machines than `common_cause_share` are silent, but no more than half, each has a note: a rack, or the way
    of its readings.
    """
    limits = _limits(liveness, now, config)
    suspects = np.flatnonzero((limits.quiet > limits.early) & (liveness.seen[: len(limits.quiet)] > NEVER))
    if not len(suspects):
        return []
    fleet = _fleet(liveness, tasks)
    found = (_missed(int(at), limits, fleet, liveness, now, tasks, config) for at in suspects)
    return [verdict for verdict in found if verdict is not None]


def _limits(liveness: Liveness, now: int, config: Config) -> _Limits:
    """How long each may be silent; empty before a period is known."""
    count = len(liveness.number)
    known = liveness.period[:count][liveness.period[:count] > 0]
    if not len(known):
        return _Limits(*np.zeros((4, 0)))
    period = np.maximum(liveness.period[:count], median(known))
    usual = max(2 * liveness.habit(), restarts := liveness.restarts(now))
    limit = np.maximum(np.maximum(config.silent_seconds, 10 * period), usual)
    early = np.minimum(limit, np.maximum(max(_EARLY_S, restarts), _EARLY_PERIODS * period))
    return _Limits((now - liveness.seen[:count]) / SECOND, (now - liveness.back[:count]) / SECOND, limit, early)


def _fleet(liveness: Liveness, tasks: Tasks) -> _Fleet:
    names, heard = list(liveness.number), liveness.seen[: len(liveness.number)].tolist()
    # A scheduler takes a machine that died out of its task: it is missed there all the same.
    team = [tasks.task_at(name, last) or "" for (name, _), last in zip(names, heard, strict=True)]
    kind = [(device or "").partition(":")[0] for _, device in names]
    return _Fleet(names, *(np.array(column, object) for column in ([name for name, _ in names], kind, team)))


def _missed(
    at: int, limits: _Limits, fleet: _Fleet, liveness: Liveness, now: int, tasks: Tasks, config: Config
) -> Verdict | None:
    """The verdict on one that is silent; None: its peers do not go on, or it has too few."""
    (machine, device), team = fleet.names[at], fleet.team == fleet.team[at]
    last, bound = int(liveness.seen[at]), limits.bound(at)
    peers = (fleet.kind == fleet.kind[at]) & (np.arange(len(fleet.names)) != at)
    alone = len(np.unique(fleet.machine[team])) < config.min_peers
    if not alone or last - tasks.moved(machine) <= _RELEASED_NS:
        peers &= team
    # Of a machine that is silent itself, the devices need no word.
    goes_on = device is None or _goes_on(limits, liveness.number[machine, None], float(bound[at]))
    if not fleet.team[at] or not goes_on or peers.sum() + 1 < config.min_peers:
        return None
    gone, few = int((peers & limits.away(bound / 2)).sum()), int(config.common_cause_share * (peers.sum() + 1))
    level: Level
    if gone < max(1, few):
        level, score = _graded(at, limits, fleet, alone)
        others = "while its peers go on"
    elif device is None and 2 * (gone + 1) <= peers.sum() + 1:
        level, score = "note", SHARED
        silent = fleet.machine[peers & (limits.quiet > bound / 2)].tolist()
        others = f"nor of {_listed(silent)} while other peers go on"
    else:
        return None
    message = f"{subject(machine, device)}: no reading since {limits.quiet[at]:.0f} s {others}"
    return Verdict(now, fleet.team[at], machine, device, "evidence", "event.silent", score, last, level, message)


def _graded(at: int, limits: _Limits, fleet: _Fleet, alone: bool) -> tuple[Level, float]:
    """The level and score of a silence; `alone`: no other machine of the task tells by its pace that it waits."""
    quiet, limit = limits.quiet[at], limits.limit[at]
    level: Level = "crit" if quiet >= 2 * limit else "warn" if quiet > limit else "note"
    if alone and quiet * SECOND < _ALONE_NS:
        level = "note"
    mine = (fleet.machine == fleet.machine[at]) & (fleet.kind == fleet.kind[at])
    if fleet.kind[at] and limits.away(limits.early)[mine].all():
        return "note", CLUE  # all devices of one table at once: rather its source than each of them
    return level, float(quiet / limit)


def _listed(names: list[str]) -> str:
    """The first of them, and how many others there are."""
    rest = len(names) - _LISTED
    return ", ".join(sorted(names)[:_LISTED]) + (f" and {rest} others" if rest > 0 else "")


def _goes_on(limits: _Limits, machine: int, bound_s: float) -> bool:
    """Whether a machine is heard of, and not just back: its devices come back one by one."""
    return bool(limits.quiet[machine] <= bound_s / 3 and limits.since_back[machine] > bound_s)
