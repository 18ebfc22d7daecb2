"""A pretend fleet before it becomes tables: one synchronous training task, and what faults and phases bend.

The model: every iteration all GPUs compute, then talk; the slowest sets the pace and waits least, the others wait
for it. Machines are split into the stages of a pipeline, which carry different loads. The GPUs of one number in the
machines of one stage share a data-parallel communicator, one rank of each stage shares a pipeline's with those of the
others, and all ranks share one of the world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.schema.time import SECOND

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Columns = dict[str, Array]
START = 1_760_000_000 * SECOND
TABLES = ("host", "gpu", "rdma", "nccl", "cuda", "task", "event")
COMPUTES, TALKS = 0.8, 0.08
"""Shares of an undisturbed iteration; the rest goes in waiting for whoever happens to be last."""


@dataclass(frozen=True, slots=True)
class Place:
    """Some steps of some devices; None stands for all machines, or all GPUs."""

    on: Mask
    """[step]"""
    who: int | None
    gpu: int | None

    def cell(self, begin: int, shape: tuple[int, ...]) -> tuple[Array, ...] | None:
        """Index into an array [step, machine, gpu] that starts at step `begin`; None where nothing is meant."""
        steps = np.flatnonzero(self.on[begin : begin + shape[0]])
        if not len(steps):
            return None
        machines = np.arange(shape[1]) if self.who is None else np.array([self.who])
        gpus = np.arange(shape[2]) if self.gpu is None or shape[2] == 1 else np.array([self.gpu])
        return np.ix_(steps, machines, gpus)


@dataclass(frozen=True, slots=True)
class Bend:
    """A reading is multiplied (`*`), added to (`+`), set (`=`), or stays as it was at the beginning (`hold`)."""

    place: Place
    how: str
    by: float

    def apply(self, out: Array, begin: int) -> None:
        """Change the readings `out` [step, machine, gpu], the first of which is of step `begin`."""
        cell = self.place.cell(begin, out.shape)
        if cell is not None:
            was = out[cell]
            out[cell] = {"*": was * self.by, "+": was + self.by, "=": self.by, "hold": was[:1]}[self.how]


@dataclass(frozen=True, slots=True)
class Slow:
    """A place that needs longer for an iteration; `host` where its program comes late, not its GPU."""

    place: Place
    factor: float
    host: bool


@dataclass(slots=True)
class Fleet:
    """Time runs along axis 0, machines along axis 1, GPUs along axis 2."""

    machines: int
    gpus: int
    step_s: float
    seed: int
    rng: np.random.Generator
    seconds: Array
    """[step] since the start."""
    stage: Array
    """[machine]: its stage of the pipeline."""
    load: Array
    """[step, stage]: how much work a stage does in a unit of pace; 1 in training."""
    alive: Array
    """[step]: 1 while the task iterates, 0 while it stands still."""
    stuck: Mask
    """[step]: whether ranks stand in a collective that does not end."""
    saving: list[tuple[Mask, Array]] = field(default_factory=list)
    """Checkpoints: the steps, and which share of them each machine writes before it waits for the others."""
    restarts: list[Mask] = field(default_factory=list)
    """Steps in which the task is not there; its processes are others afterwards."""
    slows: list[Slow] = field(default_factory=list)
    drags: list[tuple[Mask, float]] = field(default_factory=list)
    """Steps in which everybody's communication takes longer, and by what factor an iteration does."""
    bends: dict[str, list[Bend]] = field(default_factory=dict)
    """By `table.metric`, applied to the healthy readings (rates for counters)."""
    events: list[tuple[int, str, str, str, str, str, str]] = field(default_factory=list)
    gone: list[tuple[str, Place]] = field(default_factory=list)
    """Rows that are missing, by table ("" for all)."""
    absent: list[tuple[str, int]] = field(default_factory=list)
    """Metrics that a machine cannot read."""
    hung: list[tuple[Place, str]] = field(default_factory=list)
    """Ranks that are behind the others in their communicators, or called something else (differs)."""

    @property
    def stages(self) -> int:
        """How many stages the pipeline has."""
        return int(self.load.shape[1])

    def period(self) -> Array:
        """[step]: how long an iteration takes, in undisturbed ones."""
        worst = np.ones(len(self.seconds))
        for slow in self.slows:
            worst = np.where(slow.place.on, np.maximum(worst, slow.factor), worst)
        period = np.maximum(1.0, COMPUTES * worst + TALKS)
        for on, factor in self.drags:
            period = np.where(on, period * factor, period)
        return period

    def pace(self) -> Array:
        """[step]: iterations in the time of an undisturbed one; 0 where the task stands still."""
        pace: Array = np.where(self.stuck, 0.0, self.alive / self.period())
        return pace

    def waits(self, begin: int, end: int, host: bool) -> Array:
        """[step, machine, gpu]: share of time spent waiting for others, as the host or the operations show it."""
        shape = (end - begin, self.machines, self.gpus)
        period = self.period()[begin:end, None, None]
        wait = np.broadcast_to(1 - COMPUTES / period, shape).copy()
        for slow in self.slows:
            cell = slow.place.cell(begin, shape)
            if cell is not None and not (host and slow.host):
                wait[cell] = np.maximum(0.02, 1 - COMPUTES * slow.factor / period[cell[0].reshape(-1)])
        for on, share in self.saving:
            self._wait_for_writers(wait, on, share, begin)
        wait[(self.alive[begin:end] == 0) & ~self._in_checkpoint()[begin:end]] = 0.01
        wait[self.stuck[begin:end]] = 1.0
        for place, how in self.hung:
            cell = Place(place.on & self.stuck, place.who, place.gpu).cell(begin, shape)
            if cell is not None and how == "behind":
                wait[cell] = 0.0
        return wait

    def _wait_for_writers(self, wait: Array, on: Mask, share: Array, begin: int) -> None:
        steps = np.flatnonzero(on)
        done = np.linspace(0, 1, len(steps))[:, None] > share
        here = (steps >= begin) & (steps < begin + len(wait))
        wait[steps[here] - begin] = np.where(done[here], 0.95, 0.01)[:, :, None]

    def _in_checkpoint(self) -> Mask:
        out = np.zeros(len(self.seconds), bool)
        for on, _ in self.saving:
            out |= on
        return out

    def bend(self, key: str, place: Place, how: str, by: float) -> None:
        """Let a reading be changed at some place."""
        self.bends.setdefault(key, []).append(Bend(place, how, by))


