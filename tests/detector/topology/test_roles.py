"""Roles: stages of a pipeline are distinguished by their communicators, and ranks are compared with their own kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from detector.engine.pipeline import Detector, judge
from detector.timeseries.rows import rows_of
from detector.topology.rank_table import RankTable
from detector.topology.roles import UNKNOWN, Roles
from emulator.simulation.simulate import Plan, pieces

SECOND, START = 10**9, 1_700_000_000 * 10**9
Make = Callable[..., pa.Table]
Comm = tuple[str, str, list[str]]
"""Name, operation, and ranks (`m3:1` is GPU 1 of m3) in their order; empty: one that is not read."""


def table(comms: Iterable[Comm], steps: Iterable[int]) -> pa.Table:
    """The rows of these communicators, each rank's slots numbered as they come."""
    rows: list[dict[str, Any]] = []
    slots: dict[str, int] = {}
    for name, operation, members in comms:
        for rank, who in enumerate(members):
            if not who:
                continue
            machine, _, gpu = who.partition(":")
            slot = slots[who] = slots.get(who, -1) + 1
            fixed: dict[str, Any] = {"machine": machine, "gpu": gpu or "0", "slot": str(slot), "comm": name}
            fixed |= {"operation": operation} | {"rank": float(rank), "ranks": float(len(members))}
            rows += [{"time": START + at * SECOND, **fixed, "operations_total": 3.0 * at} for at in steps]
    return pa.Table.from_pylist(rows).sort_by("time")


def learned(*parts: tuple[list[Comm], Iterable[int]]) -> tuple[Roles, RankTable]:
    """What is known after communicators were read at these seconds, one part after the other."""
    roles, ranks = Roles(), RankTable()
    for comms, steps in parts:
        rows = rows_of("nccl", table(comms, steps))
        for at in steps:
            now = START + at * SECOND
            ranks.update(rows.span(now - SECOND, now))
            roles.look(now, ranks)
    return roles, ranks


def stages(roles: Roles, machines: int) -> list[int]:
    """The role of each machine."""
    return [roles.of(f"m{n}", None) for n in range(machines)]


WORLD: Comm = ("world", "AllReduce:f32:1", [f"m{n}" for n in range(8)])
DATA: list[Comm] = [(f"data{s}", "AllReduce:bf16:9", [f"m{2 * s}", f"m{2 * s + 1}"]) for s in range(4)]
PIPES: list[Comm] = [(f"pipe{p}", "Send:bf16:7", [f"m{2 * s + p}" for s in range(4)]) for p in range(2)]
ENDS: list[Comm] = [(f"ends{p}", "AllReduce:bf16:5", [f"m{p}", f"m{6 + p}"]) for p in range(2)]


@pytest.mark.parametrize("pairs", [False, True])
def test_a_stage_is_the_place_in_the_pipeline(pairs: bool) -> None:
    """Stages follow from one communicator a pipeline or one for two neighbours, first and last stage joined or not."""
    pipes = PIPES
    if pairs:
        near = [(s, s + 1) for s in range(3)] + [(0, 3)]
        pipes = [(f"{p}{a}{b}", "Recv:bf16:7", [f"m{2 * a + p}", f"m{2 * b + p}"]) for p in range(2) for a, b in near]
    roles, _ = learned(([WORLD, *DATA, *pipes, *ENDS], range(2, 40)))
    assert stages(roles, 8) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_without_a_pipeline_smaller_groups_tell() -> None:
    """Ranks that tensor and data groups join have one role; where these join all, all have the same."""
    roles, _ = learned(([WORLD, *DATA], range(2, 40)))
    found = stages(roles, 8)
    assert [found.index(role) for role in found] == [0, 0, 2, 2, 4, 4, 6, 6]
    across: list[Comm] = [(f"across{p}", "AllGather:bf16:3", [f"m{2 * s + p}" for s in range(4)]) for p in range(2)]
    roles, _ = learned(([WORLD, *DATA, *across], range(2, 40)))
    assert len(set(stages(roles, 8))) == 1
    roles, _ = learned(([WORLD], range(2, 40)))
    assert set(stages(roles, 8)) == {UNKNOWN}


