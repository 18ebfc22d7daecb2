"""Evidence: hard facts that need no statistics, and the silence of a machine whose peers go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.config import SECOND, Config
from detector.rows import NEVER, Rows, device_of
from detector.tasks import Tasks
from detector.verdict import Finding, Level, Verdict
from detector.window import Entity, grown
from detector.words import subject

EXIT = "rank_exit"
_ENDS = {"link_up": "link_down", "nvml_resumed": "nvml_stalled"}
_FIXED = ("gpu", "rdma")  # tables whose devices do not come and go with the task
_LONGEST_HABIT_S = 120.0
_NOT_LIFE = ("event", "verdict", "task")  # written late, by the detector itself, or by a scheduler


@dataclass(slots=True)
class Life:
    """When each machine was last heard of; arrays over machines."""

    number: dict[Entity, int] = field(default_factory=dict)
    seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    period: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Usual seconds between two signs of life."""
    back: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """When each last came back from a long silence."""
    longest_gap: float = 0.0
    """Seconds of the longest silence that ended by itself; beyond a few minutes it was an outage and no habit."""
    places: dict[str, tuple[tuple[tuple[str, ...], ...], NDArray[np.int64]]] = field(default_factory=dict)
    """Table -> its identities, as last seen, and the numbers [2, identity] of their machines and devices."""

    def feed(self, rows: Rows, long_s: float) -> None:
        """Note the newest row of each machine, and of each device that is there whatever the task does."""
        newest = np.full(len(rows.idents), NEVER)
        np.maximum.at(newest, rows.ident, rows.time)
        if rows.table not in self.places or self.places[rows.table][0] is not rows.idents:
            whose: list[Entity] = [(ident[0], None) for ident in rows.idents]
            fixed = rows.table in _FIXED
            which = [(ident[0], device_of(rows.table, ident[1:])) for ident in rows.idents] if fixed else whose
            numbers = [[self.number.setdefault(name, len(self.number)) for name in names] for names in (whose, which)]
            self.places[rows.table] = (rows.idents, np.array(numbers, np.int64))
        place = self.places[rows.table][1]
        self.seen = grown(self.seen, (len(self.number),), NEVER)
        self.period = grown(self.period, (len(self.number),), 0.0)
        self.back = grown(self.back, (len(self.number),), NEVER)
        before = self.seen.copy()
        np.maximum.at(self.seen, place, np.stack([newest, newest]))
        came = np.flatnonzero((self.seen > before) & (before > NEVER))
        gap = (self.seen[came] - before[came]) / SECOND
        usual = np.where(self.period[came] > 0, self.period[came], gap)
        back = gap[gap > 5 * usual]
        again = came[gap > np.maximum(long_s, 5 * usual)]
        self.back[again] = self.seen[again]
        self.longest_gap = max(self.longest_gap, min(float(back.max(initial=0.0)), _LONGEST_HABIT_S))
        self.period[came] = usual + 0.1 * (np.minimum(gap, 3 * usual) - usual)


