"""Outliers: which member of a task that stands does not wait as the others do, and what is said where none is found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.harm.waiting import ACTIVE, DUTY, MEMORY, STATES, has_ended, is_idle, states_of
from detector.methods.peers.state import Panel
from detector.model.metrics import bounds_of
from detector.model.text import comparison, subject
from detector.model.verdict import STALLED, Level, Verdict
from detector.stats.arrays import Singles
from detector.stats.grouped import middle
from detector.stats.robust import NORMAL
from store.schema.time import SECOND

_SPREADS, _SHARE, _GONE = 6.0, 0.12, 0.5
"""The least difference that counts: robust standard deviations of the waiting ranks, and a share of their reading; of
memory half of it, as a process that is gone has none."""
_SETTLES_NS, _SETTLED = 60 * SECOND, 2 / 3
"""Once a task stands for so long noise is averaged out: from then on so much of these is enough."""
_RESTS = 0.1
"""Below this share of the time a GPU waits for no collective: how much of it a stray kernel takes says nothing."""
_ALONE = 2.0
"""Times as far as the next machine."""
_CANDIDATES = 3
_SURE_NS = 120 * SECOND
"""For so long a task in which all GPUs wait is noted only: most checkpoints are shorter."""


def outliers_of(
    task: str, states: Singles, usual: Singles, stands_ns: int, panels: Mapping[str, Panel], config: Config
) -> Iterator[tuple[float, str, str, str, str, bool]]:
    """Machines that do not wait as the others do: how far, machine, device, metric, words, and whether it does less.

    `states` and `usual` are [state, entity]: what is read, since `stands_ns`, and by how much that differs anyway.
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
        at_work = np.maximum(readings, _RESTS) if key.endswith("_ratio") else readings
        far = _far(at_work, differs, floor, key == MEMORY)
        _, place = np.unique(machines, return_inverse=True)
        worst = np.zeros(int(place.max()) + 1)
        np.fmax.at(worst, place, far)
        first, second = np.sort(worst)[[-1, -2]]
        if first >= (1 if stands_ns < _SETTLES_NS else _SETTLED) and first >= _ALONE * second:
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


def unnamed(task: str, states: Singles, panels: Mapping[str, Panel], now: int, since: int) -> Verdict:
    """A verdict on a task of which no member can be named, with those that read most unlike the others.

    `states` [state, entity]: what they read, on average, since it stands.
    """
    order = _most_unlike(task, states, panels)
    names = ", ".join(subject(*one) for one in order[:_CANDIDATES])
    stands = f"task {task} stands still since {(now - since) / SECOND:.0f} s: all its GPUs wait"
    score = (now - since) / _SURE_NS
    level: Level = "crit" if score >= 1 else "note"
    machines = {machine for machine, _ in order}
    if len(machines) == 1:  # it is known where, if not which GPU
        (machine,) = machines
        message = f"{machine}: {stands} on it alone; most unlike the others: {names}"
        return Verdict(now, task, machine, None, "progress", DUTY, score, since, level, message)
    message = f"{stands} and no machine can be named; most unlike the others: {names}"
    return Verdict(now, task, task, None, "progress", STALLED, score, since, level, message)


def _most_unlike(task: str, states: Singles, panels: Mapping[str, Panel]) -> list[tuple[str, str]]:
    """Machines and devices of a task, those first that read most unlike the others; by NCCL where GPUs are not read."""
    panel, keys = panels.get("gpu"), list(STATES)
    if panel is None or task not in panel.tasks:
        panel, keys = panels["nccl"], [ACTIVE]
        states = states_of(panel, keys)
    count = panel.deviation.shape[1]
    mine = np.flatnonzero(panel.task_index[:count] == panel.tasks.index(task))
    most = np.zeros(len(mine))
    for key, readings in zip(keys, states[:, mine].astype(np.float64), strict=True):
        if not np.isnan(readings).all():
            most = np.fmax(most, _far(readings, np.zeros(len(mine)), 0.0, key == MEMORY))
    return list(dict.fromkeys(panel.window.entities[mine[at]] for at in np.argsort(-most).tolist()))


def _far(values: NDArray[Any], usual: NDArray[Any], floor: float, below_only: bool) -> NDArray[Any]:
    """[member]: its distance from the others, as far as it is not `usual` [member], over the least that counts."""
    center = middle(values[None])[0]
    away = values - center
    away -= np.clip(usual, np.minimum(away, 0), np.maximum(away, 0))
    spread = NORMAL * middle(np.abs(away)[None])[0]
    least = max(_SPREADS * spread, (_GONE if below_only else _SHARE) * abs(center), floor, 1e-12)
    far: NDArray[Any] = (-away if below_only else np.abs(away)) / least
    return far


def _named(panel: Panel, entity: int, odd: NDArray[np.bool_], mine: NDArray[np.bool_]) -> tuple[str, str | None]:
    """The machine, and its device unless all of them are odd."""
    machine, device = panel.window.entities[entity]
    return machine, None if mine.sum() > 1 and odd[mine].all() else device
