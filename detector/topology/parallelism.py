"""Tasks as their communicators show them: which processes are joined, and what each set of communicators is for.

No scheduler is asked. Processes that share a communicator belong to one task; a restarted task has other processes, a
communicator that was formed again another name, and one that was not read lately does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from detector.stats.arrays import Bools, Floats, Ints
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
    communicators: tuple[str, ...] = ()
    """Their names."""


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
    """Share of readings with a last operation between two ranks."""
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
    """What the rows at `known` say of each pair of process and communicator that was read until the last."""
    count = int(comm.max()) + 1
    pairs, pair = np.unique(process * count + comm, return_inverse=True)
    pair = pair.reshape(-1)
    first, last = _first_and_last(pair, rows.time[known])
    fresh = _is_fresh(rows.time[known], machine, last)
    pairs, first, last = pairs[fresh], known[first[fresh]], known[last[fresh]]
    point_to_point, all_to_all = (_share_of(rows, known, pair, kinds)[fresh] for kinds in (_PAIRS, _EVERYBODY))
    names = ("rank", "ranks", "iteration_seconds")
    rank, ranks, iteration = (rows.number(name)[last].astype(np.float64) for name in names)
    rate = _operations_per_second(rows, first, last)
    return _Members(pairs // count, pairs % count, machine_of, rank, ranks, rate, point_to_point, all_to_all, iteration)


def _first_and_last(pair: Ints, time: Ints) -> tuple[Ints, Ints]:
    """[pair]: the places of its first and its last row."""
    order = np.lexsort((time, pair))
    first = np.searchsorted(pair[order], np.arange(int(pair.max()) + 1))
    return order[first], order[np.append(first[1:], len(order)) - 1]


def _is_fresh(time: Ints, machine: Ints, last: Ints) -> Bools:
    """[pair]: whether its last row is as new as its machine's, and that about as new as the newest of all."""
    newest_of_machine = np.zeros(int(machine.max()) + 1, np.int64)
    np.maximum.at(newest_of_machine, machine, time)
    newest = newest_of_machine[machine[last]]
    is_fresh: Bools = (time[last] >= newest - FRESH_NS) & (newest >= time.max() - 3 * FRESH_NS)
    return is_fresh


def _share_of(rows: Rows, known: Ints, pair: Ints, kinds: tuple[str, ...]) -> Floats:
    """[pair]: the share of its rows in which the last operation is one of these kinds."""
    operation, words = rows.texts.get("operation", (np.zeros(len(rows.time), np.int64), ("",)))
    is_kind = np.isin([word.split(":", 1)[0] for word in words], kinds)[operation[known]]
    share: Floats = np.bincount(pair, is_kind) / np.bincount(pair)
    return share


def _operations_per_second(rows: Rows, first: Ints, last: Ints) -> Floats:
    """[pair]: from its first row to its last; NaN where that is the same one."""
    total, seconds = rows.number("operations_total"), (rows.time[last] - rows.time[first]) / SECOND
    return np.where(seconds > 0, (total[last] - total[first]) / np.where(seconds > 0, seconds, 1.0), np.nan)


def _task(members: _Members, there: Ints, names: Sequence[str], who: tuple[tuple[str, int], ...]) -> Task:
    comms = members.comm[there]
    ranks = np.nan_to_num(members.ranks[there], nan=1.0)
    world = int(comms[np.argmax(ranks)])
    in_world = there[comms == world]
    world_rank = np.full(len(members.machine), -1, np.int64)
    world_rank[members.process[in_world]] = np.nan_to_num(members.rank[in_world], nan=-1.0).astype(np.int64)
    size = int(ranks.max())
    families: dict[tuple[int, int], list[tuple[str, Ints]]] = {}
    for comm in np.unique(comms[comms != world]):
        inside = there[comms == comm]
        stride = _stride(world_rank[members.process[inside]])
        known = members.ranks[inside][np.isfinite(members.ranks[inside])]
        families.setdefault((int(known.max(initial=1)), stride), []).append((names[comm], inside))
    described = [_describe(members, key, inside) for key, inside in families.items()]
    spread = len({machine for machine, _ in who}) > 1
    whole = _describe(members, (size, 1), [(names[world], in_world)])
    iteration = members.iteration[there]
    known = iteration[np.isfinite(iteration)]
    groups = (*_named(described, spread), replace(whole, kind=WORLD if described else DATA))
    return Task(names[world], size, who, groups, float(np.median(known)) if len(known) else float("nan"))


def _stride(ranks: Ints) -> int:
    """The one distance between neighbouring ranks, 0 where there is not one, or a rank is not known."""
    steps = np.unique(np.diff(np.sort(ranks)))
    return int(steps[0]) if len(steps) == 1 and ranks.min() >= 0 else 0


def _describe(members: _Members, key: tuple[int, int], family: list[tuple[str, Ints]]) -> Group:
    """A family of communicators of one size and stride; its kind as far as the operations alone tell it."""
    inside = [places for _, places in family]
    every = np.concatenate(inside)
    spans = [len(np.unique(members.machine[members.process[one]])) for one in inside]
    rates = members.rate[every][np.isfinite(members.rate[every])]
    kind = EXPERT if members.everybody[every].mean() > _SOME else ""
    kind = kind or (PIPELINE if members.pairs[every].mean() > _OFTEN else "")
    rate = float(np.median(rates)) if len(rates) else float("nan")
    return Group(kind, key[0], len(inside), int(np.median(spans)), key[1], rate, tuple(name for name, _ in family))


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
        named.append(replace(group, kind=TENSOR if is_tensor else DATA))
    order = (TENSOR, PIPELINE, EXPERT, DATA)
    return sorted(named, key=lambda group: (order.index(group.kind), group.size))


def _rate(group: Group) -> float:
    return group.operations_per_second if np.isfinite(group.operations_per_second) else 0.0