@dataclass(slots=True)
class Evidence:
    """The method and its memory."""

    config: Config
    life: Life = field(default_factory=Life)
    active: dict[tuple[str, str, str], Verdict] = field(default_factory=dict)
    """(machine, device, code) -> what is held against it."""
    exits: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """(machine, device, time) -> message of each exit of the last minutes."""

    def step(self, now: int, rows: Mapping[str, Rows], tasks: Tasks) -> list[Finding]:
        """Take in what is new; every hard fact of the last minutes and every silence is a finding."""
        for name, new in rows.items():
            if name not in _NOT_LIFE and len(new.time):
                self.life.feed(new, self.config.silent_s)
        if "event" in rows:
            self._note(now, rows["event"], tasks)
        self._judge_exits(now, tasks)
        oldest = now - int(self.config.forget_s * SECOND)
        self.active = {key: verdict for key, verdict in self.active.items() if verdict.since > oldest}
        facts = [Finding(verdict, True, 2.0) for verdict in self.active.values()]
        return facts + [Finding(verdict, True, 1.0) for verdict in self._silent(now, tasks)]

    def _note(self, now: int, rows: Rows, tasks: Tasks) -> None:
        columns = (rows.text("severity"), rows.text("device"), rows.text("message"))
        codes = rows.who(1 + rows.keys.index("code")) if "code" in rows.keys else rows.text("code")
        for at, machine in enumerate(rows.who(0)):
            severity, device, message = (column[at] for column in columns)
            task, time, code = tasks.task_of(machine), int(rows.time[at]), codes[at]
            if code in _ENDS:
                over = self.active.get((machine, device, _ENDS[code]))
                if over is not None and over.since <= time:
                    del self.active[machine, device, _ENDS[code]]
            elif code == EXIT and severity == "crit":
                self.exits[machine, device, time] = message
            elif severity == "crit" and task is not None:
                self._hold(now, task, (machine, device, code), time, message)

    def _hold(self, now: int, task: str, key: tuple[str, str, str], time: int, message: str) -> None:
        machine, device, code = key
        said = f"{subject(machine, device or None)}: {message or code}"
        verdict = Verdict(now, task, machine, device or None, "evidence", f"event.{code}", 10.0, time, "crit", said)
        known = self.active.get(key)
        self.active[key] = verdict if known is None or time > known.since else known

    def _judge_exits(self, now: int, tasks: Tasks) -> None:
        """A rank that leaves alone is at fault; when the machines leave together, the task has ended."""
        grace = int(self.config.grace_s * SECOND)
        oldest = now - int(self.config.forget_s * SECOND)
        self.exits = {key: message for key, message in self.exits.items() if key[2] > oldest}
        for (machine, device, time), message in self.exits.items():
            task = tasks.task_of(machine)
            if task is None or now - time < grace:
                continue
            leavers = {m: t for (m, _, t) in self.exits if tasks.task_of(m) == task}
            together = {m for m, t in leavers.items() if abs(t - time) <= grace}
            first = min(t for (m, _, t) in self.exits if tasks.task_of(m) == task)
            if len(together) == 1 and time - first <= grace:
                self._hold(now, task, (machine, device, EXIT), time, message)

    def _silent(self, now: int, tasks: Tasks) -> list[Verdict]:
        life, config = self.life, self.config
        count = len(life.number)
        if not count:
            return []
        quiet = (now - life.seen[:count]) / SECOND
        known = life.period[:count][life.period[:count] > 0]
        if not len(known):
            return []
        period = np.maximum(life.period[:count], np.median(known))
        limit = np.maximum(np.maximum(config.silent_s, 10 * period), 2 * life.longest_gap)
        suspects = np.flatnonzero((quiet > limit) & (life.seen[:count] > NEVER))
        if not len(suspects):
            return []
        names = list(life.number)
        team = np.array([tasks.task_of(name) or "" for name, _ in names], object)
        kind = np.array([(device or "").partition(":")[0] for _, device in names], object)
        out = []
        for at in suspects:
            machine, device = names[at]
            peers = (team == team[at]) & (kind == kind[at]) & (np.arange(count) != at)
            # Who has only just come back was gone as well: after an outage not all come back at once.
            gone = int((peers & ((quiet > limit / 2) | (now - life.back[:count] < limit * SECOND / 2))).sum())
            few = max(1, int(config.spread_share * (peers.sum() + 1)))
            # Of a machine that is silent itself, the devices need no word.
            goes_on = device is None or quiet[life.number[machine, None]] <= limit[at] / 3
            if team[at] and goes_on and peers.sum() + 1 >= config.fewest_peers and gone < few:
                level: Level = "crit" if quiet[at] >= 2 * limit[at] else "warn"
                score, since = float(quiet[at] / limit[at]), int(life.seen[at])
                message = f"{subject(machine, device)}: no reading since {quiet[at]:.0f} s while its peers go on"
                found = Verdict(
                    now, team[at], machine, device, "evidence", "event.silent", score, since, level, message
                )
                out.append(found)
        return out
