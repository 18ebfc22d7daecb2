"""Prometheus itself reads the agent and the detector, and its own tools accept what is installed for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detector.alerts.alert import Alert, Sink
from detector.alerts.dispatcher import AlertDispatcher
from detector.model.job import Job
from detector.model.verdict import Verdict
from detector.service.metrics import VERDICTS, families_of, outlets
from store.exposition.config import MetricsConfig, OtlpConfig
from store.exposition.family import SHOWN
from store.exposition.openmetrics import render
from store.schema.catalogue import METRICS
from tests import servers

ROOT = Path(__file__).parents[2]
RULES = ROOT / "systemd" / "prometheus" / "peerwatch.rules.yml"
SECOND = 10**9


class Broken(Sink):
    """A sink that never works."""

    def send(self, alert: Alert) -> str:
        """Raises OSError."""
        raise OSError("no server is there")


def verdict(machine: str, time: int, level: Any = "crit", **more: Any) -> Verdict:
    """A verdict on a GPU."""
    return Verdict(
        time, "t1", machine, "gpu:3", "peer", "gpu.sm_clock_hertz", 4.5, time - SECOND, level, "slow", **more
    )


def dispatcher(folder: Path) -> AlertDispatcher:
    """A dispatcher with one sink, which fails, and no incident."""
    made = AlertDispatcher({"pager": Broken()}, folder)
    made.begin([])
    return made


def promtool(*words: str | Path) -> None:
    """Run promtool, which must be content."""
    done = subprocess.run([servers.find("promtool", "prometheus"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def ask(server: servers.ServerProcess, path: str) -> Any:
    """What Prometheus answers."""
    with urllib.request.urlopen(f"{server.url}/api/v1/{path}", timeout=10) as answer:  # noqa: S310 - loopback
        return json.load(answer)["data"]


def until(find: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first answer that is something."""
    limit = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < limit, "not seen in time"
        time.sleep(0.2)
    return found


def ready(server: servers.ServerProcess) -> bool:
    """Whether it has started: until then it answers 503."""
    try:
        with urllib.request.urlopen(f"{server.url}/-/ready", timeout=10):  # noqa: S310 - loopback
            return True
    except OSError:
        return False


def test_rules_are_sound() -> None:
    """Promtool accepts the rules, and they fire as their tests say."""
    promtool("check", "rules", RULES)
    promtool("test", "rules", ROOT / "tests" / "systemd" / "peerwatch.rules.test.yml")


def test_the_example_is_sound(tmp_path: Path) -> None:
    """The scrape example is a whole configuration beside the rules."""
    for file in (RULES, RULES.with_name("scrape.yml")):
        (tmp_path / file.name).write_text(file.read_text())
    promtool("check", "config", tmp_path / "scrape.yml")


def test_rules_name_metrics_that_exist(tmp_path: Path) -> None:
    """Each metric in the rules is one of the detector's, or of the agent's catalogue."""
    made = dispatcher(tmp_path)
    made.publish([verdict("m7", 9 * SECOND)], frozenset(("m7", "m8")), 9 * SECOND)
    made.close()
    known = {f"{family.name}{suffix}" for family in families_of(made) for suffix in ("", "_total", "_info")}
    known |= {f"peerwatch_{metric.key.replace('.', '_')}" for metric in METRICS.values() if metric.table in SHOWN}
    known |= {"peerwatch_last_reading_timestamp_seconds", "peerwatch_events_total"}
    named = set(re.findall(r"peerwatch_\w+", "".join(re.findall(r"expr: .*(?:\n {10}.*)*", RULES.read_text()))))
    assert named
    assert named <= known


