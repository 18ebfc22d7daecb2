"""Recordings of pretend fleets: one synchronous training task of any size, with known faults or none.

Readings follow from the model (fleet_model.py) with what devices have of their own and noise (metric_generator.py), a
task's own phases (task_phases.py) and harmless things (disturbances.py). Nothing here knows how faults are found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.simulation.disturbances import AMOUNTS, disturb
from emulator.simulation.faults import FAIL_SLOW, FAULTS, WEAK
from emulator.simulation.fleet_model import START, TABLES, Columns, Culprit, Fleet, name_of
from emulator.simulation.metric_generator import Meter, earliest_ns, events_of, tasks_of
from emulator.simulation.task_phases import disturbances, phases, shifts
from store.schema.time import SECOND

_CELLS = 2_000_000  # readings of one metric that are made at a time
_SIZES = (4, 6, 8, 8, 12, 16, 16, 24, 32, 48, 64)
MOST_MACHINES = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be simulated; equal plans give equal recordings."""

    machines: int = 64
    gpus: int = 8
    minutes: float = 30.0
    step_s: float = 1.0
    fault: str = "random"
    """One of FAULTS or WEAK, several of them joined by commas that strike together, `random`, or `none`."""
    seed: int = 0
    stages: int = 0
    """Stages of the pipeline; 0 draws."""
    shifts: bool = False
    """Whether single stages have less to do for minutes at a time."""
    disturbances: str = "none"
    """How much of what is harmless goes on beside short jumps and gaps: one of AMOUNTS."""

    def check(self) -> None:
        """Raises ValueError, in one line, where this cannot be simulated."""
        for kind in self.kinds():
            if kind not in FAULTS | WEAK and self.fault not in ("random", "none"):
                known = ", ".join(FAULTS | WEAK)
                raise ValueError(f"no fault is called {kind}; there are {known}, random and none")
        if self.disturbances not in AMOUNTS:
            raise ValueError(f"disturbances are {self.disturbances}: they must be {', '.join(AMOUNTS)}")
        if self.machines < 1 or self.gpus < 1 or not 1e9 > self.minutes * 60 >= 10 * self.step_s > 0:
            raise ValueError("a fleet needs one machine with one GPU at least, and ten steps of time to 30 years")
        if self.machines > MOST_MACHINES or len(self.kinds()) > self.machines:
            raise ValueError(f"a fleet has at most {MOST_MACHINES} machines, and no more faults than machines")

    def kinds(self) -> list[str]:
        """The faults asked for by name."""
        return [kind.strip() for kind in self.fault.split(",")] if self.fault not in ("random", "none") else []


def simulate(
    machines: int = 64,
    minutes: float = 30,
    step_seconds: float = 1.0,
    fault: str = "random",
    seed: int = 0,
    gpus: int = 8,
    tables: Collection[str] = TABLES,
    disturbances: str = "none",
) -> tuple[dict[str, Columns], dict[str, Any]]:
    """Tables (name -> column -> array) and labels of one recording, all in memory. Raises ValueError."""
    plan = Plan(machines, gpus, minutes, step_seconds, fault, seed, disturbances=disturbances)
    labels, found = pieces(plan, tables)
    parts = list(found)
    names = [name for name in TABLES if any(name in part for part in parts)]
    whole: dict[str, Columns] = {}
    for name in names:
        mine = [part[name] for part in parts if name in part]
        whole[name] = {column: np.concatenate([one[column] for one in mine]) for column in mine[0]}
    return whole, labels


def pieces(plan: Plan, tables: Collection[str] = TABLES) -> tuple[dict[str, Any], Iterator[Mapping[str, Columns]]]:
    """The labels, and the tables piece by piece in time, so that memory stays bounded. Raises ValueError."""
    plan.check()
    fleet, labels = _fleet(plan)
    return labels, _read(fleet, tables)


