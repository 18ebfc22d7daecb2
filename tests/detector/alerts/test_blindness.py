"""Blindness: a detector without readings says so once, and says when readings come again."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detector.alerts.dispatcher import AlertDispatcher
from detector.alerts.sinks.command import Command, CommandConfig
from detector.alerts.sinks.heartbeat import Heartbeat, HeartbeatConfig
from store.schema.contract import StoreError
from store.schema.time import SECOND
from tests.detector.alerts.test_dispatcher import FLEET, Ear, verdict
from tests.wires import Scripted

Open = Callable[..., AlertDispatcher]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Open]:
    """A function that starts a dispatcher without history over these sinks."""
    dispatchers: list[AlertDispatcher] = []

    def make(**sinks: Ear) -> AlertDispatcher:
        dispatchers.append(AlertDispatcher(sinks, tmp_path))
        dispatchers[-1].begin([])
        return dispatchers[-1]

    yield make
    for dispatcher in dispatchers:
        dispatcher.close()


def test_a_silent_fleet_is_an_alert_and_so_is_its_return(begin: Open) -> None:
    """A silent fleet gives one alert after a minute, with a key of its own, and one when readings are back."""
    ear = Ear()
    dispatcher = begin(ear=ear)
    for at in (100, 159, 160, 161, 230):
        silent = dict.fromkeys(FLEET, 100 * SECOND) if at > 100 else {}
        dispatcher.publish([], FLEET, at * SECOND, silent)
    ear.wait(1)
    dispatcher.publish([], FLEET, 291 * SECOND, {})
    assert ear.wait(2) == [("begun", "peerwatch", "crit"), ("over", "peerwatch", "ok")]
    first, last = ear.heard
    assert first.headline == "Peerwatch is blind: no readings of 8 machines for 60 s"
    assert last.headline.startswith(
        "Peerwatch receives readings again since 00:04:51 UTC: 8 machines are read, after 3 min"
    )
    assert first.incident == last.incident
    assert (first.start, first.verdict.time, last.end) == (100 * SECOND, 160 * SECOND, 291 * SECOND)


def test_a_store_that_is_gone_is_an_alert_and_two_log_lines(begin: Open, caplog: pytest.LogCaptureFixture) -> None:
    """The log says once that the store cannot be used and once that it can; people hear it after a minute."""
    ear = Ear()
    dispatcher = begin(ear=ear)
    with caplog.at_level(logging.INFO):
        dispatcher.publish([], FLEET, 100 * SECOND)
        for at in range(101, 171):
            dispatcher.fail(StoreError("the server cannot be reached"), FLEET, at * SECOND)
        ear.wait(1)
        dispatcher.publish([], FLEET, 171 * SECOND)
    words = [record.getMessage() for record in caplog.records if "store" in record.getMessage()]
    assert words == [
        "the store cannot be used, trying again: the server cannot be reached",
        "the store can be used again, after 71 s",
    ]
    assert ear.wait(2) == [("begun", "peerwatch", "crit"), ("over", "peerwatch", "ok")]
    blind = "Peerwatch is blind: the store cannot be used for 60 s (the server cannot be reached): "
    assert ear.heard[0].headline == f"{blind}8 machines are not judged"


def test_a_detector_that_has_just_begun_waits_for_the_agents(begin: Open) -> None:
    """A detector that starts after an outage waits a minute for new readings before it says that it is blind."""
    ear = Ear()
    dispatcher = begin(ear=ear)
    for at in (1000, 1059):
        dispatcher.publish([], FLEET, at * SECOND, dict.fromkeys(FLEET, 100 * SECOND))
    assert dispatcher.incidents.open == {}
    dispatcher.publish([], FLEET, 1060 * SECOND, dict.fromkeys(FLEET, 100 * SECOND))
    assert ear.wait(1) == [("begun", "peerwatch", "crit")]
    assert ear.heard[0].headline == "Peerwatch is blind: no readings of 8 machines for 16 min"


def test_some_silent_machines_are_a_warning_that_names_them(begin: Open) -> None:
    """Silence of less than half of the fleet is a warning; of more it is critical and the same incident."""
    ear = Ear()
    dispatcher = begin(ear=ear)
    dispatcher.publish([], FLEET, 100 * SECOND, {})
    dispatcher.publish([], FLEET, 170 * SECOND, dict.fromkeys(("m4", "m2", "m7"), 100 * SECOND))
    ear.wait(1)
    dispatcher.publish([], FLEET, 171 * SECOND, dict.fromkeys(("m4", "m2", "m7", "m1"), 100 * SECOND))
    assert ear.wait(2) == [("begun", "peerwatch", "warn"), ("changed", "peerwatch", "crit")]
    assert ear.heard[0].headline == "Peerwatch is blind: no readings of 3 of 8 machines (m2, m4, m7) for 70 s"
    assert ear.heard[0].incident == ear.heard[1].incident


def test_open_incidents_say_that_they_are_as_last_seen(begin: Open) -> None:
    """A repeated alert says since when nothing is read, blindness names open incidents, no machine is called well."""
    ear = Ear()
    ear.repeat_s, ear.heartbeat_s = 30.0, 1.0
    dispatcher = begin(ear=ear)
    dispatcher.publish([verdict(100, "crit")], FLEET, 100 * SECOND)
    ear.wait(1)
    dispatcher.publish([], FLEET, 102 * SECOND)
    with ear.came:
        assert ear.came.wait_for(lambda: len(ear.heartbeats) == 2, 30)
    for at in range(103, 163):
        dispatcher.fail(StoreError("gone"), FLEET, at * SECOND)
    ear.wait(3)
    dispatcher.close()
    repeated = next(alert for alert in ear.heard if alert.event == "repeat")
    assert repeated.headline == "m3 is crit (last seen at 00:01:42 UTC; no readings since)"
    assert repeated.as_json()["unread_since"] == 102 * SECOND
    blind = next(alert for alert in ear.heard if alert.verdict.machine == "peerwatch")
    assert blind.brief.notes == ("open incidents keep their last state: m3",)
    assert len(ear.heartbeats) == 2


def test_a_detector_that_restarts_while_blind_says_it_once_and_ends_it(begin: Open) -> None:
    """The next detector knows the open incident and sends each sink only its end."""
    first, second = Ear(), Ear()
    dispatcher = begin(ear=first)
    dispatcher.publish([], FLEET, 100 * SECOND)
    dispatcher.fail(StoreError("gone"), FLEET, 161 * SECOND)
    first.wait(1)
    dispatcher.close()
    dispatcher = begin(ear=second)
    dispatcher.fail(StoreError("gone"), FLEET, 180 * SECOND)
    dispatcher.fail(StoreError("gone"), FLEET, 250 * SECOND)
    dispatcher.publish([], FLEET, 251 * SECOND)
    assert second.wait(1) == [("over", "peerwatch", "ok")]
    assert second.heard[0].incident == first.heard[0].incident


def test_no_machine_is_taken_out_because_nothing_is_read(tmp_path: Path) -> None:
    """The program is not run for Peerwatch's own incident, at no level."""
    ear = Ear()
    dispatcher = AlertDispatcher({"ear": ear}, tmp_path)
    dispatcher.begin([])
    dispatcher.publish([], FLEET, 100 * SECOND)
    dispatcher.fail(StoreError("gone"), FLEET, 161 * SECOND)
    ear.wait(1)
    dispatcher.close()
    config = CommandConfig(("/bin/touch", str(tmp_path / "ran")), dry_run=False, levels=("crit", "ok"), most_share=1.0)
    assert Command(config, tmp_path / "runs.json", lambda: 170 * SECOND).send(ear.heard[0]) == "nothing to run"
    assert not (tmp_path / "ran").exists()


