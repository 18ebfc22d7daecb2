"""Stalls: of a task without progress all members wait alike; the one that does not is what they wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.harm.pace import PAUSES, STANDS, Pace
from detector.harm.waiting import DUTY, MEMORY, STATES, Standing, all_wait, has_ended, is_idle, states_of
from detector.methods.peers.state import Panel
from detector.model.metrics import bounds_of
from detector.model.text import comparison, subject
from detector.model.verdict import STALLED, Finding, Level, Verdict
from detector.stats.arrays import Singles, fitted
from detector.stats.grouped import middle
from detector.stats.robust import NORMAL
from store.schema.time import SECOND

_LEAST_NS = 10 * SECOND
_RAN = 12
"""Blocks that were seen of a task, most of them running, before it can be said to stand."""
_SPREADS, _SHARE, _GONE = 6.0, 0.12, 0.5
"""The least difference that counts: robust standard deviations of the waiting ranks, and a share of their reading; of
memory half of it, as a process that is gone has none."""
_ALONE = 2.0
"""Times as far as the next machine."""
_CANDIDATES = 3
_HELD_NS, _SAME_NS = 30 * SECOND, 20 * SECOND
"""For so long a stall that is over is said; the beginnings of one stall are not farther apart."""
WRITES_NS = 45 * SECOND
"""For so long a GPU that does less than those that wait may be that of a rank that writes the checkpoint of all ..."""
_SURE_NS = 120 * SECOND
"""... and a task in which all GPUs wait is noted only: most checkpoints are shorter."""


@dataclass(slots=True)
class Stalls:
    """The outlier of each task that makes no progress, and for how many blocks it was that."""

    outlier: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """By task: machine, device and how often in a row."""
    standing: dict[str, Standing] = field(default_factory=dict)
    """By task that stands."""
    usual: Singles = field(default_factory=lambda: np.zeros((2, len(STATES), 0), np.float32))
    """[look, state, entity]: by how much GPUs differed from their peers at the last look at which their task went on,
    and at the one before that: baselines of a young task begin again when all GPUs come to wait."""
    named: dict[str, tuple[Verdict, int]] = field(default_factory=dict)
    """By task: the verdict, and when (Unix ns) the task made no progress last."""
    unnamed: dict[str, tuple[Verdict, int]] = field(default_factory=dict)
    """The same of tasks in which all members wait alike; their verdict names the task in place of a machine."""

    def update(self, now: int, pace: Pace, panels: Mapping[str, Panel], config: Config) -> None:
        """Look at every task after a new block of its pace."""
        self._note_usual(pace, panels.get("gpu"))
        for task in pace.tasks:
            since = stalled_since(pace, task)
            if since is None:
                if (stood := self.standing.pop(task, None)) is not None:
                    pace.paused_for(task, now - stood.since)
                self.outlier.pop(task, None)
                continue
            readings = self._averaged(task, since, panels.get("gpu"))
            if now - since < max(_LEAST_NS, PAUSES * pace.longest_pause(task, since)):
                self.outlier.pop(task, None)
                continue
            if task in self.named:
                self.named[task] = self.named[task][0], now
                continue
            outliers = _outliers(task, readings, self.usual[1], panels, config)
            found = max(outliers, key=lambda one: one[0], default=None)
            if found is None:
                self.outlier.pop(task, None)
                if all_wait(task, panels, readings):
                    self.unnamed[task] = _unnamed(task, readings, panels["gpu"], now, since), now
                continue
            self.unnamed.pop(task, None)
            _, machine, device, key, words, less = found
            if less and now - since < WRITES_NS:
                continue
            before = self.outlier.get(task, ("", "", 0))
            times = before[2] + 1 if before[0] == machine else 1
            self.outlier[task] = machine, device, times
            if times >= 2:
                waits = f"task {task} stands still since {(now - since) / SECOND:.0f} s"
                message = f"{words}; {waits}, and its other members wait alike"
                verdict = Verdict(now, task, machine, device or None, "progress", key, found[0], since, "crit", message)
                self.named[task] = verdict, now
        self.named, self.unnamed = (
            {task: one for task, one in those.items() if now - one[1] < _HELD_NS}
            for those in (self.named, self.unnamed)
        )

    def _note_usual(self, pace: Pace, panel: Panel | None) -> None:
        """Take in by how much GPUs differ from their peers, of tasks that go on."""
        if panel is None or not panel.deviation.size:
            return
        count = panel.deviation.shape[1]
        if self.usual.shape[2] != count:
            self.usual = fitted(self.usual, (2, len(STATES), count))
        goes_on = np.array([not pace.paused(task)[-1:].any() for task in panel.tasks] + [False])
        those = np.flatnonzero(goes_on[panel.task_index[:count]])
        self.usual[1][:, those] = self.usual[0][:, those]
        for at, key in enumerate(STATES):
            if (row := panel.row_of(key.partition(".")[2])) is not None:
                self.usual[0][at, those] = panel.baseline.offset[row, those]

    def _averaged(self, task: str, since: int, panel: Panel | None) -> Singles:
        """[state, entity]: what the GPUs read on average since (Unix ns) the task stands."""
        if panel is None or not panel.deviation.size:
            return np.zeros((0, 0), np.float32)
        readings = states_of(panel)
        held = self.standing.get(task)
        if held is None or held.total.shape != readings.shape or abs(since - held.since) > _SAME_NS:
            held = self.standing[task] = Standing(since, np.zeros_like(readings), np.zeros_like(readings))
        return held.add(readings)

    def evict(self) -> None:
        """Forget what was read: the entities get new numbers."""
        self.standing.clear()
        self.usual = self.usual[:, :, :0]

    def findings(self) -> list[Finding]:
        """The machine that a stalled task waits for; the task itself where none can be named."""
        named = [Finding(verdict, True, 1.0) for verdict, _ in self.named.values()]
        return named + [
            Finding(one, True, one.score) for task, (one, _) in self.unnamed.items() if task not in self.named
        ]


def stalled_since(pace: Pace, task: str) -> int | None:
    """Since when (Unix ns) a task that ran makes no progress; None: it does, or never did."""
    logs = pace.logs(task)
    if not logs.shape[1] or len(logs) < _RAN or np.isnan(logs[-1]).all():
        return None
    known = ~np.isnan(logs).all(1)
    level = np.full(len(logs), np.nan)
    level[known] = np.nanmedian(logs[known], axis=1)
    moves = np.flatnonzero(level > STANDS)
    if not len(moves) or moves[-1] >= len(level) - 2 or len(moves) < _RAN / 2:
        return None
    return int(pace.times[moves[-1]])


def _outliers(
    task: str, states: Singles, usual: Singles, panels: Mapping[str, Panel], config: Config
) -> Iterator[tuple[float, str, str, str, str, bool]]:
    """Machines that do not wait as the others do: how far, machine, device, metric, words, and whether it does less.

    `states` and `usual` are [state, entity]: what is read, and by how much that differs from the peers anyway.
    """
    panel = panels.get("gpu")
    if panel is None or task not in panel.tasks or not panel.deviation.size:
        return
    count = panel.deviation.shape[1]
    mine = np.flatnonzero(panel.task_index[:count] == panel.tasks.index(task))
    machines = panel.machine[mine]
    if len(np.unique(machines)) < config.min_peers - 1:
        machines = mine  # the GPUs of one machine are peers
    if len(np.unique(machines)) < config.min_peers - 1:
        return
    if has_ended(panel, mine) or is_idle(task, panels):
        return
    names = panel.window.metrics
    floors = bounds_of("gpu", names, config).floor
    both = (array[:, mine].astype(np.float64) for array in (states, usual))
    for key, readings, differs in zip(STATES, *both, strict=True):
        known = ~np.isnan(readings)
        if not known.any():
            continue
        floor = float(floors[names.index(key.partition(".")[2])]) / 2  # of averages
        far = _far(readings, differs, floor, key == MEMORY)
        _, place = np.unique(machines, return_inverse=True)
        worst = np.zeros(int(place.max()) + 1)
        np.fmax.at(worst, place, far)
        first, second = np.sort(worst)[[-1, -2]]
        if first >= 1 and first >= _ALONE * second:
            at = int(np.nanargmax(far))
            less = key != MEMORY and bool(readings[at] < middle(readings[None])[0])
            machine, device = _named(panel, int(mine[at]), far >= first / 2, machines == machines[at])
            others = middle(readings[None])[0], int(known.sum()) - 1
            yield (
                first,
                machine,
                device or "",
                key,
                comparison(subject(machine, device), key, readings[at], *others),
                less,
            )


def _unnamed(task: str, states: Singles, panel: Panel, now: int, since: int) -> Verdict:
    """A verdict on a task of which no member can be named, with those that read most unlike the others.

    `states` [state, entity]: what they read, on average, since it stands.
    """
    count = panel.deviation.shape[1]
    mine = np.flatnonzero(panel.task_index[:count] == panel.tasks.index(task))
    most = np.zeros(len(mine))
    for key, readings in zip(STATES, states[:, mine].astype(np.float64), strict=True):
        if not np.isnan(readings).all():
            most = np.fmax(most, _far(readings, np.zeros(len(mine)), 0.0, key == MEMORY))
    order = [panel.window.entities[mine[at]] for at in np.argsort(-most)[:_CANDIDATES]]
    names = ", ".join(subject(machine, device) for machine, device in order)
    stands = f"task {task} stands still since {(now - since) / SECOND:.0f} s: all its GPUs wait"
    score = (now - since) / _SURE_NS
    level: Level = "crit" if score >= 1 else "note"
    machines = {panel.window.entities[at][0] for at in mine.tolist()}
    if len(machines) == 1:  # it is known where, if not which GPU
        (machine,) = machines
        message = f"{machine}: {stands} on it alone; most unlike the others: {names}"
        return Verdict(now, task, machine, None, "progress", DUTY, score, since, level, message)
    message = f"{stands} and no machine can be named; most unlike the others: {names}"
    return Verdict(now, task, task, None, "progress", STALLED, score, since, level, message)


def _far(values: NDArray[Any], usual: NDArray[Any], floor: float, below_only: bool) -> NDArray[Any]:
    """[member]: its distance from the others, as far as it is not `usual` [member], over the least that counts."""
    center = middle(values[None])[0]
    spread = NORMAL * middle(np.abs(values - center)[None])[0]
    least = max(_SPREADS * spread, (_GONE if below_only else _SHARE) * abs(center), floor, 1e-12)
    away = values - center
    away -= np.clip(usual, np.minimum(away, 0), np.maximum(away, 0))
    far: NDArray[Any] = (-away if below_only else np.abs(away)) / least
    return far


def _named(panel: Panel, entity: int, odd: NDArray[np.bool_], mine: NDArray[np.bool_]) -> tuple[str, str | None]:
    """The machine, and its device unless all of them are odd."""
    machine, device = panel.window.entities[entity]
    return machine, None if mine.sum() > 1 and odd[mine].all() else device
