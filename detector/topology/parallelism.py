"""Tasks as their communicators show them: which processes are joined, and what each set of communicators is for.

No scheduler is asked. Processes that share a communicator belong to one task; a restarted task has other processes, a
communicator that was formed anew another name, and what has not been read lately counts no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detector.stats.arrays import Floats, Ints
from detector.timeseries.rows import Rows
from detector.topology.components import connected_components
from store.schema.time import SECOND

WORLD, TENSOR, DATA, PIPELINE, EXPERT = "world", "tensor", "data", "pipeline", "expert"
FRESH_NS = 10 * SECOND
"""A communicator that was not read for so long before its machine's last reading is gone."""
_PAIRS, _EVERYBODY = ("Send", "Recv"), ("AlltoAll",)
_OFTEN = 0.5
_SOME = 0.2


@dataclass(frozen=True, slots=True)
class Group:
    """The communicators of a task that serve one kind of parallelism."""

    kind: str
    size: int
    """Ranks of each."""
    count: int
    machines: int
    """Machines over which one of them goes; the median."""
    stride: int
    """From one rank of it to the next, in ranks of the world; 0: no such number, or not known."""
    operations_per_second: float
    """Of one rank on one of them; the median."""


@dataclass(frozen=True, slots=True)
class Task:
    """One training task."""

    communicator: str
    """The largest one, by which the task is known."""
    ranks: int
    """Of that communicator."""
    processes: tuple[tuple[str, int], ...]
    """Machine and process number of those that were read."""
    groups: tuple[Group, ...]
    iteration_seconds: float
    """NaN: not known."""

    @property
    def machines(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted({machine for machine, _ in self.processes}))


@dataclass(slots=True)
class _Members:
    """Who is on which communicator: arrays over pairs of a process and a communicator."""

    process: Ints
    comm: Ints
    machine: Ints
    """By process."""
    rank: Floats
    ranks: Floats
    rate: Floats
    """Operations a second."""
    pairs: Floats
    """Share of readings whose last operation was between two ranks."""
    everybody: Floats
    """The same, from all to all."""
    iteration: Floats


