"""Prometheus' Alertmanager itself takes what the webhook posts: one alert an incident, which ends."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detector.alerts.alert import IncidentTracker, sample
from detector.alerts.sinks.webhook import Webhook, WebhookConfig
from detector.model.verdict import Level, Verdict
from store.schema.time import SECOND
from tests import servers


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[servers.ServerProcess]:
    """Debian's Alertmanager, which opens a template by its whole path; skips where it is not here."""
    if os.getuid():
        pytest.skip("only root can mount the template of Alertmanager")
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    port = servers.free_port()
    words = [f"--config.file={config}", f"--storage.path={tmp_path / 'data'}", "--cluster.listen-address="]
    program = servers.find("prometheus-alertmanager", "prometheus-alertmanager")
    mount = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"']
    share = str(Path(program).parents[1] / "share")
    made = servers.ServerProcess([*mount, share, program, *words, f"--web.listen-address=127.0.0.1:{port}"], port)
    made.start()
    yield made
    made.kill()


def shown(server: servers.ServerProcess, holds: Callable[[list[Any]], bool]) -> list[Any]:
    """The alerts of its API, once this is true of them."""
    limit, found = time.monotonic() + 60, list[Any]()
    while time.monotonic() < limit:
        with urllib.request.urlopen(f"{server.url}/api/v2/alerts", timeout=30) as answer:  # noqa: S310 - loopback
            found = json.load(answer)
        if holds(found):
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def test_one_incident_is_one_firing_alert_until_it_ends(alertmanager: servers.ServerProcess) -> None:
    """A warning that gets critical stays one alert with the new severity, and is gone once the incident is over."""
    config = WebhookConfig(url=f"{alertmanager.url}/api/v2/alerts", template="alertmanager")
    webhook, incidents, begun = Webhook(config, time.time_ns), IncidentTracker(), time.time_ns() - 9 * SECOND

    def send(level: Level) -> None:
        verdict = Verdict(
            time.time_ns(), "t9", "m27", "gpu:3", "peer", "gpu.sm_clock_hertz", 2.25, begun, level, "slow"
        )
        alert = incidents.record(verdict)
        assert alert is not None
        assert webhook.send(alert).endswith("answered 200")

    for level, severity in (("warn", "warning"), ("crit", "critical")):
        send(level)  # type: ignore[arg-type]
        (alert,) = shown(alertmanager, lambda found, wanted=severity: severities(found) == [wanted])  # type: ignore[misc]
        assert (alert["labels"]["machine"], alert["status"]["state"]) == ("m27", "active")
    send("ok")
    assert shown(alertmanager, lambda found: not found) == []


def test_the_test_alert_is_seen(alertmanager: servers.ServerProcess) -> None:
    """What `peerwatch alerts test` sends fires in Alertmanager."""
    config = WebhookConfig(url=f"{alertmanager.url}/api/v2/alerts", template="alertmanager")
    Webhook(config, time.time_ns).send(sample(time.time_ns(), 6))
    (alert,) = shown(alertmanager, bool)
    assert (alert["labels"]["machine"], alert["status"]["state"]) == ("peerwatch-test", "active")


def severities(found: list[Any]) -> list[str]:
    """The severity of each alert, be it a label or an annotation."""
    return [{**alert["annotations"], **alert["labels"]}["severity"] for alert in found]
