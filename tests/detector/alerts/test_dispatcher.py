"""The desk: each sink hears each incident once, whatever happens to it, to the others and to the detector."""

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
        self.beats: list[Collection[str]] = []
        self.came = threading.Condition()

    def send(self, alert: Alert) -> str:
        """Hear one alert."""
        self.trouble(alert)
        with self.came:
            self.heard.append(alert)
            self.came.notify_all()
        return "heard"

    def beat(self, machines: Collection[str]) -> None:
        """Hear who is well."""
        with self.came:
            self.beats.append(machines)
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
    """A function that starts a desk over these sinks, which goes on from these verdicts; failures are retried soon."""
    monkeypatch.setattr(module, "BACK_OFF_S", (0.01, 0.02))
    desks: list[AlertDispatcher] = []

    def make(said: list[Verdict], **sinks: Sink) -> AlertDispatcher:
        desks.append(AlertDispatcher(sinks, tmp_path))
        desks[-1].begin(said)
        desks[-1].hear([], FLEET, SECOND)
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


def ledger(folder: Path, name: str) -> DeliveryLog:
    """A sink's ledger as its file has it."""
    found = read_delivery_log(folder / f"{name}.json")
    assert found
    return found


def test_one_alert_at_each_turn(begin: Callable[..., AlertDispatcher], tmp_path: Path) -> None:
    """Beginning, worsening and end of an incident are told once each, with one key and the size of the fleet."""
    ear = Ear()
    desk = begin([], ear=ear)
    for at, level in ((20, "warn"), (30, "crit"), (40, "ok")):
        desk.hear([verdict(at, level)], FLEET, at * SECOND)
        ear.wait(len(ear.heard) or 1)
        ear.wait({20: 1, 30: 2, 40: 3}[at])
    assert ear.wait(3) == [("begun", "m3", "warn"), ("changed", "m3", "crit"), ("over", "m3", "ok")]
    assert len({alert.incident for alert in ear.heard}) == 1
    assert {alert.fleet for alert in ear.heard} == {8}
    desk.close()
    assert (ledger(tmp_path, "ear").delivered, ledger(tmp_path, "ear").told) == (3, {})


