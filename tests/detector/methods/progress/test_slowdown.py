"""Slowdown: the rank that makes iterations longer, from how long the operations of each communicator are in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detector.config import Config
from detector.methods.progress.method import Progress
from detector.model.verdict import Finding, Verdict
from detector.timeseries.rows import Rows
from detector.topology.tasks import Tasks
from store.schema.time import SECOND

START, ONSET, PERIOD = 1_700_000_000 * SECOND, 41, 0.5
MACHINES, GPUS = 6, 2
TEAM = tuple((f"m{machine}", str(gpu)) for machine in range(MACHINES) for gpu in range(GPUS))
METRICS = (
    *("operations_total", "active_ratio", "host_blocked_seconds_total", "iteration_seconds"),
    *("steps_done_total", "rank", "ranks", "pending"),
)
NEAR, FAR = 0.06, 0.11
"""Usual seconds of an iteration in the communicators of a machine and of all machines."""


def longer(kind: str, culprit: int, seconds: float) -> np.ndarray[Any, Any]:
    """[near or far, rank]: by how many seconds each waits longer."""
    out, rank = np.zeros((2, len(TEAM))), np.arange(len(TEAM))
    if kind == "late":  # its neighbour waits for it, and both groups of the machines wait, for it or for its victim
        out[0, (rank // GPUS == culprit // GPUS) & (rank != culprit)] = seconds
        out[1, rank // GPUS != culprit // GPUS] = seconds
    if kind == "slow":  # the group of its port
        out[1, rank % GPUS == culprit % GPUS] = seconds
    if kind == "all":
        out[:] = [[seconds / 3], [2 * seconds / 3]]
    return out


def train(kind: str, culprit: int = 7, late: float = 0.1, **more: Any) -> tuple[Progress, list[list[Finding]]]:
    """Twelve ranks with a communicator a machine and one a place in it, read each second by ten looks; no network near.

    `more`: whether it is `alone` in its proxies, the `host` waits behind operations; `until` when it lasts.
    """
    method, chance, blocked, found = Progress(Config()), np.random.default_rng(29), np.zeros((2, len(TEAM))), []
    tasks = Tasks(said={machine: "run" for machine, _ in TEAM}, seen={machine for machine, _ in TEAM})
    rank = np.arange(len(TEAM))
    names = [f"near{at}" for at in range(MACHINES)] + [f"far{at}" for at in range(GPUS)]
    code = np.concatenate([rank // GPUS, MACHINES + rank % GPUS])
    idents = tuple((*who, slot) for slot in "01" for who in TEAM)
    for second in range(more.get("until", 90)):
        wrong = second > ONSET
        flight = np.array([[NEAR], [FAR]]) + wrong * longer(kind, culprit, late)
        period = PERIOD + wrong * late
        share = chance.binomial(10, np.clip(flight / period, 0, 1)) / 10
        blocked += flight / period * chance.normal(1, 0.02, flight.shape)
        columns = {
            "operations_total": np.full(code.shape, 4.0 * second),
            "active_ratio": share.reshape(-1),
            "host_blocked_seconds_total": blocked.reshape(-1) if more.get("host") else np.full(code.shape, np.nan),
            "iteration_seconds": np.full(code.shape, period + chance.normal(0, 0.002)),
            "steps_done_total": np.full(code.shape, 9.0 * second if more.get("alone", True) else np.nan),
            "rank": np.concatenate([rank % GPUS, rank // GPUS]).astype(float),
            "ranks": np.repeat([float(GPUS), float(MACHINES)], len(TEAM)),
            "pending": np.zeros(code.shape),
        }
        now = START + second * SECOND
        texts = {"comm": (code, names), "operation": (0 * code, ["AllReduce:bf16:7"])}
        values = np.stack([columns[name] for name in METRICS], 1)
        time, ident = np.full(code.shape, now), np.arange(len(code))
        rows = Rows("nccl", time, ident, idents, ("gpu", "slot"), METRICS, values, texts)
        found.append(method.step(now, {"nccl": rows}, tasks))
    return method, found


@pytest.mark.parametrize("host", [False, True])
def test_the_late_rank_is_first_and_its_victims_are_not(host: bool) -> None:
    """The method tells the late rank from those that it makes late, by looks alone or with the host's waiting."""
    method, _ = train("late", host=host, until=75)
    (task, machine), words = next(iter(method.slowdown_text.items()))
    assert (task, machine) == ("run", "m3")
    assert words.startswith("by the times of its operations m3 GPU 1 comes late to its collectives (")


