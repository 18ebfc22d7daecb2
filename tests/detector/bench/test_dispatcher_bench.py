"""What alerts cost the detector, and how fast they get out; figures are printed, not judged."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from detector.alerts.alert import IncidentTracker
from detector.alerts.dispatcher import AlertDispatcher
from detector.alerts.sinks.webhook import Webhook, WebhookConfig
from detector.model.verdict import Verdict
from store.influx.check_statuses import Status, line_of, open_statuses
from store.influx.config import InfluxConfig
from store.schema.time import SECOND
from tests import servers
from tests.wires import Scripted

pytestmark = pytest.mark.bench
NOW = 1_780_000_000 * SECOND
FLEET = frozenset(f"machine-{n:06}" for n in range(10_000))


def verdict(number: int) -> Verdict:
    """A verdict on one of many machines."""
    machine = f"machine-{number:06}"
    text = f"{machine} gpu:3: multiprocessor clock 1.31 GHz (median of 7 peers: 1.98 GHz)"
    return Verdict(NOW, "t9", machine, "gpu:3", "peer", "gpu.sm_clock_hertz", 4.25, NOW - 9, "crit", text)


def test_alerts_step(tmp_path: Path) -> None:
    """The bench times a step without news and one with 100 verdicts while the webhook's server is gone."""
    hook = Webhook(WebhookConfig(url="http://127.0.0.1:1/hush"), time.time_ns)
    dispatcher = AlertDispatcher({"webhook": hook}, tmp_path)
    dispatcher.begin([])
    dispatcher.publish([], FLEET, NOW)
    begun = time.perf_counter()
    for at in range(100):
        dispatcher.publish([], FLEET, NOW + at * SECOND)
    idle = (time.perf_counter() - begun) / 100
    begun = time.perf_counter()
    dispatcher.publish([verdict(n) for n in range(100)], FLEET, NOW + 101 * SECOND)
    busy = time.perf_counter() - begun
    dispatcher.close()
    print(f"\nalerts, step of the detector: {idle * 1e3:.2f} ms for 10,000 machines; 100 verdicts {busy * 1e3:.1f} ms")


def test_alerts_delivery(tmp_path: Path) -> None:
    """A hundred alerts go from verdict to a real HTTP server on this machine, delivery log included."""
    server = Scripted()
    dispatcher = AlertDispatcher({"webhook": Webhook(WebhookConfig(url=f"{server.url}/x"), time.time_ns)}, tmp_path)
    dispatcher.begin([])
    begun = time.perf_counter()
    dispatcher.publish([verdict(n) for n in range(100)], FLEET, NOW)
    while len(server.received) < 100:
        time.sleep(0.001)
    took = time.perf_counter() - begun
    dispatcher.close()
    server.close()
    assert len({json.loads(body)["incident"] for body in server.received}) == 100
    print(f"\nalerts, webhook: {took * 10:.1f} ms an alert")


def test_alerts_statuses(tmp_path: Path) -> None:
    """The bench times the heartbeat of 10,000 machines into a real InfluxDB 1."""
    server = servers.influxd(tmp_path)
    server.start()
    try:
        statuses = open_statuses(f"{server.url}/alerts", InfluxConfig(keep_days=36500))
        rows = [Status(machine, "ok", f"{machine} is well", NOW, 0.0, {"event": "well"}) for machine in FLEET]
        statuses.write(rows[:1], NOW)
        begun = time.perf_counter()
        lines = [line_of(row, NOW) for row in rows]
        encoded = time.perf_counter() - begun
        begun = time.perf_counter()
        statuses.write(rows, NOW)
        wrote = time.perf_counter() - begun
    finally:
        server.kill()
    rate = len(lines) / encoded
    print(f"\nalerts, influxdb: heartbeat of 10,000 machines {wrote:.2f} s, {rate:,.0f} rows encoded a second")


def test_alerts_history() -> None:
    """The bench times the restart of a dispatcher with 10,000 verdicts of the past."""
    said = [verdict(n) for n in range(10_000)]
    begun = time.perf_counter()
    IncidentTracker().restore(said)
    print(f"\nalerts, history: 10,000 verdicts in {time.perf_counter() - begun:.2f} s")
