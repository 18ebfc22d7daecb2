"""Incidents as alerts: one key from beginning to end, whoever counts."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from detector.alerts.alert import REOPEN_NS, IncidentTracker, ends_first, sample
from detector.alerts.brief import Brief, Number
from detector.model.verdict import Level, Verdict


def verdict(time: int, level: Level, machine: str = "m3", task: str = "t9", score: float = 2.5) -> Verdict:
    """One word on a machine; the pattern began 7 ns before."""
    return Verdict(
        time, task, machine, "gpu:1", "peer", "gpu.power_watts", score, time - 7, level, f"{machine} {level}"
    )


def test_an_incident_has_a_key_a_beginning_and_an_end() -> None:
    """A deviation that gets worse is the same incident; one that comes long after its end is another incident."""
    incidents = IncidentTracker()
    late = 46 + REOPEN_NS
    words: tuple[tuple[int, Level], ...] = ((20, "warn"), (31, "crit"), (45, "ok"), (late, "crit"))
    begun, worse, over, reopened = (incidents.record(verdict(time, level)) for time, level in words)
    assert begun is not None
    assert worse is not None
    assert over is not None
    assert reopened is not None
    assert [alert.event for alert in (begun, worse, over, reopened)] == ["begun", "changed", "over", "begun"]
    assert begun.incident == worse.incident == over.incident != reopened.incident
    assert (over.start, over.opened, over.end, over.worst) == (13, 20, 45, "crit")
    assert over.finding == worse.verdict
    assert (begun.end, worse.end, begun.standing, over.standing) == (None, None, "warn", "ok")


def test_a_machine_that_is_named_again_soon_continues_its_incident() -> None:
    """A deviation that comes back within minutes continues the incident with its key and its beginning."""
    incidents = IncidentTracker()
    begun, over, back = (
        incidents.record(verdict(time, level)) for time, level in ((20, "crit"), (45, "ok"), (44 + REOPEN_NS, "warn"))
    )
    assert begun
    assert over
    assert back
    assert (back.event, back.incident, back.opened, back.end) == ("changed", begun.incident, 20, None)
    assert (back.worst, back.verdict.level, over.event) == ("crit", "warn", "over")


def test_a_task_that_goes_by_another_name_opens_no_second_incident() -> None:
    """An incident stays one when its task `task of m00` becomes `task of m01`."""
    incidents = IncidentTracker()
    begun = incidents.record(verdict(20, "crit", task="task of m00"))
    renamed = [verdict(31, "crit", task="task of m01"), verdict(31, "ok", task="task of m00")]
    _, again = (incidents.record(word) for word in ends_first(renamed))
    assert begun
    assert again
    assert (again.incident, again.event) == (begun.incident, "changed")
    assert IncidentTracker().restore([begun.verdict, *renamed])[begun.incident].event == "changed"


def test_the_headline_says_the_likely_cause() -> None:
    """The headline says what is wrong, why and how much; since when nothing is read; and at the end what it was."""
    incidents = IncidentTracker()
    begun = incidents.record(verdict(20, "crit"))
    assert begun
    assert begun.headline == "m3 crit"
    clock = Number("gpu.sm_clock_hertz", "gpu:1", 1.14e9, 1.93e9, 1.95e9, "hertz", "clock 1.14 GHz, peers 1.95 GHz")
    known = replace(begun, brief=Brief("gpu_heat", "a GPU that is slow by heat", numbers=(clock,)))
    assert known.headline == "m3 crit. Likely a GPU that is slow by heat: clock 1.14 GHz, peers 1.95 GHz"
    unread = replace(begun, unread=1_780_000_000_000_000_000)
    assert unread.headline == "m3 crit (last seen at 20:26:40 UTC; no readings since)"
    over = incidents.record(verdict(13 + 130 * 10**9, "ok"))
    assert over
    assert over.headline == "m3 ok, after 2 min. It was: m3 crit"


def test_a_recovery_from_nothing_is_no_alert() -> None:
    """An incident that was never said has no end."""
    assert IncidentTracker().record(verdict(20, "ok")) is None


def test_a_machine_stands_at_its_worst() -> None:
    """A machine has not recovered while an incident of another task is open on it."""
    incidents = IncidentTracker()
    incidents.record(verdict(20, "crit", task="t1"))
    second = incidents.record(verdict(21, "warn", task="t2"))
    over = incidents.record(verdict(33, "ok", task="t2"))
    assert second is not None
    assert over is not None
    assert (second.standing, over.standing, over.verdict.level) == ("crit", "crit", "ok")


@given(st.lists(st.tuples(st.sampled_from(["m1", "m2"]), st.sampled_from(["ok", "warn", "crit"])), max_size=30))
def test_a_restored_tracker_knows_the_same(words: list[tuple[str, Level]]) -> None:
    """A tracker that reads verdicts back later has the same incidents and keys as one that heard them live."""
    said = [verdict(100 + 10 * at, level, machine) for at, (machine, level) in enumerate(words)]
    live, later = IncidentTracker(), IncidentTracker()
    alerts = [alert for word in said if (alert := live.record(word))]
    assert later.restore(said) == {alert.incident: alert for alert in alerts}
    assert later.open == live.open


def test_json_says_all() -> None:
    """The object for sinks is JSON and carries key, span, levels and both messages."""
    incidents = IncidentTracker()
    incidents.record(verdict(20, "crit"))
    over = incidents.record(verdict(45, "ok", score=0.0))
    assert over
    found = json.loads(json.dumps(over.as_json()))
    wanted = {"event": "over", "level": "ok", "worst": "crit", "start": 13, "opened": 20, "end": 45, "machine": "m3"}
    assert {key: found[key] for key in wanted} == wanted
    assert (found["message"], found["finding"], found["device"]) == ("m3 ok", "m3 crit", "gpu:1")
    now = 1_780_000_000_000_000_007
    test = sample(now, 12)
    assert (test.event, test.verdict.level, test.end, test.fleet) == ("test", "ok", now, 12)