def many(
    count: int, seed: int = 0, minutes: tuple[float, float] = (10.0, 20.0), disturbances: str = "none"
) -> list[tuple[str, Plan]]:
    """Names and plans of a set to evaluate with: sizes, lengths and steps drawn, every kind of fault in turn.

    About one recording in seven is healthy, one in ten has two faults at once.
    """
    rng = np.random.default_rng([seed, count])
    kinds = list(rng.permutation(sorted(FAULTS)))
    plans = []
    for number in range(count):
        fault = "none" if number % 7 == 6 else str(kinds[(number - number // 7) % len(kinds)])
        if number % 10 == 3:
            fault = ",".join(str(kind) for kind in rng.choice(FAIL_SLOW, 2, replace=False))
        step = float(rng.choice([1.0, 1.0, 1.0, 2.0, 5.0]))
        drawn = int(rng.choice(_SIZES)), int(rng.choice([2, 4, 8])), round(float(rng.uniform(*minutes)), 1)
        plan = Plan(*drawn, step, fault, int(rng.integers(2**31)), disturbances=disturbances)
        plans.append((f"{number:03d}-{fault.replace(',', '+')}", plan))
    return plans


def _read(fleet: Fleet, tables: Collection[str]) -> Iterator[Mapping[str, Columns]]:
    meters = [Meter(fleet, name) for name in tables if name not in ("task", "event")]
    steps = max(1, _CELLS // (fleet.machines * fleet.gpus))
    first: dict[str, Columns] = {}
    if "task" in tables:
        first["task"] = tasks_of(fleet)
    if "event" in tables and fleet.events:
        first["event"] = events_of(fleet)
    if first:
        yield first
    for begin in range(0, len(fleet.seconds), steps):
        end = min(begin + steps, len(fleet.seconds))
        for meter in meters:
            yield {meter.table: meter.read(begin, end)}


def _fleet(plan: Plan) -> tuple[Fleet, dict[str, Any]]:
    rng = np.random.default_rng([plan.seed, plan.machines, plan.gpus])
    seconds = np.arange(int(plan.minutes * 60 / plan.step_s)) * plan.step_s
    stages = plan.stages or _stages(plan.machines, rng)
    fleet = Fleet(
        *(plan.machines, plan.gpus, plan.step_s, plan.seed, rng, seconds),
        stage=np.arange(plan.machines) * stages // plan.machines,
        load=np.ones((len(seconds), stages)),
        alive=np.ones(len(seconds)),
        stuck=np.zeros(len(seconds), bool),
    )
    phases(fleet)
    disturbances(fleet)
    if plan.shifts:
        shifts(fleet)
    harmless = disturb(fleet, plan.disturbances)
    kinds = [str(rng.choice(sorted(FAULTS)))] if plan.fault == "random" else plan.kinds()
    labels = {"task": "pretrain", "machines": plan.machines, "step_seconds": plan.step_s}
    labels["faults"] = _strike(fleet, kinds)
    return fleet, labels | ({"disturbances": harmless} if plan.disturbances != "none" else {})


def _stages(machines: int, rng: np.random.Generator) -> int:
    """Stages of at least four machines, or one."""
    return int(rng.choice([n for n in (1, 2, 4, 8) if n == 1 or machines >= 4 * n]))


def _strike(f: Fleet, kinds: list[str]) -> list[dict[str, Any]]:
    """Let the faults happen, on different machines, the later ones within a minute of the first."""
    targets = f.rng.choice(f.machines, len(kinds), replace=False)
    total = f.seconds[-1]
    begin = total * f.rng.uniform(0.35, 0.55)
    labels = []
    for kind, who in zip(kinds, targets.tolist(), strict=True):
        last = min(total * f.rng.uniform(0.3, 0.4), 900.0)
        on = (f.seconds >= begin) & (f.seconds < begin + max(last, 10 * f.step_s))
        gpu = int(f.rng.integers(f.gpus))
        culprit = Culprit(f, who, gpu, on, float(f.rng.uniform(0.6, 1.4)), f"gpu:{gpu}")
        (FAULTS | WEAK)[kind](culprit)
        start, end = earliest_ns(f, f.seconds[on][0]), START + int((f.seconds[on][-1] + f.step_s) * SECOND)
        device = culprit.device
        labels.append({"machine": name_of(who), "device": device, "kind": kind, "start": start, "end": end})
        begin += f.rng.uniform(0, 60)
    # What stands still writes no checkpoint.
    f.saving = [(on & ~f.stuck, share) for on, share in f.saving if (on & ~f.stuck).any()]
    return labels