def test_gpus_of_one_machine_may_have_different_roles() -> None:
    """A machine that holds several stages is like those that hold the same ones; its ports have its role."""
    pipes: list[Comm] = [(f"p{m}", "Send:bf16:7", [f"m{m}:{g}" for g in range(2)]) for m in range(3)]
    odd: Comm = ("p3", "Send:bf16:7", ["m3:0", "m4:0", "m3:1"])
    world: Comm = ("world", "AllReduce:f32:1", [*(f"m{m}:{g}" for m in range(4) for g in range(2)), "m4:0"])
    roles, _ = learned(([world, *pipes, odd], range(2, 40)))
    assert [roles.of("m1", f"gpu:{gpu}") for gpu in range(2)] == [0, 1]
    assert roles.of("m0", None) == roles.of("m2", "rdma:mlx5_0/1") != roles.of("m3", None)
    assert roles.of("m4", "gpu:5") == 1  # what is not read has its machine's role, where that has one
    assert roles.of("m1", "gpu:5") == UNKNOWN


def test_roles_last_and_follow() -> None:
    """A machine that falls silent keeps its role, so does a chain without a link; a new task gets new roles."""
    pairs: list[Comm] = [(f"pair{a}", "Send:bf16:7", [f"m{a}", f"m{a + 1}"]) for a in range(3)]
    without = [(name, what, ["" if who == "m1" else who for who in ranks]) for name, what, ranks in pairs]
    roles, _ = learned((pairs, range(2, 90)), (without, range(90, 140)))
    assert stages(roles, 4) == [0, 1, 2, 3]
    reformed: list[Comm] = [("new", "Send:bf16:7", ["m3", "m2", "m1", "m0"])]
    roles, _ = learned((pairs, range(2, 90)), (reformed, range(90, 140)))
    assert stages(roles, 4) == [3, 2, 1, 0]


def named(memory: Any, **tables: pa.Table) -> set[str]:
    """Machines that are said or noted to differ from their peers."""
    detector = Detector()
    verdicts = [*judge(memory(tables), detector), *detector.state.incidents.take_notes()]
    return {verdict.machine for verdict in verdicts if verdict.level != "ok"}


def nccl(each: int, count: int, ranks: bool = True) -> pa.Table:
    """So many stages of so many machines; without ranks nothing is known of stages."""
    stages = [[f"m{s * each + n}" for n in range(each)] for s in range(count)]
    comms: list[Comm] = [("world", "AllReduce:f32:1", [who for stage in stages for who in stage])]
    comms += [(f"pipe{n}", "Send:bf16:7", [stage[n] for stage in stages]) for n in range(each)]
    found = table(comms, range(1, 300, 2))
    return found if ranks else found.drop(["rank"])


def test_a_stage_that_does_less_is_not_blamed(memory: Any, fleet: Make) -> None:
    """No machine of a stage with a new load is named: its machines are alike; without roles all would be named."""

    def bend(values: np.ndarray) -> None:
        values += np.repeat(np.arange(8) * 7, 4) + 23 * np.sin(np.arange(len(values)) / 9)[:, None]
        values[150:, 8:12] -= 55

    odd = fleet(machines=32, bend=bend)
    assert named(memory, odd=odd, nccl=nccl(4, 8)) == set()
    assert named(memory, odd=odd, nccl=nccl(4, 8, ranks=False)) == {"m8", "m9", "m10", "m11"}


def test_a_fault_is_not_hidden_behind_other_stages(memory: Any, fleet: Make) -> None:
    """The machine that does not follow its stage is named, though its readings equal the rest of the task's."""

    def bend(values: np.ndarray) -> None:
        values[150:, 4:8] -= 55
        values[150:, 6] += 55

    odd = fleet(machines=16, bend=bend)
    assert named(memory, odd=odd, nccl=nccl(4, 4)) == {"m6"}
    assert named(memory, odd=odd, nccl=nccl(4, 4, ranks=False)) == {"m4", "m5", "m7"}


