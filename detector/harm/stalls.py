"""Stalls: of a task without progress all members wait alike; the one that does not is what they wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from detector.config import Config
from detector.harm.outliers import outliers_of, unnamed
from detector.harm.pace import PAUSES, STANDS, Pace
from detector.harm.waiting import STATES, Standing, all_wait, has_ended, states_of
from detector.methods.peers.state import Panel
from detector.model.verdict import Finding, Verdict
from detector.stats.arrays import Singles, fitted
from store.schema.time import SECOND

_LEAST_NS = 10 * SECOND
_RAN = 12
"""Blocks that were seen of a task, most of them running, before it can be said to stand."""
_HELD_NS, _SAME_NS = 30 * SECOND, 20 * SECOND
"""For so long a stall that is over is said; the beginnings of one stall are not farther apart."""
WRITES_NS = 45 * SECOND
"""For so long a GPU that does less than those that wait may be that of a rank that writes the checkpoint of all."""


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
                stood = self.standing.pop(task, None)
                if stood is not None and not pace.ended_since(task, stood.since):
                    pace.paused_for(task, now - stood.since)
                self.outlier.pop(task, None)
                continue
            readings = self._averaged(task, since, panels.get("gpu"))
            restarts = self._has_ended(task, pace, panels.get("gpu"))
            if now - since < max(_LEAST_NS, PAUSES * pace.longest_pause(task, since, restarts)):
                self.outlier.pop(task, None)
                continue
            if task in self.named:
                self.named[task] = self.named[task][0], now
                continue
            outliers = outliers_of(task, readings, self.usual[1], now - since, panels, config)
            found = max(outliers, key=lambda one: one[0], default=None)
            if found is None:
                self.outlier.pop(task, None)
                if all_wait(task, panels, readings):
                    self.unnamed[task] = unnamed(task, readings, panels, now, since), now
                continue
            self.unnamed.pop(task, None)
            _, machine, device, key, words, less = found
            before = self.outlier.get(task, ("", "", 0))
            times = before[2] + 1 if before[0] == machine else 1
            self.outlier[task] = machine, device, times
            if times >= 2 and (not less or now - since >= WRITES_NS):
                waits = f"task {task} stands still since {(now - since) / SECOND:.0f} s"
                message = f"{words}; {waits}, and its other members wait alike"
                score = max(found[0], 1.0)
                verdict = Verdict(now, task, machine, device or None, "progress", key, score, since, "crit", message)
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

    def _has_ended(self, task: str, pace: Pace, panel: Panel | None) -> bool:
        """Whether the processes of a task have ended since it stands: only restarts tell how long restarts take."""
        if panel is None or task not in self.standing or task not in panel.tasks:
            return False
        count = panel.deviation.shape[1]
        if has_ended(panel, np.flatnonzero(panel.task_index[:count] == panel.tasks.index(task))):
            pace.note_ended(task)
        return pace.ended_since(task, self.standing[task].since)

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
    """Since when (Unix ns) a task that ran is seen to make no progress; None: it does, or never did.

    What it did while nothing of it was read, for two blocks and more, is not known.
    """
    logs = pace.logs(task)
    if not logs.shape[1] or len(logs) < _RAN or np.isnan(logs[-1]).all():
        return None
    known = np.asarray(~np.isnan(logs).all(1))
    level = np.full(len(logs), np.nan)
    level[known] = np.nanmedian(logs[known], axis=1)
    moves = level > STANDS
    if moves.sum() < _RAN / 2:
        return None
    moves[1:] |= ~known[1:] & ~known[:-1]
    last = int(np.flatnonzero(moves)[-1])
    return None if last >= len(level) - 2 else int(pace.times[last])
