"""Peer groups: ranks are compared with those of their role, where these are enough, else with their whole task."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from detector.config import Config
from detector.methods.peers.state import NO_TASK, Panel
from detector.stats.arrays import Bools, Ints
from detector.stats.grouped import distinct, groups_of
from detector.topology.roles import UNKNOWN, named
from detector.topology.tasks import Tasks

_LEAST_MACHINES = 3
"""Among the devices of two machines a machine that is slow as a whole is no minority."""


def assign_groups(panel: Panel, tasks: Tasks, config: Config) -> None:
    """Number each entity's task, peer group and machine; the state of one that has other peers than before is reset."""
    entities = panel.window.entities
    if panel.assignment_version == (tasks.version, len(entities)):
        return
    panel.assignment_version = (tasks.version, len(entities))
    numbers: dict[str, int] = {name: place for place, name in enumerate(panel.tasks)}
    machines: dict[str, int] = {}
    task_index, role, machine = np.full((3, len(entities)), NO_TASK, np.int64)
    idle = np.array([name in tasks.orders.idle for name, _ in entities], bool)
    for place, (name, device) in enumerate(entities):
        task = tasks.task_of(name)
        if task is not None:
            task_index[place] = numbers.setdefault(task, len(numbers))
            role[place] = tasks.roles.of(name, device)
        machine[place] = machines.setdefault(name, len(machines))
    group, panel.group_labels = _grouped(task_index, role, machine, config)
    moved = _moved(panel.group, group)
    before = panel.task_index
    moved[: len(before)] |= (before != NO_TASK) & (before != task_index[: len(before)])
    moved[panel.cusum.value.shape[-1] :] = False  # of what was never judged there is nothing to forget
    if moved.any():
        panel.cusum.reset(np.flatnonzero(moved))
        for state in (panel.baseline, panel.lasting, panel.sudden, panel.warming, panel.warming_alone):
            state.reset(np.flatnonzero(moved & ~idle))
        panel.baseline.shorten(np.flatnonzero(moved & idle), config)
    if (parted := _parted(panel.group, group)).any():
        panel.lasting.reset(np.flatnonzero(parted))
    panel.tasks, panel.task_index, panel.machine = list(numbers), task_index, machine
    few = few_machines(panel, len(entities), config.min_peers)
    enough = len(np.unique(machine[few])) >= config.min_peers
    panel.groups, panel.alone = groups_of(group), groups_of(np.where(few & enough, 0, NO_TASK))
    panel.fusion.assign(group)
    panel.peers_valid = np.zeros((0, 0), bool)


def few_machines(panel: Panel, count: int, least: int) -> Bools:
    """[entity], of the first `count`: whether its task has fewer machines than can tell what is usual."""
    task = panel.task_index[:count]
    few: Bools = task != NO_TASK
    few[few] = distinct(task, panel.machine[:count], len(panel.tasks))[task[few]] < least
    return few


def _grouped(task_index: Ints, role: Ints, machine: Ints, config: Config) -> tuple[Ints, list[tuple[int, str]]]:
    """Each entity's group, and each group's task and label: roles that are large enough, and what is left of a task."""
    group = np.full(len(task_index), NO_TASK, np.int64)
    labels: list[tuple[int, str]] = []
    order = np.argsort(task_index, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(task_index[order])) + 1):
        task = int(task_index[members[0]]) if len(members) else NO_TASK
        if task == NO_TASK:
            continue
        for one, same_role in _large_roles(members, role, machine, config):
            group[same_role] = len(labels)
            labels.append((task, named(one)))
        rest = members[group[members] == NO_TASK]
        if len(rest):
            group[rest] = len(labels)
            labels.append((task, "" if len(rest) == len(members) else "the rest"))
    return group, labels


def _large_roles(members: Ints, role: Ints, machine: Ints, config: Config) -> Iterator[tuple[int, Ints]]:
    """The roles of a task with enough members and machines to be a group, and their members."""
    roles = np.unique(role[members])
    roles = roles[roles != UNKNOWN] if (roles != UNKNOWN).sum() > 1 else roles[:0]
    least = min(_LEAST_MACHINES, len(np.unique(machine[members])))
    for one in roles.tolist():
        same_role = members[role[members] == one]
        if len(same_role) >= config.min_peers and len(np.unique(machine[same_role])) >= least:
            yield one, same_role


def _moved(before: Ints, after: Ints) -> Bools:
    """[entity]: whether it comes from another group than most of its present group.

    Where one group becomes several none has moved: what is usual for each, beside the same median, still holds.
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


def _parted(before: Ints, after: Ints) -> Bools:
    """[entity]: whether some of those that were in its group are in another one now: their median was another one."""
    parted = np.zeros(len(after), bool)
    both = np.flatnonzero((before != NO_TASK) & (after[: len(before)] != NO_TASK))
    if len(both):
        old, new = before[both], after[both]
        parted[both] = distinct(old, new, int(old.max()) + 1)[old] > 1
    return parted
