"""What every sink must do: deliver, fail so that it is retried, refuse, take a test without effect, escape names."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detector.alerts import delivery
from detector.alerts.alert import Alert, IncidentTracker, RefusedError, Sink, sample
from detector.alerts.delivery_log import read_delivery_log
from detector.alerts.dispatcher import AlertDispatcher
from detector.alerts.registry import SINKS, AlertsConfig, SinkContext
from detector.model.verdict import Verdict
from store.influx.check_statuses import open_statuses
from store.influx.config import InfluxConfig
from store.schema.time import SECOND
from tests.wires import Reply, Scripted

NOW = 1_780_000_000 * SECOND
FLEET = frozenset(f"m{number}" for number in range(7))
RUDE = "m3 differs\nfrom <!channel> \x1b[31m its $(reboot) peers"
REFUSALS: dict[str, Reply] = {"webhook": (422, "no", {})}
"""Sinks that a server can refuse for good, and its answer."""
SERVED = ("influxdb", "webhook")
"""Sinks that deliver alerts to a server."""


@pytest.fixture
def servers() -> Iterator[Callable[[Reply], Scripted]]:
    """A function that starts an HTTP server with one answer to everything."""
    running: list[Scripted] = []

    def start(reply: Reply) -> Scripted:
        running.append(Scripted(lambda _: reply))
        return running[-1]

    yield start
    for server in running:
        server.close()


def opened(name: str, server: Scripted, folder: Path) -> Sink:
    """The sink of this name with settings that open it; a new sink needs a line here only if it needs settings."""
    store = f"{server.url}/fleet"
    settings: dict[str, Any] = {
        "influxdb": {"store": store},
        "webhook": {"url": f"{server.url}/hook"},
        "command": {"run": [sys.executable, "-c", "", "{machine}"], "dry_run": False, "most_share": 1.0},
        "heartbeat": {"url": f"{server.url}/ping"},
    }
    config = msgspec.convert({name: settings[name]} if name in settings else {}, AlertsConfig)
    context = SinkContext(lambda: NOW, folder, lambda place: open_statuses(place, InfluxConfig()))
    return SINKS[name](config, context)


def alert(machine: str = "m3", message: str = RUDE) -> Alert:
    """A critical alert of a new incident."""
    found = IncidentTracker().record(
        Verdict(NOW, "t9", machine, "gpu:1", "peer", "a.b", 2.25, NOW - 7 * SECOND, "crit", message)
    )
    assert found is not None
    return replace(found, fleet=7)


@pytest.mark.parametrize("name", SINKS)
def test_it_delivers_and_says_so(name: str, servers: Callable[[Reply], Scripted], tmp_path: Path) -> None:
    """An alert is delivered, and the result is a line of text; a name from outside stays within its field."""
    server = servers((204, "", {}))
    result = opened(name, server, tmp_path).send(alert())
    assert result
    assert "\n" not in result
    if name in SERVED:
        assert len(server.received) == 1


@pytest.mark.parametrize("name", SINKS)
def test_a_test_alert_has_no_effect(name: str, servers: Callable[[Reply], Scripted], tmp_path: Path) -> None:
    """The test alert names itself and ends at once; no program runs."""
    result = opened(name, servers((204, "", {})), tmp_path).test(sample(NOW, 7))
    assert "failed" not in result
    assert not (tmp_path / "command-runs.json").exists()


@pytest.mark.parametrize("name", SERVED)
def test_a_failure_is_an_error_that_is_retried(name: str, servers: Callable[[Reply], Scripted], tmp_path: Path) -> None:
    """A server that is out of order gives an OSError that is no refusal."""
    with pytest.raises(OSError, match=r"50[03]") as error:
        opened(name, servers((503, "later", {})), tmp_path).send(alert())
    assert not isinstance(error.value, RefusedError)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_final(name: str, servers: Callable[[Reply], Scripted], tmp_path: Path) -> None:
    """An answer that refuses the alert for good is RefusedError."""
    with pytest.raises(RefusedError):
        opened(name, servers(REFUSALS[name]), tmp_path).send(alert())


@pytest.mark.parametrize("name", SERVED)
def test_names_are_escaped(name: str, servers: Callable[[Reply], Scripted], tmp_path: Path) -> None:
    """A sink sends one JSON object or one line, whatever a message contains."""
    server = servers((204, "", {}))
    opened(name, server, tmp_path).send(alert())
    body = server.received[0]
    if name == "webhook":
        assert json.loads(body)["message"] == RUDE
    else:
        assert len([line for line in body.splitlines() if b"statuses" in line]) == 1


@pytest.mark.parametrize("name", SINKS)
def test_a_call_that_hangs_delays_no_other_sink(
    name: str, servers: Callable[[Reply], Scripted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sink gets its alert while this one hangs, and the hang is counted."""
    monkeypatch.setattr(delivery, "FAREWELL_S", 0.2)
    release, arrived, entered = threading.Event(), threading.Event(), threading.Event()

    def hang(_: Alert) -> str:
        entered.set()
        return str(release.wait(30))

    stuck = opened(name, servers((204, "", {})), tmp_path)
    monkeypatch.setattr(stuck, "takes_alerts", True, raising=False)
    monkeypatch.setattr(stuck, "send", hang)
    other = opened("log", servers((204, "", {})), tmp_path)
    monkeypatch.setattr(other, "send", lambda _: str(arrived.set()))
    dispatcher = AlertDispatcher({"stuck": stuck, "other": other}, tmp_path / "state")
    dispatcher.begin([])
    dispatcher.publish([alert().verdict], FLEET, NOW)
    assert arrived.wait(30)
    assert entered.wait(30)
    for seconds in (1, 2 + delivery.HANG_NS // SECOND):
        dispatcher.publish([], FLEET, NOW + seconds * SECOND)
    release.set()
    dispatcher.close()
    log = read_delivery_log(tmp_path / "state" / "stuck.json")
    assert log is not None
    assert log.hung == 1