def find_tasks(rows: Rows) -> tuple[Task, ...]:
    """The tasks in rows of `nccl`, a minute or so of them; the largest first."""
    comm, names = rows.texts.get("comm", (np.zeros(len(rows.time), np.int64), ("",)))
    known = np.flatnonzero((np.array([*names, ""]) != "")[comm] & np.isfinite(rows.number("pid")))
    if not len(known):
        return ()
    machines, machine_of = np.unique([ident[0] for ident in rows.idents], return_inverse=True)
    machine, comm = machine_of[rows.ident[known]], comm[known]
    pids, pid = np.unique(rows.number("pid")[known].astype(np.int64), return_inverse=True)
    processes, process = np.unique(machine * len(pids) + pid, return_inverse=True)
    processes = np.stack([processes // len(pids), pids[processes % len(pids)]])
    members = _members(rows, known, machine, process, comm, processes[0])
    label = connected_components(members.process, members.comm, processes.shape[1])
    found = []
    for task in np.unique(label[members.process]):
        there = label[members.process] == task
        inside = np.unique(members.process[there])
        who = tuple((str(machines[processes[0, one]]), int(processes[1, one])) for one in inside)
        found.append(_task(members, np.flatnonzero(there), names, who))
    return tuple(sorted(found, key=lambda task: (-task.ranks, task.machines, task.communicator)))


def _members(rows: Rows, known: Ints, machine: Ints, process: Ints, comm: Ints, machine_of: Ints) -> _Members:
    """What the rows say of each pair of process and communicator that was read until the last."""
    time, count = rows.time[known], int(comm.max()) + 1
    pairs, place = np.unique(process * count + comm, return_inverse=True)
    place = place.reshape(-1)
    order = np.lexsort((time, place))
    first = np.searchsorted(place[order], np.arange(len(pairs)))
    last = order[np.append(first[1:], len(order)) - 1]
    first = order[first]
    newest_of_machine = np.zeros(int(machine.max()) + 1, np.int64)
    np.maximum.at(newest_of_machine, machine, time)
    newest = newest_of_machine[machine[last]]
    total = rows.number("operations_total")[known]
    seconds = (time[last] - time[first]) / 1e9
    rate = np.where(seconds > 0, (total[last] - total[first]) / np.maximum(seconds, 1e-9), np.nan)
    operation, words = rows.texts.get("operation", (np.zeros(len(rows.time), np.int64), ("",)))
    held, kinds = np.bincount(place, minlength=len(pairs)), [word.split(":", 1)[0] for word in words]
    told = [np.isin(kinds, wanted)[operation[known]] for wanted in (_PAIRS, _EVERYBODY)]
    share = [np.bincount(place, one, minlength=len(pairs)) / held for one in told]
    iteration = rows.number("iteration_seconds")[known][last]
    rank, ranks = (rows.number(name)[known][last] for name in ("rank", "ranks"))
    fresh = (time[last] >= newest - FRESH_NS) & (newest >= time.max() - 3 * FRESH_NS)
    values = (pairs // count, pairs % count, rank, ranks, rate, *share, iteration)
    who, what, rank, ranks, rate, pair, everybody, iteration = (value[fresh] for value in values)
    return _Members(who, what, machine_of, rank, ranks, rate, pair, everybody, iteration)


def _task(members: _Members, there: Ints, names: Sequence[str], who: tuple[tuple[str, int], ...]) -> Task:
    comms = members.comm[there]
    ranks = np.nan_to_num(members.ranks[there], nan=1.0)
    world = int(comms[np.argmax(ranks)])
    in_world = there[comms == world]
    world_rank = np.full(len(members.machine), -1, np.int64)
    world_rank[members.process[in_world]] = np.nan_to_num(members.rank[in_world], nan=-1.0).astype(np.int64)
    size = int(ranks.max())
    families: dict[tuple[int, int], list[Ints]] = {}
    for comm in np.unique(comms[comms != world]):
        inside = there[comms == comm]
        stride = _stride(world_rank[members.process[inside]])
        known = members.ranks[inside][np.isfinite(members.ranks[inside])]
        families.setdefault((int(known.max(initial=1)), stride), []).append(inside)
    described = [_describe(members, key, inside) for key, inside in families.items()]
    spread = len({machine for machine, _ in who}) > 1
    whole = _describe(members, (size, 1), [in_world])
    iteration = members.iteration[there]
    known = iteration[np.isfinite(iteration)]
    groups = (*_named(described, spread), _replaced(whole, WORLD if described else DATA))
    return Task(names[world], size, who, groups, float(np.median(known)) if len(known) else float("nan"))


def _stride(ranks: Ints) -> int:
    """The one distance between neighbouring ranks, 0 where there is not one, or a rank is not known."""
    steps = np.unique(np.diff(np.sort(ranks)))
    return int(steps[0]) if len(steps) == 1 and ranks.min() >= 0 else 0


def _describe(members: _Members, key: tuple[int, int], inside: list[Ints]) -> Group:
    """A family of communicators of one size and stride; its kind as far as the operations alone tell it."""
    every = np.concatenate(inside)
    spans = [len(np.unique(members.machine[members.process[one]])) for one in inside]
    rates = members.rate[every][np.isfinite(members.rate[every])]
    kind = EXPERT if members.everybody[every].mean() > _SOME else ""
    kind = kind or (PIPELINE if members.pairs[every].mean() > _OFTEN else "")
    rate = float(np.median(rates)) if len(rates) else float("nan")
    return Group(kind, key[0], len(inside), int(np.median(spans)), key[1], rate)


def _named(groups: list[Group], spread: bool) -> list[Group]:
    """Tensor groups talk in every layer and stay on one machine where there are several; data groups do neither."""
    named = [group for group in groups if group.kind]
    rest = sorted((group for group in groups if not group.kind), key=lambda group: -_rate(group))
    busiest = max((_rate(group) for group in named if group.kind == PIPELINE), default=0.0)
    tensor = False
    for group in rest:
        local = not spread or group.machines == 1
        talks = len(rest) > 1 or spread or _rate(group) >= busiest > 0
        is_tensor = local and talks and not tensor
        tensor |= is_tensor
        named.append(_replaced(group, TENSOR if is_tensor else DATA))
    order = (TENSOR, PIPELINE, EXPERT, DATA)
    return sorted(named, key=lambda group: (order.index(group.kind), group.size))


def _rate(group: Group) -> float:
    return group.operations_per_second if np.isfinite(group.operations_per_second) else 0.0


def _replaced(group: Group, kind: str) -> Group:
    return Group(kind, group.size, group.count, group.machines, group.stride, group.operations_per_second)