def test_a_sink_that_fails_or_hangs_harms_no_other(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One sink raises what nobody expects, one never returns: the third hears all; both are counted and said."""
    door = threading.Event()

    def broken(_: Alert) -> None:
        raise RuntimeError("no room on the wall")

    def stuck(_: Alert) -> None:
        door.wait(30)

    well = Ear()
    desk = begin([], broken=Ear(broken), stuck=Ear(stuck), well=well)
    for at in range(20, 25):
        desk.hear([verdict(at, "crit", f"m{at - 20}")], FLEET, at * SECOND)
    assert len(well.wait(5)) == 5
    desk.hear([], FLEET, 26 * SECOND)
    desk.hear([], FLEET, 27 * SECOND + HANG_NS)
    door.set()
    desk.close()
    assert ledger(tmp_path, "stuck").hung == 1
    assert ledger(tmp_path, "broken").failed > 0
    assert "no room on the wall" in ledger(tmp_path, "broken").error
    assert "sink stuck has hung for" in caplog.text
    assert sum("sink broken fails" in record.getMessage() for record in caplog.records) == 1


def test_a_heartbeat_that_hangs_is_noticed_and_much_work_is_no_hanging(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A sink hangs when one call does not return, be it a heartbeat; not when it always has something to do."""
    door, ear, stuck = threading.Event(), Ear(), Ear()
    stuck.beat_s = 10.0
    stuck.beat = lambda _: door.wait(30) and None  # type: ignore[assignment,method-assign]
    desk = begin([], ear=ear, stuck=stuck)
    for n in range(1, 6):
        desk.hear([verdict(20 + n, "crit", f"m{n}")], FLEET, 20 * SECOND + n * HANG_NS)
        ear.wait(n)
    door.set()
    desk.close()
    assert (ledger(tmp_path, "ear").hung, ledger(tmp_path, "stuck").hung) == (0, 1)
    assert "over the machines that are well" in caplog.text


def test_what_fails_is_tried_again_and_folded(begin: Callable[..., AlertDispatcher], tmp_path: Path) -> None:
    """While a sink cannot pass anything on, only the newest word on each incident waits for it."""
    shut, tried = threading.Event(), threading.Event()
    shut.set()

    def trouble(_: Alert) -> None:
        if shut.is_set():
            tried.set()
            raise RetryLaterError("the line is busy")

    ear = Ear(trouble)
    desk = begin([], ear=ear)
    for at, level in ((20, "warn"), (30, "crit"), (40, "ok")):
        desk.hear([verdict(at, level)], FLEET, at * SECOND)
    desk.hear([verdict(50, "crit", "m5")], FLEET, 50 * SECOND)
    assert tried.wait(30)
    shut.clear()
    assert sorted(ear.wait(2)) == [("begun", "m5", "crit"), ("over", "m3", "ok")]
    desk.close()
    found = ledger(tmp_path, "ear")
    assert (found.delivered, found.failed > 0, list(found.told.values())) == (2, True, [("crit", 50 * SECOND)])


def test_a_refusal_is_final(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a sink will never pass on is said and counted, and not tried again; the next alert is."""

    def trouble(alert: Alert) -> None:
        if alert.verdict.machine == "m3":
            raise RefusedError("too many machines are out")

    ear = Ear(trouble)
    desk = begin([], ear=ear)
    desk.hear([verdict(20, "crit"), verdict(21, "crit", "m6")], FLEET, 21 * SECOND)
    assert ear.wait(1) == [("begun", "m6", "crit")]
    desk.close()
    assert (ledger(tmp_path, "ear").refused, ledger(tmp_path, "ear").failed) == (1, 0)
    assert "does not pass on the alert about m3: too many machines are out" in caplog.text


def test_a_new_detector_repeats_nothing(begin: Callable[..., AlertDispatcher]) -> None:
    """One that starts anew says only what the last one did not get told: news, and ends."""
    said = [verdict(20, "crit"), verdict(21, "warn", "m4"), verdict(22, "crit", "m5")]
    first = Ear()
    desk = begin([], ear=first)
    desk.hear(said, FLEET, 22 * SECOND)
    first.wait(3)
    desk.close()
    later = [verdict(30, "ok", "m4"), verdict(31, "crit", "m6")]  # written to the store, then killed
    second = Ear()
    desk = begin([*said, *later], ear=second)
    assert sorted(second.wait(2)) == [("begun", "m6", "crit"), ("over", "m4", "ok")]
    desk.close()
    third = Ear()
    desk = begin([*said, *later], ear=third)
    desk.hear([verdict(40, "ok", "m5")], FLEET, 40 * SECOND)
    assert third.wait(1) == [("over", "m5", "ok")]
    assert third.heard[0].incident == next(alert.incident for alert in first.heard if alert.verdict.machine == "m5")


def test_a_new_sink_is_not_told_of_old_incidents(begin: Callable[..., AlertDispatcher]) -> None:
    """Without a ledger nobody knows what was told: then rather not twice; how it ends is told."""
    ear = Ear()
    desk = begin([verdict(20, "crit")], ear=ear)
    desk.hear([verdict(40, "ok"), verdict(41, "warn", "m7")], FLEET, 41 * SECOND)
    assert ear.wait(2) == [("over", "m3", "ok"), ("begun", "m7", "warn")]


def test_mild_incidents_can_be_left_out(begin: Callable[..., AlertDispatcher]) -> None:
    """A sink for the worst alone hears of an incident when it becomes critical, and then of its end."""
    ear = Ear()
    ear.least = "crit"
    desk = begin([], ear=ear)
    desk.hear([verdict(20, "warn"), verdict(21, "warn", "m4"), verdict(22, "ok", "m4")], FLEET, 22 * SECOND)
    desk.hear([verdict(30, "crit")], FLEET, 30 * SECOND)
    ear.wait(1)
    desk.hear([verdict(40, "ok")], FLEET, 40 * SECOND)
    assert ear.wait(2) == [("changed", "m3", "crit"), ("over", "m3", "ok")]


def test_what_lasts_is_repeated_slowly_and_who_is_well_told(begin: Callable[..., AlertDispatcher]) -> None:
    """Where a sink asks for it: an open incident again after its period, and each period the machines without one."""
    ear = Ear()
    ear.repeat_s, ear.beat_s = 60.0, 10.0
    desk = begin([], ear=ear)
    desk.hear([verdict(20, "crit")], FLEET, 20 * SECOND)
    ear.wait(1)
    for at in (30, 79):
        desk.hear([], FLEET, at * SECOND)
    with ear.came:
        assert ear.came.wait_for(lambda: len(ear.beats) >= 2, 30)
    assert len(ear.heard) == 1
    desk.hear([], FLEET, 81 * SECOND)
    assert ear.wait(2)[1] == ("repeat", "m3", "crit")
    assert set(ear.beats[-1]) == FLEET - {"m3"}


def test_what_waits_is_bounded(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more incidents than can wait the oldest are dropped, and counted."""
    monkeypatch.setattr(module, "MOST_WAITING", 20)
    door = threading.Event()
    ear = Ear(lambda _: door.wait(30) and None)
    desk = begin([], ear=ear)
    count, most = 31, 20
    desk.hear([verdict(20 + n, "crit", f"x{n}") for n in range(count)], FLEET, 2000 * SECOND)
    door.set()
    ear.wait(most)
    desk.close()
    found = ledger(tmp_path, "ear")
    assert ear.heard[-1].verdict.machine == f"x{count - 1}"
    assert (found.dropped + found.delivered, found.dropped in (count - most - 1, count - most)) == (count, True)


def test_a_ledger_that_cannot_be_kept_stops_nothing(
    begin: Callable[..., AlertDispatcher], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Alerts go out all the same, and the log says once that they may come twice."""
    os.mkdir(tmp_path / "ear.json")
    ear = Ear()
    with caplog.at_level(logging.WARNING):
        desk = begin([], ear=ear)
        desk.hear([verdict(20, "crit"), verdict(21, "warn", "m4")], FLEET, 21 * SECOND)
        assert len(ear.wait(2)) == 2
        desk.close()
    assert sum("alerts may come twice" in record.getMessage() for record in caplog.records) == 1


def test_what_is_acknowledged_is_not_repeated(begin: Callable[..., AlertDispatcher]) -> None:
    """Of two incidents that last, the one that somebody has acknowledged is not told again; how it ends is told."""
    ear = Ear()
    ear.repeat_s = 60.0
    desk = begin([], ear=ear)
    desk.hear([verdict(20, "crit"), verdict(21, "crit", "m5")], FLEET, 21 * SECOND)
    ear.wait(2)
    desk.quiet = lambda said: said.machine == "m3"
    desk.hear([], FLEET, 200 * SECOND)
    assert ear.wait(3)[2] == ("repeat", "m5", "crit")
    desk.hear([verdict(210, "ok")], FLEET, 210 * SECOND)
    assert ear.wait(4)[3] == ("over", "m3", "ok")
    desk.close()