def test_a_slow_link_is_distinguished_from_a_late_rank() -> None:
    """A communicator is slow where all its ranks take longer; that alone raises no alarm."""
    method, found = train("slow", late=0.13)
    assert all(" communicates slowly (" in words for words in method.slowdown_text.values())
    assert not any("makes iterations longer" in finding.verdict.message for some in found for finding in some)


@pytest.mark.parametrize("more", [{"kind": "none"}, {"kind": "all"}, {"kind": "late", "alone": False}])
def test_no_rank_is_named_where_nothing_can_be(more: dict[str, Any]) -> None:
    """Regular iterations, longer ones for all, and looks that several communicators share say nothing."""
    method, _ = train(**more)
    assert method.slowdown_text == {}


def test_what_is_too_little_to_see_at_once_raises_an_alarm_in_time() -> None:
    """A rank that makes iterations 7 % longer, below what lateness goes by, is named within 28 s by the time it takes.

    With the forest's own thresholds, of another job's operations, it takes 43 s.
    """
    _, found = train("late", culprit=4, late=0.035, host=True, until=125)
    mine = [finding for some in found for finding in some if "makes iterations longer" in finding.verdict.message]
    assert {(finding.verdict.machine, finding.verdict.device) for finding in mine} == {("m2", "gpu:0")}
    assert 16 * SECOND <= mine[0].verdict.time - START - ONSET * SECOND <= 28 * SECOND
    assert abs(mine[0].verdict.since - START - ONSET * SECOND) <= 9 * SECOND
    assert "By the times of its operations m2 GPU 0 comes late" in mine[0].verdict.message


def test_what_passes_raises_no_alarm_by_itself() -> None:
    """Two windows are enough to support another finding about that machine, and no more."""
    method, found = train("late", host=True, until=58)
    assert not any("makes iterations longer" in finding.verdict.message for some in found for finding in some)
    verdict = Verdict(1, "run", "m3", None, "peer", "gpu.sm_clock_hertz", 3.0, 0, "crit", "m3 is slow", ("so",))
    finding = Finding(verdict, False, 1.0)
    first, second = method.annotate([finding])[0].verdict.evidence
    assert (first, second[:40]) == ("so", "by the times of its operations m3 GPU 1 ")
    elsewhere = Finding(Verdict(1, "run", "m5", None, "peer", "x", 1.0, 0, "crit", ""), False, 1.0)
    assert method.annotate([elsewhere]) == [elsewhere]


def test_a_straggler_comes_with_what_no_other_machine_can_cause() -> None:
    """The strongest local reading of its own device ends the message; other machines' readings do not."""
    verdict = Verdict(9, "run", "m4", "gpu:1", "progress", "nccl.active_ratio", 2.0, 5, "warn", "m4 waits.")
    late = Finding(verdict, False, 1.2)
    clock = Verdict(9, "run", "m4", "gpu:1", "peer", "gpu.sm_clock_hertz", 3.0, 5, "warn", "m4 GPU 1 runs at 1.14 GHz")
    fan = replace(clock, device="gpu:6", metric="gpu.temperature_celsius", message="m4 GPU 6 is at 77 °C")
    other = replace(clock, machine="m2", message="m2 GPU 1 runs at 1.31 GHz")
    causes = [Finding(fan, False, 8.0, True), Finding(clock, False, 1.1, True), Finding(other, False, 9.0, True)]
    annotated = Progress(Config()).annotate([late, *causes])
    assert annotated[0].verdict.message == "m4 waits. Likely cause: it runs at 1.14 GHz."
    assert annotated[1:] == causes
    assert Progress(Config()).annotate([late, causes[0]])[0].verdict.message.endswith("cause: GPU 6 is at 77 °C.")