@dataclass(slots=True)
class Culprit:
    """What a fault works on: one machine and one of its GPUs, from an onset to an end, more or less severely."""

    fleet: Fleet
    who: int
    gpu: int
    on: Mask
    severity: float
    """1 is usual."""
    device: str | None = None

    @property
    def one(self) -> Place:
        """The GPU (or its port, or its rank)."""
        return Place(self.on, self.who, self.gpu)

    @property
    def all(self) -> Place:
        """The whole machine."""
        return Place(self.on, self.who, None)

    @property
    def onset(self) -> float:
        """Seconds since the start."""
        return float(self.fleet.seconds[self.on][0])

    def bend(self, key: str, place: Place, how: str, by: float) -> None:
        """Change a reading, the more the severer; what is set is set."""
        scaled = {"*": 1 - (1 - by) * min(self.severity, 1.2), "+": by * self.severity, "=": by}[how]
        self.fleet.bend(key, place, how, scaled)

    def slow(self, factor: float, place: Place, host: bool = False) -> None:
        """Need longer for an iteration."""
        self.fleet.slows.append(Slow(place, 1 + (factor - 1) * self.severity, host))

    def drag(self, factor: float) -> None:
        """Let everybody's communication take longer."""
        self.fleet.drags.append((self.on, 1 + (factor - 1) * self.severity))

    def stall(self, after_s: float) -> Place:
        """All ranks stand still from a while after the onset; gives the steps of that."""
        later = self.on & (self.fleet.seconds >= self.onset + after_s)
        self.fleet.stuck |= later
        return Place(later, self.who, self.gpu)

    def say(self, source: str, code: str, severity: str, message: str) -> None:
        """An event on the machine, a second after the onset."""
        at = START + int((self.onset + 1) * SECOND)
        self.fleet.events.append((at, name_of(self.who), source, code, severity, message, f"gpu:{self.gpu}"))


def name_of(machine: int) -> str:
    """The name of a machine by its number."""
    return f"m{machine:04d}"