def test_the_heartbeat_beats_while_machines_are_judged_and_stops_when_they_are_not(tmp_path: Path) -> None:
    """The heartbeat requests an address and writes a file each minute, but not while the detector sees nothing."""
    server = Scripted()
    sink = Heartbeat(HeartbeatConfig(url=f"{server.url}/ping/5eed"), tmp_path / "heartbeat")
    dispatcher = AlertDispatcher({"heartbeat": sink}, tmp_path)
    dispatcher.begin([])

    def asked(count: int) -> bool:
        deadline = time.monotonic() + 30
        while len(server.asked) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return [path for path, _ in server.asked] == ["/ping/5eed"] * count

    dispatcher.publish([], FLEET, 100 * SECOND)
    assert asked(1)
    dispatcher.publish([verdict(130, "crit")], FLEET, 130 * SECOND)
    dispatcher.publish([], FLEET, 161 * SECOND)
    assert asked(2)
    assert (tmp_path / "heartbeat").read_text() == "7 machines are healthy\n"
    (tmp_path / "heartbeat").unlink()
    for at in range(230, 500, 10):
        dispatcher.publish([], FLEET, at * SECOND, dict.fromkeys(FLEET, 161 * SECOND))
    dispatcher.fail(StoreError("gone"), FLEET, 600 * SECOND)
    dispatcher.close()
    server.close()
    assert asked(2)
    assert not (tmp_path / "heartbeat").exists()
    delivery_log = json.loads((tmp_path / "heartbeat.json").read_bytes())
    assert (delivery_log["delivered"], delivery_log["failed"]) == (0, 0)


def test_a_heartbeat_that_is_not_taken_is_counted_without_its_address(tmp_path: Path) -> None:
    """The address may be a secret: the error has the server's name alone; without one the file is all there is."""
    server = Scripted()
    server.close()
    with pytest.raises(OSError, match=r"^127\.0\.0\.1 cannot be reached: .*refused") as caught:
        Heartbeat(HeartbeatConfig(url=f"{server.url}/ping/5eed"), tmp_path / "beat").heartbeat(FLEET)
    assert "5eed" not in str(caught.value)
    Heartbeat(HeartbeatConfig(), tmp_path / "alone").heartbeat(FLEET)
    assert (tmp_path / "alone").read_text() == "8 machines are healthy\n"
    with pytest.raises(ValueError, match=r"the address in alerts\.heartbeat is not valid"):
        HeartbeatConfig(url="file:///etc/passwd")
