"""`peerwatch alerts`: whether a test alert gets through, and what became of the real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.config import Settings, signing_key
from cli.main import app
from detector.alerts.delivery_log import read_delivery_log
from store.schema.contract import Store
from store.signed import Signed
from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, SECOND, host, run, verdict
from tests.wires import Scripted

SECRET = "/services/T0/hush-4711"  # noqa: S105 - made up


@pytest.fixture
def server() -> Iterator[Scripted]:
    """A real HTTP server that takes all."""
    found = Scripted()
    yield found
    found.close()


@pytest.fixture
def config(tmp_path: Path, server: Scripted) -> Path:
    """A configuration with three sinks."""
    file = tmp_path / "peerwatch.toml"
    file.write_text(f"""
store = "{tmp_path / "s.db"}"
[alerts]
sinks = ["log", "webhook", "command"]
[alerts.webhook]
url = "{server.url}{SECRET}"
[alerts.command]
run = ["/bin/touch", "{tmp_path / "touched"}", "{{machine}}"]
dry_run = false
""")
    return file


def test_a_test_alert_goes_through_each_sink(place: Path, config: Path, server: Scripted, tmp_path: Path) -> None:
    """Each sink says what happened; the program is not run, and the server gets something harmless."""
    done = run("alerts", "test", "--config", config)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done.stderr
    assert "log: written to the log" in done.stdout
    assert "webhook: 127.0.0.1 answered 204" in done.stdout
    assert "command: not run, being a test: ['/bin/touch'" in done.stdout
    assert not (tmp_path / "touched").exists()
    posted = json.loads(server.received[0])
    assert (posted["event"], posted["level"], posted["fleet"]) == ("test", "ok", 3)


def test_a_sink_that_fails_is_said(place: Path, config: Path, server: Scripted) -> None:
    """A sink that fails gives exit code 1 and the reason without the address, even if it is switched off."""
    server.reply = lambda _: (403, "who are you", {})
    done = run("alerts", "test", "webhook", "--config", config)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("webhook: failed: 127.0.0.1 answers 403: who are you")
    assert "hush" not in done.stderr
    done = run("alerts", "test", "influxdb", "--config", config)
    assert (done.returncode, "alerts.influxdb.store must name" in done.stderr) == (1, True)
    done = run("alerts", "test", "pigeon", "--config", config)
    assert "there is no sink 'pigeon': known are log, influxdb, webhook, command" in done.stderr


@pytest.fixture
def detector(config: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """A function that starts a detector; what still runs is killed."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cli.main", "detector", "--config", str(config)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_a_killed_detector_repeats_nothing_and_forgets_nothing(
    place: Path, config: Path, server: Scripted, detector: Callable[[], subprocess.Popen[str]]
) -> None:
    """A new detector sends the alerts of the pause, repeats none, and `alerts show` counts them."""
    now = time.time_ns()
    store = Signed(Embedded(place), signing_key(str(place), Settings(), True))
    store.write([verdict("m01", now - 90 * SECOND, "crit")])
    wait_for(detector(), store, lambda: (place.parent / "s.alerts" / "webhook.json").exists()).kill()
    assert server.received == []  # the delivery log does not say whether it was sent
    store.write([verdict("m02", now - 80 * SECOND, "crit"), verdict("m01", now - 70 * SECOND, "ok")])
    wait_for(detector(), store, lambda: delivered(place) >= 2).kill()
    said = [(row["event"], row["machine"], row["level"]) for row in map(json.loads, server.received)]
    assert sorted(said) == [("begun", "m02", "crit"), ("over", "m01", "ok")]
    store.write([verdict("m03", now - 60 * SECOND, "warn")])
    third = wait_for(detector(), store, lambda: delivered(place) >= 3)
    third.send_signal(signal.SIGTERM)
    assert "hush" not in third.communicate()[1]
    assert [json.loads(one)["machine"] for one in server.received[2:]] == ["m03"]
    shown = CliRunner().invoke(app, ["alerts", "show", "--config", str(config)]).output
    assert "webhook: 3 delivered, 0 failed, 0 refused, 0 dropped, 0 hung, 2 open" in shown
    found = json.loads(CliRunner().invoke(app, ["alerts", "show", "--json", "--config", str(config)]).output)
    assert (found["webhook"]["delivered"], [level for level, _ in found["webhook"]["told"].values()]) == (
        3,
        ["crit", "warn"],
    )
    store.close()


def test_a_sink_that_cannot_be_opened_stops_nothing(
    place: Path, config: Path, server: Scripted, detector: Callable[[], subprocess.Popen[str]]
) -> None:
    """The detector says so and goes on; once it is mended, the next detector tells what has waited."""
    plain = config.read_text()
    config.write_text(plain.replace("[alerts.webhook]", f'[alerts.webhook]\nurl_file = "{config.parent / "url"}"'))
    store = Signed(Embedded(place), signing_key(str(place), Settings(), True))
    process = wait_for(detector(), store, lambda: (place.parent / "s.alerts" / "webhook.json").exists())
    process.kill()
    assert (
        "sink webhook cannot be opened; correct it and restart the detector: alerts.webhook.url_file"
        in process.communicate()[1]
    )
    config.write_text(plain)
    store.write([verdict("m02", time.time_ns() - 9 * SECOND, "crit")])
    wait_for(detector(), store, lambda: len(server.received) >= 1)
    assert json.loads(server.received[0])["machine"] == "m02"
    store.close()


def delivered(place: Path) -> int:
    """What the webhook has passed on."""
    log = read_delivery_log(place.parent / "s.alerts" / "webhook.json")
    return log.delivered if log else 0


def wait_for(process: subprocess.Popen[str], store: Store, done: Callable[[], bool]) -> subprocess.Popen[str]:
    """The process, once that is so, while machines go on being read."""
    deadline = time.monotonic() + 60
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        at = time.time_ns()
        store.write([host(name, at, 0.25) for name in ("m01", "m02", "m03")])
        time.sleep(0.2)
    return process
