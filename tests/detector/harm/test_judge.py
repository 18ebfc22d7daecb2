"""What is said of one finding."""

from __future__ import annotations

import numpy as np
import pytest

from detector.harm.judge import Harm
from detector.harm.pace import SIGNALS
from detector.model.verdict import Finding, Verdict
from store.schema.time import SECOND
from tests.detector.harm.test_pace import swinging
from tests.detector.harm.test_silence import standing

LOSES = "rdma.packet_sequence_errors_total"


def is_answered(device: str, metric: str, score: float, lasts_s: int) -> bool:
    """Whether a small difference of a device of a steady task, that began so long ago, is said in any way."""
    harm = Harm()
    harm.pace = standing(np.ones((140, len(SIGNALS))), 1)
    harm.pace.values[-1] = 1.0
    now = int(harm.pace.times[-1])
    verdict = Verdict(now, "job-7", "m4", device, "peer", metric, score, now - lasts_s * SECOND, "warn", "m4")
    return harm.graded(Finding(verdict, False, score, small=True), {}, now) is not None


@pytest.mark.parametrize(
    ("metric", "lasts_s", "is_said"),
    [("gpu.power_watts", 270, False), ("gpu.power_watts", 310, True), ("gpu.sm_clock_hertz", 275, True)],
)
def test_a_small_difference_in_power_has_to_last_for_five_minutes(metric: str, lasts_s: int, is_said: bool) -> None:
    """Heat and load move what a GPU draws for a few minutes; a clock that is lower is judged before."""
    assert is_answered("gpu:5", metric, 1.7, lasts_s) == is_said


@pytest.mark.parametrize(
    ("score", "lasts_s", "is_said"), [(1.4, 100, False), (1.4, 135, True), (2.3, 65, True), (1.8, 65, False)]
)
def test_a_difference_near_its_threshold_has_to_last_for_longer(score: float, lasts_s: int, is_said: bool) -> None:
    """Twice the threshold is enough after a minute; what is 1.4 times as much takes two, to be as sure."""
    assert is_answered("gpu:3", "gpu.sm_active_ratio", score, lasts_s) == is_said


@pytest.mark.parametrize(("score", "is_said"), [(1.1, False), (1.3, True)])
def test_a_clock_that_only_just_differs_is_chance(score: float, is_said: bool) -> None:
    """Of many small differences one reaches its threshold now and then, also in what a device can do at most."""
    assert is_answered("gpu:6", "gpu.sm_clock_hertz", score, 410) == is_said


def test_a_small_difference_lasts_for_two_iterations() -> None:
    """With iterations of 50 s it takes 100 s to tell that a GPU is at work less, however clear it is."""
    harm = Harm()
    harm.pace = standing(swinging(174, 10, len(SIGNALS)), 1)
    harm.pace.values[-1] = 1.0
    now = int(harm.pace.times[-1])
    said = []
    for seconds in (85, 115):
        since = now - seconds * SECOND
        verdict = Verdict(now, "job-7", "m2", "gpu:1", "peer", "gpu.duty_cycle_ratio", 4.2, since, "warn", "m2")
        harm.answers.clear()
        said.append(harm.graded(Finding(verdict, False, 4.2, small=True), {}, now) is not None)
    assert said == [False, True]


def test_a_fact_is_not_answered_for_by_a_deviation_of_the_same_reading() -> None:
    """A port that loses packets goes on to be one by its rule, when it no longer deviates from its peers."""
    harm = Harm()
    now = 1_700_000_000 * SECOND
    deviates = Verdict(now, "job-9", "m6", "rdma:mlx5_3/1", "peer", LOSES, 0.4, now - 90 * SECOND, "warn", "")
    fact = Verdict(now, "job-9", "m6", "rdma:mlx5_3/1", "evidence", LOSES, 1.0, now - 70 * SECOND, "warn", "")
    assert harm.graded(Finding(deviates, False, 1.2), {}, now) is None
    said = harm.graded(Finding(fact, False, 1.0), {}, now)
    assert said is not None
    assert said.verdict.level == "warn"


@pytest.mark.parametrize(("clustered", "level"), [(True, "note"), (False, "warn")])
@pytest.mark.parametrize(
    "metric", ["gpu.pcie_receive_bytes_total", "rdma.receive_packets_total", "host.memory_utilization_ratio"]
)
def test_other_work_than_that_of_peers_that_were_found_by_their_readings_is_a_note(
    metric: str, clustered: bool, level: str
) -> None:
    """A machine of another role comes to do other work; between peers that are known it is what others wait for."""
    harm = Harm()
    now = 1_700_000_000 * SECOND
    verdict = Verdict(now, "job-8", "m5", None, "peer", metric, 3.1, now - 700 * SECOND, "warn", "")
    said = harm.graded(Finding(verdict, False, 3.1, clustered=clustered), {}, now)
    assert said is not None
    assert said.verdict.level == level


@pytest.mark.parametrize(("ended_s", "level"), [(0, "warn"), (40, None)])
def test_what_is_left_of_an_incident_is_no_other_one(ended_s: int, level: str | None) -> None:
    """A GPU that was slow drew less: averaged over minutes that is so for a while after it is well again."""
    harm = Harm()
    harm.pace = standing(np.ones((150, len(SIGNALS))), 1)
    harm.pace.values[-1] = 1.0
    now = int(harm.pace.times[-1])
    place = "job-7", "m4", "gpu:6", True
    slow = Verdict(now, "job-7", "m4", "gpu:6", "peer", "gpu.sm_clock_hertz", 2.3, now - 640 * SECOND, "warn", "")
    for ago in range(640, ended_s - 5, -5):
        harm.blamed.note(now - ago * SECOND, [slow])
    harm.harmful[place] = now - 5 * SECOND
    draws = Verdict(now, "job-7", "m4", "gpu:6", "peer", "gpu.power_watts", 1.1, now - 590 * SECOND, "warn", "")
    said = harm.graded(Finding(draws, False, 1.1, small=True), {}, now)
    assert (said.verdict.level if said is not None else None) == level


@pytest.mark.parametrize("again", [115, 150])
@pytest.mark.parametrize(("known", "level"), [(True, "note"), (False, "warn")])
def test_what_an_incident_cost_that_is_over_raises_no_event_later(known: bool, level: str, again: int) -> None:
    """Memory errors were logged as a slow GPU began to hold its task up; that it did is said, and over, already.

    Also where the task goes on as slowly for another reason.
    """
    harm, shares = Harm(), np.ones((150, len(SIGNALS)))
    shares[62:again] = 0.8 + 0.01 * np.random.default_rng(3).normal(0, 1, (again - 62, len(SIGNALS)))
    harm.pace = standing(shares, 1)
    harm.pace.values[-1] = 1.0
    times, now = harm.pace.times, int(harm.pace.times[-1])
    slow = Verdict(now, "job-7", "m4", None, "peer", "gpu.duty_cycle_ratio", 2.3, int(times[61]), "warn", "")
    for at in times[61:118] if known else ():
        harm.blamed.note(int(at), [slow])
    logged = Verdict(now, "job-7", "m4", None, "evidence", "event.edac", 0.5, int(times[60]), "note", "m4")
    said = harm.graded(Finding(logged, True, 0.5), {}, now)
    assert said is not None
    assert said.verdict.level == level
