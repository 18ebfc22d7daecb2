"""Waiting: what the GPUs of a task show while it stands, and whether they wait, are idle, or have let go of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detector.methods.peers.state import Panel
from detector.model.kinds import draws
from detector.stats.arrays import Ints, Singles
from detector.stats.grouped import middle
from detector.stats.robust import NORMAL

MEMORY, DUTY = "gpu.memory_used_bytes", "gpu.duty_cycle_ratio"
STATES = (
    DUTY,
    "gpu.power_watts",
    "gpu.graphics_active_ratio",
    "gpu.sm_active_ratio",
    MEMORY,
)
"""Readings in which ranks that wait in the same collective are alike; memory that is free while theirs is held."""
ACTIVE = "nccl.active_ratio"
"""Where nothing of the GPUs is read, how long ranks have operations in flight."""
_WAITS, _NEARLY_ALL = 0.9, 0.9
_LATE, _SPREADS = 0.9, 6.0
"""Share of the usual time in collectives, and robust standard deviations below it, of a rank that comes late."""
_IN_FLIGHT, _CLOCK = ACTIVE.partition(".")[2], "sm_clock_hertz"
_ALIKE = 0.97
"""Of the usual clock: one step of a clock is 15 MHz, a hundredth of it, and readings of one moment are two apart."""
_HELD_FOR_POWER, _AT_LIMIT = "gpu.throttle_power_seconds_total", 0.9
"""At its power limit a GPU is by right, in some phases of an iteration or in all: by how much depends on the chip."""
_AT_WORK, _IDLE = ("duty_cycle_ratio", "graphics_active_ratio", "sm_active_ratio"), 0.02


@dataclass(slots=True)
class Standing:
    """What the GPUs read on average since a task stands: one reading of a sensor says little of who waits."""

    since: int
    """Unix ns."""
    total: Singles
    """[state, entity]: sums of the readings that are known ..."""
    count: Singles
    """... and how many they are."""

    def add(self, readings: Singles) -> Singles:
        """Take in readings [state, entity], and give the means so far."""
        known = ~np.isnan(readings)
        self.total += np.where(known, readings, 0)
        self.count += known
        return np.divide(self.total, self.count, out=np.full_like(self.total, np.nan), where=self.count > 0)


def states_of(panel: Panel, keys: Sequence[str] = STATES) -> Singles:
    """[key, entity]: what a table reads just now of what tells those that wait from others; NaN where unknown."""
    count = panel.deviation.shape[1]
    out = np.full((len(keys), count), np.nan, np.float32)
    for at, key in enumerate(keys):
        if (row := panel.row_of(key.partition(".")[2])) is not None:
            out[at] = panel.values[row, :count]
            if draws(key):
                out[at][out[at] <= 0] = np.nan  # a sensor that fails: no GPU that is read draws nothing
    return out


def all_wait(task: str, panels: Mapping[str, Panel], states: Singles) -> bool:
    """Whether the GPUs of a task that stands are busy with waiting, as in a collective; idle ones load, or write.

    Where nothing tells how busy they are, whether all ranks have operations in flight. `states` [state, entity]: what
    they read, on average, since it stands.
    """
    now = _known(task, panels.get("gpu"), "duty_cycle_ratio")
    if not len(now):
        active = _known(task, panels.get("nccl"), _IN_FLIGHT)
        return bool(len(active) and np.mean(active > _WAITS) > _NEARLY_ALL)
    panel = panels["gpu"]
    usual = states[STATES.index(DUTY), panel.task_index[: states.shape[1]] == panel.tasks.index(task)]
    busy = min(float(np.mean(duty > _WAITS)) for duty in (now, usual[~np.isnan(usual)]))
    return busy > _NEARLY_ALL and _in_flight(task, panels)


def is_idle(task: str, panels: Mapping[str, Panel], machine: str | None = None) -> bool:
    """Whether the GPUs of a task, or of one machine in it, have nothing to do: it has not begun, or has ended."""
    for metric in _AT_WORK:
        share = _known(task, panels.get("gpu"), metric, machine)
        if len(share):
            return float(np.median(share)) < _IDLE
    return False


def clocks_alike(panels: Mapping[str, Panel], metric: str, task: str, machine: str, device: str | None) -> bool:
    """Whether the clocks of this machine or device are known, and none is below the usual one of the task.

    By as much as is usual where this `metric` deviates.
    """
    mine, all_of_them = (_known(task, panels.get("gpu"), _CLOCK, *who) for who in ((machine, device), ()))
    if not len(mine):
        return False
    least = _AT_LIMIT if metric == _HELD_FOR_POWER else _ALIKE
    return bool(mine.min() >= least * middle(all_of_them[None].astype(np.float64))[0])


def is_waited_for(panels: Mapping[str, Panel], task: str, machine: str, device: str | None) -> bool:
    """Whether the other ranks wait for this GPU: it enters collectives late, and is in them for less time."""
    mine, all_of_them = (_known(task, panels.get("nccl"), _IN_FLIGHT, *who) for who in ((machine, device), ()))
    if not len(mine):
        return False
    usual = middle(all_of_them[None].astype(np.float64))[0]
    spread = NORMAL * middle(np.abs(all_of_them - usual)[None])[0]
    return bool(mine.max() < min(_LATE * usual, usual - _SPREADS * spread))


def comes_late(panels: Mapping[str, Panel], task: str, machine: str) -> bool:
    """Whether a rank of this machine is in collectives for clearly less time than the others of its task."""
    panel = panels.get("nccl")
    row = panel.row_of(_IN_FLIGHT) if panel is not None and task in panel.tasks else None
    if panel is None or row is None:
        return False
    mine = _members(panel, task, machine)
    return bool((panel.deviation[row, mine] <= -1).any())


def has_ended(panel: Panel, mine: NDArray[np.int64]) -> bool:
    """Whether most members have let go of their memory: then the task was ended, and does not stand."""
    row = panel.row_of(MEMORY.partition(".")[2])
    if row is None:
        return False
    held, usual = (
        middle(array[row, mine][None].astype(np.float64))[0] for array in (panel.values, panel.baseline.level)
    )
    return bool(held < usual / 2)


def _in_flight(task: str, panels: Mapping[str, Panel]) -> bool:
    """Whether the ranks have operations in flight all the time, or nothing tells: in a checkpoint they have none."""
    active = _known(task, panels.get("nccl"), _IN_FLIGHT)
    return not len(active) or bool(np.median(active) > _WAITS)


def _known(
    task: str, panel: Panel | None, metric: str, machine: str | None = None, device: str | None = None
) -> Singles:
    """What the members of a task, or of one machine in it, or a device, read of one metric, as far as it is known."""
    row = panel.row_of(metric) if panel is not None and task in panel.tasks else None
    if panel is None or row is None:
        return np.zeros(0, np.float32)
    readings = panel.values[row, _members(panel, task, machine, device)]
    found: Singles = readings[~np.isnan(readings)]
    return found


def _members(panel: Panel, task: str, machine: str | None = None, device: str | None = None) -> Ints:
    """The places of a task's members, or of those on one machine, or of a device."""
    count = panel.deviation.shape[1]
    mine = np.flatnonzero(panel.task_index[:count] == panel.tasks.index(task))
    if machine is None:
        return mine
    names = panel.window.entities
    found = [at for at in mine.tolist() if names[at][0] == machine and device in (None, names[at][1])]
    return np.array(found, np.int64)
