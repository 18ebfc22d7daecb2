"""Findings of the methods and verdicts of the detector: machine, device, metric, onset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from detector.model.job import Job

Level = Literal["ok", "note", "warn", "crit"]
"""A note is a difference without harm: it goes to no sink, and is no alarm."""
STALLED = "task.stalled"
"""Metric of a verdict on a task that stands still with no machine to name."""
RANK: dict[Level, int] = {"ok": 0, "note": 1, "warn": 2, "crit": 3}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judgement on one machine of a task; times in Unix ns, `since` is when the pattern began."""

    time: int
    task: str
    machine: str
    device: str | None
    """Such as `gpu:3`; None where the machine as a whole is meant."""
    kind: str
    """The method that found it: peer, progress, evidence."""
    metric: str
    score: float
    """How strong it is, in multiples of what raises an alarm: 1.0 is just an alarm, of every method."""
    since: int
    level: Level
    message: str
    evidence: tuple[str, ...] = ()
    """Further readings that point the same way, in words."""
    job: Job | None = None
    """The scheduler's job that the device or machine worked for."""

    @property
    def names_machine(self) -> bool:
        """False for a task that stands still with no machine to name: `machine` is the task's name then."""
        return self.metric != STALLED

    def as_json(self) -> dict[str, object]:
        """The object that `peerwatch replay --json` prints, one a line."""
        return {
            "time": self.time,
            "task": self.task,
            "machine": self.machine if self.names_machine else None,
            "device": self.device,
            "kind": self.kind,
            "metric": self.metric,
            "score": round(self.score, 2),
            "since": self.since,
            "level": self.level,
            "message": self.message,
            **({"job": self.job.as_json()} if self.job else {}),
        }


@dataclass(frozen=True, slots=True)
class Finding:
    """What a method finds at one step; incidents decide whether it becomes a verdict."""

    verdict: Verdict
    hard: bool
    """A fact that needs no statistics; soft findings elsewhere in the task become its consequences."""
    evidence: float
    """How sure it is, in multiples of what raises an alarm: an alarm begins where score and evidence reach 1.0."""
    own: bool = False
    """Whether a reading that no other machine's fault can move, such as a clock, deviates: then it is no victim."""
    small: bool = False
    """Whether the difference is a small one that lasts: it is judged by all the time since it began."""
    clustered: bool = False
    """Whether the peers that it is compared with were found by their readings."""
    early: bool = False
    """Whether its evidence is not enough for an alarm yet: it is said if the harm is plain."""
    late: bool = False
    """Whether a fault of another machine is known, and ranks of this one come late beside all others as well."""
