"""Rounds of stacks: asked for of all machines of a slow task, once in half an hour."""

from __future__ import annotations

from dataclasses import replace

from detector.config import Config
from detector.engine.stack_requests import StackPlanner
from detector.model.verdict import Verdict

SECOND = 10**9
NOW = 1_790_000_000 * SECOND
SLOW = Verdict(NOW, "t3", "m4", "gpu:1", "progress", "nccl.active_ratio", 2.5, NOW - 9, "warn", "m4 is late")
TEAMS = {"t3": ["m5", "m4"], "t8": ["m9"]}


def asked(planner: StackPlanner, now: int, *verdicts: Verdict) -> list[str]:
    """The machines that are asked."""
    found = planner.orders(now, verdicts, TEAMS.__getitem__)
    assert all(order.source == "stacks" and order.hertz == 0.1 for _, order in found)
    assert all(60 * SECOND <= order.until - now <= 90 * SECOND for _, order in found)
    return [machine for machine, _ in found]


def test_a_slow_task_is_asked_as_a_whole_and_then_rests() -> None:
    """All its machines, not again for half an hour; another task meanwhile."""
    planner = StackPlanner(Config())
    assert asked(planner, NOW, SLOW, SLOW) == ["m4", "m5"]
    assert asked(planner, NOW + 1700 * SECOND, SLOW) == []
    assert asked(planner, NOW + 1710 * SECOND, replace(SLOW, task="t8")) == ["m9"]
    assert asked(planner, NOW + 1800 * SECOND, SLOW) == ["m4", "m5"]


def test_what_is_no_reason() -> None:
    """An end, a note, and a verdict on a reading ask for nothing; stopped traffic does; without zoom none does."""
    planner = StackPlanner(Config())
    clock = replace(SLOW, kind="peer", metric="gpu.sm_clock_hertz")
    assert asked(planner, NOW, replace(SLOW, level="ok"), replace(SLOW, level="note"), clock) == []
    quiet = replace(SLOW, kind="evidence", metric="rdma.transmit_bytes_total", level="crit")
    assert asked(StackPlanner(replace(Config(), zoom_seconds=0.0)), NOW, quiet) == []
    assert asked(planner, NOW, quiet) == ["m4", "m5"]
