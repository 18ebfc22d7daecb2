"""One incident, one verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detector.engine.incidents import Incidents
from detector.model.verdict import Finding, Verdict
from store.schema.time import SECOND

START = 1_700_000_000 * SECOND


def finding(machine: str, since_s: int, hard: bool = False, score: float = 3.0) -> Finding:
    """A finding on a machine since some seconds."""
    since, kind = START + since_s * SECOND, "evidence" if hard else "peer"
    return Finding(
        Verdict(since, "t7", machine, None, kind, "gpu.x", score, since, "crit", f"{machine} is odd"), hard, 1.0
    )


def said(incidents: Incidents, at_s: int, *findings: Finding) -> list[tuple[str, str]]:
    """Machine and level of what is said at that second."""
    return [(verdict.machine, verdict.level) for verdict in incidents.update(START + at_s * SECOND, findings)]


@pytest.mark.parametrize(("begins_s", "verdicts"), [(41, []), (159, []), (161, [("m2", "crit")])])
def test_what_follows_a_hard_fact(begins_s: int, verdicts: list[tuple[str, str]]) -> None:
    """Deviations that begin within two minutes of a hard fact are its consequences; later ones stand for themselves."""
    incidents = Incidents()
    lost = finding("m1", 40, hard=True)
    assert said(incidents, 45, lost) == [("m1", "crit")]
    assert said(incidents, begins_s + 20, lost, finding("m2", begins_s)) == verdicts


@pytest.mark.parametrize(("metric", "is_said"), [("gpu.sm_clock_hertz", True), ("rdma.link_up", False)])
def test_what_slows_a_task_does_not_stop_it(metric: str, is_said: bool) -> None:
    """Who a task stands for is said beside a low clock elsewhere, and not beside a link that is down."""
    incidents = Incidents()
    slow, hang = finding("m4", 21, hard=True), finding("m8", 93, hard=True)
    slow = replace(slow, verdict=replace(slow.verdict, metric=metric))
    hang = replace(hang, verdict=replace(hang.verdict, kind="progress", metric="gpu.power_watts"))
    said(incidents, 26, slow)
    assert said(incidents, 139, slow, hang) == ([("m8", "crit")] if is_said else [])


@pytest.mark.parametrize(
    ("metric", "event", "is_said"),
    [
        ("gpu.sm_clock_hertz", "event.nfs_stalled", True),
        ("gpu.pcie_generation", "event.nfs_stalled", True),
        ("rdma.link_up", "event.nfs_stalled", False),
        ("gpu.sm_clock_hertz", "event.silent", False),
    ],
)
def test_what_slows_a_task_hangs_no_mount_elsewhere(metric: str, event: str, is_said: bool) -> None:
    """A mount that hangs, and holds its machine up, is said beside a low clock elsewhere; a silence is not."""
    incidents = Incidents()
    slow, hung = finding("m4", 23, hard=True), finding("m9", 36, hard=True)
    slow = replace(slow, verdict=replace(slow.verdict, metric=metric))
    hung = replace(hung, verdict=replace(hung.verdict, metric=event, level="warn"))
    said(incidents, 28, slow)
    assert said(incidents, 67, slow, hung) == ([("m9", "warn")] if is_said else [])


def test_a_cable_that_corrupts_is_named_beside_another_fault_though_it_lost_packets_first() -> None:
    """Packets are lost for whatever reason, so that may follow from a slow machine; errors on the wire are its own."""
    incidents = Incidents()
    slow = finding("m3", 21, score=4.3)
    said(incidents, 26, slow)
    found = []
    for metric, since_s in (("packet_sequence_errors_total", 47), ("symbol_errors_total", 83)):
        counted = finding("m6", since_s, score=1.0)
        verdict = replace(counted.verdict, kind="evidence", metric=f"rdma.{metric}", level="warn")
        found.append(replace(counted, verdict=verdict))
    assert said(incidents, 89, slow, found[0]) == []
    (named,) = incidents.update(START + 113 * SECOND, [slow, *found])
    assert (named.machine, named.metric) == ("m6", "rdma.symbol_errors_total")


@pytest.mark.parametrize(("metric", "is_said"), [("gpu.ecc_corrected_total", True), ("rdma.ack_timeouts_total", False)])
def test_errors_that_a_device_makes_itself_follow_from_no_other_fault(metric: str, is_said: bool) -> None:
    """Memory errors are said beside a fault elsewhere; acknowledgements that are missing may be those of its victim."""
    incidents = Incidents()
    lost = finding("m1", 33, hard=True)
    said(incidents, 37, lost)
    errors = finding("m6", 51)
    errors = replace(errors, verdict=replace(errors.verdict, kind="evidence", metric=metric, level="warn"))
    assert said(incidents, 66, lost, errors) == ([("m6", "warn")] if is_said else [])


def test_said_once_and_cleared_once() -> None:
    """An incident is said when it opens and when it is over, and not in between."""
    incidents = Incidents()
    assert said(incidents, 10, finding("m3", 5)) == [("m3", "crit")]
    assert said(incidents, 11, finding("m3", 5)) == []
    assert said(incidents, 12) == [("m3", "ok")]
    assert said(incidents, 13) == []


def test_what_has_faded_opens_no_incident() -> None:
    """A victim of another fault is like its peers again when that ends, but not all of its evidence is gone."""
    incidents = Incidents()
    lost = finding("m1", 40, hard=True)
    said(incidents, 45, lost)
    assert said(incidents, 61, lost, finding("m2", 47)) == []
    assert said(incidents, 75, finding("m2", 47, score=0.23)) == [("m1", "ok")]
    assert said(incidents, 76, finding("m2", 47, score=2.9)) == []  # it began in the incident that is over
    assert said(incidents, 300, finding("m2", 291, score=0.8)) == []
    assert said(incidents, 301, finding("m2", 291, score=1.1)) == [("m2", "crit")]


def test_what_comes_and_goes_is_one_incident_from_the_second_time_on() -> None:
    """A GPU is at its power limit now and then: said twice, and over once it was like its peers for ten minutes."""
    incidents = Incidents()
    times = {at for begins in (10, 200, 340, 610, 1195) for at in range(begins, begins + 40)}
    changes = [(at, *one) for at in range(2000) for one in said(incidents, at, *[finding("m8", 5)] * (at in times))]
    assert changes == [(10, "m8", "crit"), (50, "m8", "ok"), (200, "m8", "crit"), (1834, "m8", "ok")]


def test_another_reading_that_deviates_later_is_an_incident_of_its_own() -> None:
    """It is over as soon as it is gone, whatever the machine had before."""
    incidents = Incidents()
    other = finding("m9", 90)
    other = replace(other, verdict=replace(other.verdict, metric="gpu.y"))
    assert said(incidents, 10, finding("m9", 5)) == [("m9", "crit")]
    assert said(incidents, 30) == [("m9", "ok")]
    assert said(incidents, 230, other) == [("m9", "crit")]
    assert said(incidents, 260) == [("m9", "ok")]


def test_weaker_deviations_elsewhere_are_consequences() -> None:
    """While one machine stands out, those that stand out less are victims."""
    incidents = Incidents()
    strong = finding("m4", 5, score=8.0)
    assert said(incidents, 10, strong) == [("m4", "crit")]
    assert said(incidents, 300, strong, finding("m5", 280, score=2.0)) == []


def test_what_was_said_before_stays_open_for_a_while() -> None:
    """A verdict of an earlier detector is not said again when it is found again, and is over when it is not."""
    incidents, until = Incidents(), START + 300 * SECOND
    incidents.restore([finding("m1", 3).verdict, finding("m2", 4).verdict], until)
    assert said(incidents, 20) == []
    assert said(incidents, 60, finding("m1", 50)) == []
    assert said(incidents, 70) == [("m1", "ok")]
    assert said(incidents, 301) == [("m2", "ok")]


def test_a_mild_fact_hides_nothing_worse() -> None:
    """A warning by evidence gives way to a critical verdict on the same machine, be it soft."""
    incidents = Incidents()
    worse = finding("m6", 30)
    mild = replace(finding("m6", 10, hard=True), verdict=replace(finding("m6", 10, hard=True).verdict, level="warn"))
    assert [v.level for v in incidents.update(START + 20 * SECOND, [mild])] == ["warn"]
    assert [(v.level, v.kind) for v in incidents.update(START + 60 * SECOND, [mild, worse])] == [("crit", "peer")]


def test_who_moved_by_its_own_is_no_consequence() -> None:
    """A second machine that stands out less is named too where its own clock speaks against it, or it moved first."""
    strong, weaker = finding("m4", 50, score=8.0), finding("m5", 60, score=2.0)
    for second, verdicts in (
        (replace(weaker, evidence=1.5), []),
        (replace(weaker, evidence=1.5, own=True), [("m5", "crit")]),
        (replace(weaker, evidence=1.1, own=True), []),
        (replace(finding("m5", 20, score=2.0), evidence=1.5), [("m5", "crit")]),
    ):
        incidents = Incidents()
        assert said(incidents, 100, strong) == [("m4", "crit")]
        assert said(incidents, 120, strong, second) == verdicts


def test_of_several_found_at_once_the_one_that_moved_by_its_own_is_blamed() -> None:
    """At the same step the machine with a changed resource goes before a victim that moved a little earlier."""
    victim, culprit = finding("m2", 30, score=3.0), replace(finding("m7", 33, score=2.5), own=True)
    assert said(Incidents(), 100, victim, culprit) == [("m7", "crit")]


def test_what_an_incident_caused_is_not_said_when_it_clears_first() -> None:
    """A victim that recovers a minute after the culprit is no second incident; what is new, or lasts, is one."""
    incidents = Incidents()
    culprit, victim = finding("m1", 20, score=9.0), finding("m6", 31, score=2.0)
    assert said(incidents, 40, culprit, victim) == [("m1", "crit")]
    assert said(incidents, 90, victim) == [("m1", "ok")]
    assert said(incidents, 150, victim) == []
    assert said(incidents, 151, victim, finding("m2", 97)) == [("m2", "crit")]
    assert said(incidents, 152, victim) == [("m2", "ok")]
    assert said(incidents, 300, victim) == [("m6", "crit")]


@pytest.mark.parametrize(("kind", "verdicts"), [("progress", [("m4", "crit")]), ("peer", [])])
def test_a_rank_that_others_wait_for_as_an_incident_ends_is_no_remnant(
    kind: str, verdicts: list[tuple[str, str]]
) -> None:
    """An incident ends some time after its fault; who comes late within that time is the next fault's machine."""
    incidents, slow = Incidents(), finding("m4", 79)
    assert said(incidents, 40, finding("m1", 20)) == [("m1", "crit")]
    assert said(incidents, 90) == [("m1", "ok")]
    assert said(incidents, 93, replace(slow, verdict=replace(slow.verdict, kind=kind))) == verdicts


def test_a_task_that_stands_after_its_culprit_left_is_explained() -> None:
    """The stall began with the incident of the machine that is gone from the task; a later stall is a new one."""
    incidents = Incidents()
    assert said(incidents, 40, finding("m1", 30, hard=True)) == [("m1", "crit")]
    assert said(incidents, 600) == [("m1", "ok")]
    assert said(incidents, 700, finding("t7", 33, hard=True)) == []
    assert said(incidents, 900, finding("t7", 710, hard=True)) == [("t7", "crit")]
