"""The dispatcher: each sink gets each incident once, whatever fails: the sink, another one or the detector."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from detector.alerts import delivery as module
from detector.alerts.alert import Alert, RefusedError, RetryLaterError, Sink
from detector.alerts.delivery import HANG_NS
from detector.alerts.delivery_log import DeliveryLog, read_delivery_log
from detector.alerts.dispatcher import AlertDispatcher
from detector.model.verdict import Level, Verdict
from store.schema.time import SECOND

FLEET = frozenset(f"m{n}" for n in range(8))
Said = tuple[str, str, str]


class Ear(Sink):
    """Keeps what it hears, and before that does what `trouble` says."""

    def __init__(self, trouble: Callable[[Alert], None] = lambda _: None) -> None:
        self.trouble = trouble
        self.heard: list[Alert] = []
        self.heartbeats: list[Collection[str]] = []
        self.came = threading.Condition()

    def send(self, alert: Alert) -> str:
        """Hear one alert."""
        self.trouble(alert)
        with self.came:
            self.heard.append(alert)
            self.came.notify_all()
        return "heard"

    def heartbeat(self, machines: Collection[str]) -> None:
        """Hear who is well."""
        with self.came:
            self.heartbeats.append(machines)
            self.came.notify_all()

    def wait(self, count: int) -> list[Said]:
        """What was heard, once it is so many alerts."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.heard) >= count, 30), self.heard
        return [(alert.event, alert.verdict.machine, alert.verdict.level) for alert in self.heard]


def verdict(at: int, level: Level, machine: str = "m3") -> Verdict:
    """A verdict at so many seconds."""
    return Verdict(
        at * SECOND, "t9", machine, None, "peer", "a.b", 1.5, at * SECOND - 3, level, f"{machine} is {level}"
    )


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AlertDispatcher]]:
    """A function that starts a dispatcher over these sinks from these verdicts; it retries failures soon."""
    monkeypatch.setattr(module, "BACK_OFF_S", (0.01, 0.02))
    dispatchers: list[AlertDispatcher] = []

    def make(said: list[Verdict], **sinks: Sink) -> AlertDispatcher:
        dispatchers.append(AlertDispatcher(sinks, tmp_path))
        dispatchers[-1].begin(said)
        dispatchers[-1].publish([], FLEET, SECOND)
        return dispatchers[-1]

    yield make
    for dispatcher in dispatchers:
        dispatcher.close()


def delivery_log(folder: Path, name: str) -> DeliveryLog:
    """The delivery log in the file of a sink."""
    found = read_delivery_log(folder / f"{name}.json")
    assert found
    return found


def test_one_alert_at_each_turn(begin: Callable[..., AlertDispatcher], tmp_path: Path) -> None:
    """A sink gets beginning, worsening and end of an incident once each, with one key and the size of the fleet."""
    ear = Ear()
    dispatcher = begin([], ear=ear)
    for at, level in ((20, "warn"), (30, "crit"), (40, "ok")):
        dispatcher.publish([verdict(at, level)], FLEET, at * SECOND)
        ear.wait(len(ear.heard) or 1)
        ear.wait({20: 1, 30: 2, 40: 3}[at])
    assert ear.wait(3) == [("begun", "m3", "warn"), ("changed", "m3", "crit"), ("over", "m3", "ok")]
    assert len({alert.incident for alert in ear.heard}) == 1
    assert {alert.fleet for alert in ear.heard} == {8}
    dispatcher.close()
    assert (delivery_log(tmp_path, "ear").delivered, delivery_log(tmp_path, "ear").reported) == (3, {})


