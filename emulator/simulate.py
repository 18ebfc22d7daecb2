"""Recordings of pretend fleets: one synchronous training task of any size, with a known fault or none.

Readings follow from the model (simulated.py) with offsets per device, noise, checkpoints, lost rows and harmless
disturbances (readings.py).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from emulator.readings import events_of, table_of, tasks_of
from emulator.simulated import SECOND, START, TABLES, WAIT, Columns, Fleet, name_of
from emulator.simulated_faults import FAULTS


def simulate(
    machines: int = 64,
    minutes: float = 30,
    step_seconds: float = 1.0,
    fault: str = "random",
    seed: int = 0,
    gpus: int = 8,
    tables: Collection[str] = TABLES,
) -> tuple[dict[str, Columns], dict[str, Any]]:
    """Tables (name -> column -> array) and labels of one recording; equal arguments give equal recordings.

    `fault` is one of FAULTS, "random" or "none". Size: about 0.5 kB a GPU and step. Raises ValueError.
    """
    _check(machines, minutes, step_seconds, fault, gpus)
    rng = np.random.default_rng([seed, machines, gpus])
    seconds = np.arange(int(minutes * 60 / step_seconds)) * step_seconds
    fleet = Fleet(machines, gpus, step_seconds, rng, seconds)
    kind = rng.choice(sorted(FAULTS)) if fault == "random" else fault
    _prepare(fleet)
    if kind != "none":
        FAULTS[kind](fleet)
    _checkpoint(fleet)
    found = {name: table_of(fleet, name) for name in tables if name not in ("task", "event")}
    if "task" in tables:
        found["task"] = tasks_of(fleet)
    if "event" in tables and fleet.events:
        found["event"] = events_of(fleet)
    return found, _labels(fleet, kind)


def _check(machines: int, minutes: float, step_seconds: float, fault: str, gpus: int) -> None:
    if fault not in (*FAULTS, "random", "none"):
        raise ValueError(f"no fault is called {fault}; there are {', '.join(FAULTS)}, random and none")
    if machines < 1 or gpus < 1 or not step_seconds > 0 or not 1e9 > minutes * 60 >= 10 * step_seconds:
        raise ValueError("a fleet needs at least one machine with one GPU, and ten steps of time")


def _prepare(f: Fleet) -> None:
    """A healthy task, and where and when the fault will be: in the second half of the first two thirds."""
    total = f.seconds[-1]
    f.who, f.gpu = int(f.rng.integers(f.machines)), int(f.rng.integers(f.gpus))
    begin = total * f.rng.uniform(1 / 3, 2 / 3)
    f.on = (f.seconds >= begin) & (f.seconds < begin + max(total / 4, 10 * f.step_s))
    f.pace = np.ones(len(f.seconds))
    f.stuck = np.zeros(len(f.seconds), bool)
    f.wait = np.full((len(f.seconds), f.machines, f.gpus), WAIT)
    f.device = f"gpu:{f.gpu}"


def _checkpoint(f: Fleet) -> None:
    """Every ten minutes the task writes a checkpoint for half a minute; nobody computes or waits for anybody."""
    saving = (f.seconds % 600 > 400) & (f.seconds % 600 < 430) & ~f.stuck
    f.pace = np.where(saving, 0.0, f.pace)
    f.wait[saving] = 0.01
    f.bend("host.disk_write_bytes_total", (np.flatnonzero(saving),), "+", 8e8)
    f.bend("host.cpu_iowait_ratio", (np.flatnonzero(saving),), "+", 0.1)


def _labels(f: Fleet, kind: str) -> dict[str, Any]:
    at = f.seconds[f.on]
    first, last = (START + int(s * SECOND) for s in (at[0], at[-1] + f.step_s))
    fault = {"machine": name_of(f.who), "device": f.device, "kind": str(kind), "start": first, "end": last}
    faults = [] if kind == "none" else [fault]
    return {"task": "pretrain", "machines": f.machines, "step_seconds": f.step_s, "faults": faults}
