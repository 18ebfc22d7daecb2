"""Facts: what critical events say of machines, how long it stands, and what ends it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.model.text import subject
from detector.model.verdict import Verdict
from detector.timeseries.rows import Rows
from detector.topology.maintenance import OPERATOR, OperatorState
from detector.topology.tasks import Tasks
from store.schema.time import SECOND

EXIT, DOWN = "rank_exit", "link_down"
ENDS = {"link_up": DOWN, "nvml_resumed": "nvml_stalled", "gpu_back": "gpu_lost"}
_GPU = ("xid", "ecc", "remap", "poison", "gpu_lost", "nvml_stalled")
LASTING = (*_GPU, "sxid", "mce", "edac", "aer", "nic_failed", "disk_lost", "fs_lost", "check")
"""The code, up to its colon, of a cause that does not go away by itself: it stands until it is repaired."""
READABLE = ("gpu_lost", "nvml_stalled")
"""Codes that are refuted by readings of the GPU."""
_HARMLESS_XIDS = {"xid:13", "xid:31", "xid:43", "xid:45", "xid:63", "xid:68", "xid:69", "xid:92"}
"""NVIDIA's catalogue: faults of programs and their aftermath (13, 31, 43, 45, 68, 69), a row that is remapped at the
next reset (63), a high rate of errors that were corrected (92). None asks for more than a look."""
Key = tuple[str, str, str]
"""Machine, device (empty: the machine as a whole), code."""


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that happened at `since` (Unix ns)."""

    since: int
    metric: str
    message: str


@dataclass(slots=True)
class EventState:
    """The facts that stand, by machine, device and code."""

    active: dict[Key, Fact] = field(default_factory=dict)
    warned: dict[Key, Fact] = field(default_factory=dict)
    """Events that are no fault by themselves, but tell of one if the task slows down from then on."""
    exits: dict[tuple[str, str, int], str] = field(default_factory=dict)
    """(machine, device, time) -> message of each exit of the last minutes."""
    _idents: tuple[tuple[str, ...], ...] = ()
    _special: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def feed(self, rows: Rows, orders: OperatorState) -> None:
        """Learn from rows of the table `event`; what the operator has forgiven counts no more."""
        for (machine, device, code), time, (severity, message) in self._telling(rows):
            if time <= orders.forgiven(machine, device or None):
                continue
            if code in ENDS:
                over = self.active.get((machine, device, ENDS[code]))
                if over is not None and over.since <= time:
                    del self.active[machine, device, ENDS[code]]
            elif code == EXIT and severity == "crit":
                self.exits[machine, device, time] = message
            elif severity == "crit" and code not in _HARMLESS_XIDS:
                self._activate((machine, device, code), time, message)
            elif code not in (EXIT, DOWN):
                said = f"{subject(machine, device or None)}: {message or code}"
                self.warned.setdefault((machine, device, code), Fact(time, f"event.{code}", said))

    def _telling(self, rows: Rows) -> Iterator[tuple[Key, int, tuple[str, str]]]:
        """The last of each kind of event, in order of time: who and what, when, severity and message."""
        place = 1 + rows.keys.index("code") if "code" in rows.keys else None
        codes = rows.who(place) if place else rows.text("code")
        if place and rows.idents is not self._idents:
            self._idents = rows.idents
            self._special = np.array([ident[place] in ENDS for ident in rows.idents], bool)
        severity = rows.text("severity")
        some = np.isin(severity.astype(str), ("warn", "crit"))
        some |= self._special[rows.ident] if place else np.isin(codes.astype(str), tuple(ENDS))
        those = np.flatnonzero(some & (rows.who(1) != OPERATOR))
        if not len(those):
            return
        device, message = rows.text("device"), rows.text("message")
        _, kind = np.unique(device[those].astype(str), return_inverse=True)
        _, what = np.unique(codes[those].astype(str), return_inverse=True)
        mixed = (rows.ident[those] * (what.max() + 1) + what) * (kind.max() + 1) + kind
        _, back = np.unique(mixed[::-1], return_index=True)
        machines = rows.who(0)
        for at in those[len(those) - 1 - np.sort(back)[::-1]]:
            yield (str(machines[at]), str(device[at]), str(codes[at])), int(rows.time[at]), (severity[at], message[at])

    def _activate(self, key: Key, time: int, message: str) -> None:
        machine, device, code = key
        known = self.active.get(key)
        if known is None or (time > known.since and not is_lasting(code)):
            said = f"{subject(machine, device or None)}: {message or code}"
            self.active[key] = Fact(time, f"event.{code}", said)

    def judge_exits(self, now: int, tasks: Tasks, grace: int) -> None:
        """A rank that leaves alone is at fault; when the machines leave together, the task has ended."""
        teams = {machine: tasks.task_of(machine) for machine, _, _ in self.exits}
        for (machine, device, time), message in self.exits.items():
            task = teams[machine]
            if task is None or now - time < grace:
                continue
            leavers = [(m, t) for m, _, t in self.exits if teams[m] == task]
            together = {m for m, t in dict(leavers).items() if abs(t - time) <= grace}
            if len(together) == 1 and time - min(t for _, t in leavers) <= grace:
                self._activate((machine, device, EXIT), time, message)

    def fade(self, now: int, orders: OperatorState, config: Config) -> None:
        """Let go of what happened long ago, unless its cause lasts, and of what the operator has forgiven."""
        oldest = now - int(config.event_incident_seconds * SECOND)
        self.exits = {key: message for key, message in self.exits.items() if key[2] > oldest}
        self.warned = {key: fact for key, fact in self.warned.items() if fact.since > oldest}
        self.active = {
            key: fact
            for key, fact in self.active.items()
            if (fact.since > oldest or is_lasting(key[2])) and fact.since > orders.forgiven(key[0], key[1] or None)
        }

    def evict(self, gone: Container[str]) -> None:
        """Forget the facts of machines that are gone."""
        self.warned = {key: fact for key, fact in self.warned.items() if key[0] not in gone}
        self.active = {key: fact for key, fact in self.active.items() if key[0] not in gone}

    def repaired(self, machine: str, device: str | None = None) -> None:
        """End what lasts until the machine restarts; with a GPU, what lasts until that is reset."""
        gone = [
            key
            for key in self.active
            if key[0] == machine
            and (is_lasting(key[2]) if device is None else key[1] == device and key[2].split(":")[0] in _GPU)
        ]
        for key in gone:
            del self.active[key]

    def restore(self, verdict: Verdict) -> None:
        """Resume a verdict of an earlier detector, if its cause lasts."""
        table, _, code = verdict.metric.partition(".")
        if table == "event" and is_lasting(code):
            key = verdict.machine, verdict.device or "", code
            self.active.setdefault(key, Fact(verdict.since, verdict.metric, verdict.message))


def is_lasting(code: str) -> bool:
    """Whether this stands until somebody mends it."""
    return code.split(":")[0] in LASTING
