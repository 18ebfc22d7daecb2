"""Seating: who is compared with whom. Ranks with those of their role, where these are enough, else with their task."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detector.config import Config
from detector.methods.peers.state import NO_TASK, Panel
from detector.stats.arrays import Ints
from detector.stats.grouped import groups_of
from detector.topology.roles import UNKNOWN, named
from detector.topology.tasks import Tasks

_LEAST_MACHINES = 3
"""Among the devices of two machines a machine that is slow as a whole is no minority."""


def seat(panel: Panel, tasks: Tasks, config: Config) -> None:
    """Give each entity its task, peer group and machine numbers; who comes among others than before begins anew."""
    entities = panel.window.entities
    if panel.seated == (tasks.version, len(entities)):
        return
    panel.seated = (tasks.version, len(entities))
    numbers: dict[str, int] = {name: place for place, name in enumerate(panel.tasks)}
    machines: dict[str, int] = {}
    team, role, machine = np.full((3, len(entities)), NO_TASK, np.int64)
    for place, (name, device) in enumerate(entities):
        task = tasks.task_of(name)
        if task is not None:
            team[place] = numbers.setdefault(task, len(numbers))
            role[place] = tasks.roles.of(name, device)
        machine[place] = machines.setdefault(name, len(machines))
    group, panel.titles = _grouped(team, role, machine, config)
    moved = _moved(panel.group, group)
    before = panel.team
    moved[: len(before)] |= (before != NO_TASK) & (before != team[: len(before)])
    if moved.any():
        panel.norm.forget(np.flatnonzero(moved))
        panel.streaks.forget(np.flatnonzero(moved))
        panel.lasting.forget(np.flatnonzero(moved))
    panel.tasks, panel.team, panel.machine = list(numbers), team, machine
    panel.groups = groups_of(group)
    panel.believed = np.zeros((0, 0), bool)


def _grouped(team: Ints, role: Ints, machine: Ints, config: Config) -> tuple[Ints, list[tuple[int, str]]]:
    """Each entity's group, and each group's task and name: roles that are large enough, and what is left of a task."""
    group = np.full(len(team), NO_TASK, np.int64)
    titles: list[tuple[int, str]] = []
    order = np.argsort(team, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(team[order])) + 1):
        task = int(team[mine[0]]) if len(mine) else NO_TASK
        if task == NO_TASK:
            continue
        roles = np.unique(role[mine])
        least = min(_LEAST_MACHINES, len(np.unique(machine[mine])))
        for one in roles[roles != UNKNOWN].tolist() if (roles != UNKNOWN).sum() > 1 else ():
            those = mine[role[mine] == one]
            if len(those) >= config.min_peers and len(np.unique(machine[those])) >= least:
                group[those] = len(titles)
                titles.append((task, named(one)))
        rest = mine[group[mine] == NO_TASK]
        if len(rest):
            group[rest] = len(titles)
            titles.append((task, "" if len(rest) == len(mine) else "the rest"))
    return group, titles


def _moved(before: Ints, after: Ints) -> NDArray[np.bool_]:
    """[entity]: whether most of those that are together now were together before, but it was with others.

    Where one group becomes several nobody has moved: what is usual for each, beside the same median, still holds.
    """
    moved = np.zeros(len(after), bool)
    both = np.flatnonzero((before != NO_TASK) & (after[: len(before)] != NO_TASK))
    if len(both):
        old, new = before[both], after[both]
        pairs, count = np.unique(new * (int(old.max()) + 1) + old, return_counts=True)
        most: Ints = np.full(int(new.max()) + 1, NO_TASK)
        by_count = np.argsort(count, kind="stable")  # of several with one place the last one stays
        most[pairs[by_count] // (int(old.max()) + 1)] = pairs[by_count] % (int(old.max()) + 1)
        moved[both] = most[new] != old
    return moved