def test_what_is_usual_is_not_forgotten_when_roles_are_known(memory: Any, fleet: Make) -> None:
    """Communicators that are read late change little: a fault at that time is found about as soon as without."""

    def bend(values: np.ndarray) -> None:
        values += np.repeat(np.arange(4) * 7, 4)
        values[150:, 6] -= 55

    odd = fleet(machines=16, bend=bend)
    late = nccl(4, 4)
    late = late.filter(np.asarray(late["time"]) > START + 135 * SECOND)
    times = []
    task = pa.table({"time": odd["time"][:16], "machine": odd["machine"][:16], "task": ["a"] * 16})
    for tables in ({"odd": odd}, {"odd": odd, "nccl": late}):
        first = next(judge(memory({"task": task, **tables}), Detector()))
        assert first.machine == "m6"
        times.append(first.time)
    assert abs(times[0] - times[1]) <= 2 * SECOND


@pytest.mark.parametrize(("each", "count", "sizes"), [(4, 3, [4, 4, 4]), (3, 4, [12]), (2, 1, [2])])
def test_small_roles_are_compared_with_their_task(
    memory: Any, fleet: Make, each: int, count: int, sizes: list[int]
) -> None:
    """Fewer than four of a role are compared with the rest of the task, if that is four or more, else reported."""
    detector = Detector()
    store = memory({"odd": fleet(machines=each * count, steps=60), "nccl": nccl(each, count)})
    assert list(judge(store, detector)) == []
    assert detector.uncompared_text() == [
        f"{name}, task all: no peers, as {size} are too few to be compared (at least 4)"
        for name in ("nccl", "odd")
        for size in sizes
        if size < 4
    ]


def test_a_simulated_pipeline_with_stages_that_shift(memory: Any) -> None:
    """Stages that do less for minutes raise no alarm where roles are known, and the slow GPU is named alone."""
    labels, parts = pieces(Plan(32, 1, 7, 1.0, "slow_gpu", 7, 8, True), ("gpu", "nccl", "task"))
    chunks: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, columns in part.items():
            chunks.setdefault(name, []).append(pa.table(columns))
    tables = {name: pa.concat_tables(found) for name, found in chunks.items()}
    culprits = {one["machine"] for one in labels["faults"]}
    assert named(memory, **tables) == culprits
    tables["nccl"] = tables["nccl"].drop(["rank"])
    others = named(memory, **tables) - culprits  # whole stages, which lack a quarter of their work
    assert (len(others) > 0, len(others) % 4) == (True, 0)


def test_what_a_communicator_is_for_may_show_late() -> None:
    """A pipeline that is first used minutes after it was formed is known for one from then on."""
    formed: list[Comm] = [(name, "AllReduce:f32:1", ranks) for name, _, ranks in PIPES]
    roles, _ = learned(([WORLD, *DATA, *formed], range(2, 200)), ([WORLD, *DATA, *PIPES], range(200, 240)))
    assert stages(roles, 8) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_task_that_forms_again_in_parts_keeps_its_roles() -> None:
    """No role changes while some ranks are on new communicators and the rest not yet, nor afterwards."""

    def formed(life: str, read: int) -> list[Comm]:
        halves = [(f"{life}{p}", [f"m{n}" if n < read else "" for n in range(p, 8, 2)]) for p in range(2)]
        whole = [f"m{n}" if n < read else "" for n in range(8)]
        return [(f"{life}world", "AllReduce:f32:1", whole), *((name, "AllReduce:bf16:9", who) for name, who in halves)]

    old = (formed("old", 8), range(2, 60))
    for parts in ((old,), (old, (formed("new", 5), range(60, 66))), (old, (formed("new", 8), range(60, 130)))):
        found = stages(learned(*parts)[0], 8)
        assert [found.index(role) for role in found] == [0, 1] * 4