def test_a_sink_that_fails_or_hangs_harms_no_other(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A third sink gets all alerts while one raises an unknown error and one hangs; the log counts and names both."""
    door = threading.Event()

    def broken(_: Alert) -> None:
        raise RuntimeError("no room on the wall")

    def stuck(_: Alert) -> None:
        door.wait(30)

    well = Ear()
    dispatcher = begin([], broken=Ear(broken), stuck=Ear(stuck), well=well)
    for at in range(20, 25):
        dispatcher.publish([verdict(at, "crit", f"m{at - 20}")], FLEET, at * SECOND)
    assert len(well.wait(5)) == 5
    dispatcher.publish([], FLEET, 26 * SECOND)
    dispatcher.publish([], FLEET, 27 * SECOND + HANG_NS)
    door.set()
    dispatcher.close()
    assert delivery_log(tmp_path, "stuck").hung == 1
    assert delivery_log(tmp_path, "broken").failed > 0
    assert "no room on the wall" in delivery_log(tmp_path, "broken").error
    assert "sink stuck has hung for" in caplog.text
    assert sum("sink broken fails" in record.getMessage() for record in caplog.records) == 1


def test_a_heartbeat_that_hangs_is_noticed_and_much_work_is_no_hanging(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink hangs when one call does not return, be it a heartbeat; not when it always has something to do."""
    door, entered, ear, stuck = threading.Event(), threading.Event(), Ear(), Ear()
    stuck.heartbeat_s = 10.0

    def hang(_: object) -> None:
        entered.set()
        door.wait(30)

    stuck.heartbeat = hang  # type: ignore[method-assign]
    dispatcher = begin([], ear=ear, stuck=stuck)
    for n in range(1, 6):
        dispatcher.publish([verdict(20 + n, "crit", f"m{n}")], FLEET, 20 * SECOND + n * HANG_NS)
        ear.wait(n)
        assert entered.wait(30)
    door.set()
    dispatcher.close()
    assert (delivery_log(tmp_path, "ear").hung, delivery_log(tmp_path, "stuck").hung) == (0, 1)
    assert "over the heartbeat" in caplog.text


def test_what_fails_is_tried_again_and_folded(begin: Callable[..., AlertDispatcher], tmp_path: Path) -> None:
    """Only the newest alert of each incident waits for a sink that fails."""
    shut, tried = threading.Event(), threading.Event()
    shut.set()

    def trouble(_: Alert) -> None:
        if shut.is_set():
            tried.set()
            raise RetryLaterError("the line is busy")

    ear = Ear(trouble)
    dispatcher = begin([], ear=ear)
    for at, level in ((20, "warn"), (30, "crit"), (40, "ok")):
        dispatcher.publish([verdict(at, level)], FLEET, at * SECOND)
    dispatcher.publish([verdict(50, "crit", "m5")], FLEET, 50 * SECOND)
    assert tried.wait(30)
    shut.clear()
    assert sorted(ear.wait(2)) == [("begun", "m5", "crit"), ("over", "m3", "ok")]
    dispatcher.close()
    found = delivery_log(tmp_path, "ear")
    assert (found.delivered, found.failed > 0, list(found.reported.values())) == (2, True, [("crit", 50 * SECOND)])


def test_a_refusal_is_final(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An alert that a sink refuses is logged, counted and not tried again; the next alert is sent."""

    def trouble(alert: Alert) -> None:
        if alert.verdict.machine == "m3":
            raise RefusedError("too many machines are out")

    ear = Ear(trouble)
    dispatcher = begin([], ear=ear)
    dispatcher.publish([verdict(20, "crit"), verdict(21, "crit", "m6")], FLEET, 21 * SECOND)
    assert ear.wait(1) == [("begun", "m6", "crit")]
    dispatcher.close()
    assert (delivery_log(tmp_path, "ear").refused, delivery_log(tmp_path, "ear").failed) == (1, 0)
    assert "refuses the alert about m3: too many machines are out" in caplog.text


def test_a_new_detector_repeats_nothing(begin: Callable[..., AlertDispatcher]) -> None:
    """A new detector sends only alerts that the last one did not send: new incidents, and ends."""
    said = [verdict(20, "crit"), verdict(21, "warn", "m4"), verdict(22, "crit", "m5")]
    first = Ear()
    dispatcher = begin([], ear=first)
    dispatcher.publish(said, FLEET, 22 * SECOND)
    first.wait(3)
    dispatcher.close()
    later = [verdict(30, "ok", "m4"), verdict(31, "crit", "m6")]  # written to the store, then killed
    second = Ear()
    dispatcher = begin([*said, *later], ear=second)
    assert sorted(second.wait(2)) == [("begun", "m6", "crit"), ("over", "m4", "ok")]
    dispatcher.close()
    third = Ear()
    dispatcher = begin([*said, *later], ear=third)
    dispatcher.publish([verdict(40, "ok", "m5")], FLEET, 40 * SECOND)
    assert third.wait(1) == [("over", "m5", "ok")]
    assert third.heard[0].incident == next(alert.incident for alert in first.heard if alert.verdict.machine == "m5")


def test_a_new_sink_gets_no_old_incidents(begin: Callable[..., AlertDispatcher]) -> None:
    """A sink without a delivery log gets no beginning of an old incident, so that none comes twice, but its end."""
    ear = Ear()
    dispatcher = begin([verdict(20, "crit")], ear=ear)
    dispatcher.publish([verdict(40, "ok"), verdict(41, "warn", "m7")], FLEET, 41 * SECOND)
    assert ear.wait(2) == [("over", "m3", "ok"), ("begun", "m7", "warn")]


def test_mild_incidents_can_be_left_out(begin: Callable[..., AlertDispatcher]) -> None:
    """A sink for the worst alone hears of an incident when it becomes critical, and then of its end."""
    ear = Ear()
    ear.min_level = "crit"
    dispatcher = begin([], ear=ear)
    dispatcher.publish([verdict(20, "warn"), verdict(21, "warn", "m4"), verdict(22, "ok", "m4")], FLEET, 22 * SECOND)
    dispatcher.publish([verdict(30, "crit")], FLEET, 30 * SECOND)
    ear.wait(1)
    dispatcher.publish([verdict(40, "ok")], FLEET, 40 * SECOND)
    assert ear.wait(2) == [("changed", "m3", "crit"), ("over", "m3", "ok")]


def test_notes_go_to_those_who_ask_for_them(begin: Callable[..., AlertDispatcher]) -> None:
    """A note is sent once to a sink with `min_level` note, opens no incident, and is not sent to the others."""
    curious, usual = Ear(), Ear()
    curious.min_level = "note"
    dispatcher = begin([], curious=curious, usual=usual)
    dispatcher.publish([verdict(20, "warn")], FLEET, 20 * SECOND, notes=[verdict(20, "note", "m5")])
    dispatcher.publish([], FLEET, 30 * SECOND, notes=[verdict(30, "note", "m6")])
    assert curious.wait(3) == [("begun", "m3", "warn"), ("note", "m5", "note"), ("note", "m6", "note")]
    assert usual.wait(1) == [("begun", "m3", "warn")]
    assert [alert.verdict.machine for alert in dispatcher.shown.open] == ["m3"]


def test_open_incidents_are_repeated_and_heartbeats_sent(begin: Callable[..., AlertDispatcher]) -> None:
    """A sink that asks for it gets open incidents again after its period, and a heartbeat each period."""
    ear = Ear()
    ear.repeat_s, ear.heartbeat_s = 60.0, 10.0
    dispatcher = begin([], ear=ear)
    dispatcher.publish([verdict(20, "crit")], FLEET, 20 * SECOND)
    ear.wait(1)
    for at in (30, 79):
        dispatcher.publish([], FLEET, at * SECOND)
    with ear.came:
        assert ear.came.wait_for(lambda: len(ear.heartbeats) >= 2, 30)
    assert len(ear.heard) == 1
    dispatcher.publish([], FLEET, 81 * SECOND)
    assert ear.wait(2)[1] == ("repeat", "m3", "crit")
    assert set(ear.heartbeats[-1]) == FLEET - {"m3"}


def test_what_waits_is_bounded(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher drops and counts the oldest incidents where more wait than it may hold."""
    monkeypatch.setattr(module, "MOST_WAITING", 20)
    door = threading.Event()
    ear = Ear(lambda _: door.wait(30) and None)
    dispatcher = begin([], ear=ear)
    count, most = 31, 20
    dispatcher.publish([verdict(20 + n, "crit", f"x{n}") for n in range(count)], FLEET, 2000 * SECOND)
    door.set()
    ear.wait(most)
    dispatcher.close()
    found = delivery_log(tmp_path, "ear")
    assert ear.heard[-1].verdict.machine == f"x{count - 1}"
    assert (found.dropped + found.delivered, found.dropped in (count - most - 1, count - most)) == (count, True)


def test_a_delivery_log_that_cannot_be_written_stops_nothing(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Alerts go out though the delivery log cannot be written; one warning says that they may come twice."""
    os.mkdir(tmp_path / "ear.json")
    ear = Ear()
    with caplog.at_level(logging.WARNING):
        dispatcher = begin([], ear=ear)
        dispatcher.publish([verdict(20, "crit"), verdict(21, "warn", "m4")], FLEET, 21 * SECOND)
        assert len(ear.wait(2)) == 2
        dispatcher.close()
    assert sum("may send alerts twice" in record.getMessage() for record in caplog.records) == 1


def test_what_is_acknowledged_is_not_repeated(begin: Callable[..., AlertDispatcher]) -> None:
    """The dispatcher does not repeat an acknowledged incident, but sends its end; it repeats the other one."""
    ear = Ear()
    ear.repeat_s = 60.0
    dispatcher = begin([], ear=ear)
    dispatcher.publish([verdict(20, "crit"), verdict(21, "crit", "m5")], FLEET, 21 * SECOND)
    ear.wait(2)
    dispatcher.acknowledged = lambda said: said.machine == "m3"
    dispatcher.publish([], FLEET, 200 * SECOND)
    assert ear.wait(3)[2] == ("repeat", "m5", "crit")
    dispatcher.publish([verdict(210, "ok")], FLEET, 210 * SECOND)
    assert ear.wait(4)[3] == ("over", "m3", "ok")
    dispatcher.close()