def test_verdicts_as_series(tmp_path: Path) -> None:
    """An open verdict is a series with its job until it ends; silence, blindness and sinks stand beside it."""
    made = dispatcher(tmp_path)
    assert "peerwatch_detector_info" in render(families_of(made)).decode()
    job = Job("slurm", "4711", "pretrain", job_user="anna")
    both = [verdict("m7", 9 * SECOND, job=job), verdict("m8", 9 * SECOND, "warn")]
    made.publish(both, frozenset(("m7", "m8", "m9")), 9 * SECOND, {"m9": 2 * SECOND})
    text = render(families_of(made)).decode()
    (active,) = (line for line in text.splitlines() if line.startswith('peerwatch_verdict_active{machine="m7"'))
    for words in ('device="gpu:3"', 'metric="gpu.sm_clock_hertz"', 'level="crit"', 'task="t1"', 'job_user="anna"'):
        assert words in active
    assert 'peerwatch_verdicts_total{level="warn"} 1' in text
    assert 'peerwatch_machine_last_reading_timestamp_seconds{machine="m9"} 2' in text
    assert ("peerwatch_machines 3" in text, "peerwatch_machines_silent 1" in text) == (True, True)
    assert "peerwatch_blind 0" in text
    until(lambda: 'peerwatch_sink_failing{sink="pager"} 1' in render(families_of(made)).decode())
    made.publish([verdict("m7", 10 * SECOND, "ok")], frozenset(("m7", "m8")), 10 * SECOND)
    assert 'peerwatch_verdict_active{machine="m7"' not in render(families_of(made)).decode()
    made.fail(OSError("gone"), frozenset(("m7", "m8")), 11 * SECOND)
    made.fail(OSError("gone"), frozenset(("m7", "m8")), 99 * SECOND)
    text = render(families_of(made)).decode()
    assert ("peerwatch_blind 1" in text, "peerwatch_store_usable 0" in text) == (True, True)
    assert 'machine="peerwatch"' not in text
    made.close()


def test_the_worst_verdicts_come_first(tmp_path: Path) -> None:
    """Of more open verdicts than are exposed the critical ones are there."""
    made = dispatcher(tmp_path)
    many = [verdict(f"m{at}", 9 * SECOND, "crit" if at % 7 == 0 else "warn") for at in range(VERDICTS + 50)]
    made.publish(many, frozenset(one.machine for one in many), 9 * SECOND)
    made.close()
    (active,) = (family for family in families_of(made) if family.name == "peerwatch_verdict_active")
    levels = [dict(labels)["level"] for labels, _, _ in active.points]
    assert (len(levels), levels.count("crit")) == (VERDICTS, len(range(0, VERDICTS + 50, 7)))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[int]:
    """The port of an agent that reads the operating system."""
    port = servers.free_port()
    config = tmp_path / "peerwatch.toml"
    config.write_text(f'[agent]\nmachine = "m07"\nsources = ["host"]\n[metrics]\nlisten = "127.0.0.1:{port}"\n')
    words = ["agent", "--config", str(config), "--store", str(tmp_path / "s.db")]
    process = subprocess.Popen([sys.executable, "-m", "cli.main", *words], cwd=ROOT)
    yield port
    process.terminate()
    process.wait(20)


def test_a_real_prometheus(agent: int, tmp_path: Path) -> None:
    """It reads an agent and a detector without an error, and a critical verdict fires as an alert."""
    made, listen = dispatcher(tmp_path / "alerts"), f"127.0.0.1:{servers.free_port()}"
    out = outlets(made, MetricsConfig(detector_listen=listen), OtlpConfig())
    assert out.endpoint is not None
    now = time.time_ns()
    made.publish([verdict("m7", now)], frozenset(("m7", "m8")), now)
    targets = {"peerwatch-agent": [agent], "peerwatch-detector": [out.endpoint.port]}
    server = servers.prometheus(tmp_path / "prometheus", targets, RULES)
    server.start()

    def reading() -> list[Any]:
        query = urllib.parse.quote('peerwatch_host_cpu_utilization_ratio{machine="m07"}')
        return list(ask(server, f"query?query={query}")["result"])

    until(lambda: ready(server))
    (found,) = until(reading)
    assert 0 <= float(found["value"][1]) <= 1
    assert found["metric"]["job"] == "peerwatch-agent"
    alerts = until(lambda: [one for one in ask(server, "alerts")["alerts"] if one["state"] == "firing"])
    assert {one["labels"]["alertname"] for one in alerts} == {"PeerwatchFaultyMachine"}
    assert alerts[0]["labels"]["machine"] == "m7"
    health = {
        one["labels"]["job"]: (one["health"], one["lastError"]) for one in ask(server, "targets")["activeTargets"]
    }
    assert health == {"peerwatch-agent": ("up", ""), "peerwatch-detector": ("up", "")}
    types = ask(server, "metadata?metric=peerwatch_host_context_switches")
    assert types["peerwatch_host_context_switches"][0]["type"] == "counter"
    server.kill()
    out.close()
    made.close()
