"""`peerwatch detector --standby`: of two detectors on one store one speaks, whatever happens to the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.open import open_store
from store.schema.contract import Store
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND
from store.signed import Signed, key_of
from tests.cli.conftest import ROOT
from tests.servers import influxd

MACHINES = 9
TAKEOVER_S = 30.0
SLOWLY, QUICKLY = 1.0, 0.35
PROGRAM = """
import sys
from detector.service import lease
for name in ("BEAT_S", "HOLD_S", "SETTLE_S", "TAKEOVER_S"):
    setattr(lease, name, getattr(lease, name) * {pace})
from cli.main import main
main()
"""
"""The command, with the times of its lease multiplied, so that `make test` need not wait for those of `make bench`."""


class Scene:
    """A store that is fed with a healthy fleet, the detectors on it, and what their sinks were sent."""

    def __init__(self, folder: Path, place: str, pace: float) -> None:
        self.folder, self.place, self.pace = folder, place, pace
        self.key = key_of(folder / "signing.key", create=True)
        self.detectors: dict[str, subprocess.Popen[str]] = {}
        self.feeding = threading.Event()
        with closing(open_store(place, create=True)) as store:
            now = time.time_ns()
            store.write([batch for back in range(120, 0, -1) for batch in self.readings(now - back * SECOND)])
        self.feeder = threading.Thread(target=self.feed)
        self.feeder.start()

    def readings(self, at: int) -> list[Batch]:
        """A second of the fleet."""
        clocks = {n: 1.7e9 + 1e6 * ((at // SECOND + n) % 5) for n in range(MACHINES)}
        rows = {n: Sample("gpu", {"gpu": "0", "sm_clock_hertz": clock}) for n, clock in clocks.items()}
        return [Batch(f"m{n}", at, (row,)) for n, row in rows.items()]

    def feed(self) -> None:
        """A reading a second of each machine, until the scene ends."""
        with closing(open_store(self.place)) as store:
            while not self.feeding.wait(1.0):
                store.write(self.readings(time.time_ns()))

    def fault(self, machine: str, code: str) -> None:
        """An Xid of a machine: a verdict at once."""
        values: dict[str, Any] = {"source": "kernel_log", "code": code, "severity": "crit", "message": f"Xid {code}"}
        with closing(open_store(self.place)) as store:
            store.write([Batch(machine, time.time_ns(), (Sample("event", {**values, "device": "gpu:0"}),))])

    def start(self, name: str, *, standby: bool = True) -> subprocess.Popen[str]:
        """A detector with a state folder of its own, as on another host; its command sink writes what it is sent."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        config, out = folder / "p.toml", self.folder / "sent"
        script = f"printf '%s\\n' \"{name} $PEERWATCH_MACHINE $PEERWATCH_LEVEL $PEERWATCH_EVENT\" >> {out}"
        run = json.dumps(["/bin/sh", "-c", script])
        config.write_text(
            f'store = "{self.place}"\nsigning_key_file = "{self.folder}/signing.key"\n'
            f'[detector]\nstandby = {str(standby).lower()}\n[alerts]\nsinks = ["command"]\n'
            f'state_folder = "{folder}/alerts"\n[alerts.command]\nrun = {run}\ndry_run = false\nmost_share = 0.9\n'
            'levels = ["crit", "ok"]\n'
        )
        words = [sys.executable, "-c", PROGRAM.format(pace=self.pace), "detector", "--config", str(config)]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (folder / "log").open("a") as log:
            self.detectors[name] = subprocess.Popen(words, env=env, stderr=log, text=True)
        return self.detectors[name]

    def sent(self) -> list[list[str]]:
        """Detector, machine, level and event of each alert sent."""
        file = self.folder / "sent"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def log(self, name: str) -> str:
        """What a detector has logged."""
        file = self.folder / name / "log"
        return file.read_text() if file.exists() else ""

    def until(self, true: Callable[[], bool], seconds: float = 60.0) -> float:
        """Wait for something; how long it took."""
        begun = time.monotonic()
        while not true():
            assert time.monotonic() - begun < seconds, (self.sent(), {one: self.log(one) for one in self.detectors})
            time.sleep(0.1)
        return time.monotonic() - begun

    def end(self) -> None:
        """Stop all."""
        self.feeding.set()
        for detector in self.detectors.values():
            detector.send_signal(signal.SIGCONT)
            detector.terminate()
        for detector in self.detectors.values():
            detector.wait(30)
        self.feeder.join()


@pytest.fixture(
    params=[
        ("sqlite", QUICKLY),
        ("influxdb", QUICKLY),
        pytest.param(("sqlite", SLOWLY), marks=pytest.mark.bench),
        pytest.param(("influxdb", SLOWLY), marks=pytest.mark.bench),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A scene on an embedded store, and on a real InfluxDB."""
    kind, pace = request.param
    server = influxd(tmp_path) if kind == "influxdb" else None
    place = str(tmp_path / "s.db")
    if server:
        server.start()
        place = f"{server.url}/peerwatch"
    found = Scene(tmp_path, place, pace)
    try:
        yield found
    finally:
        found.end()
        if server:
            server.kill()


def test_one_of_two_speaks_and_the_other_takes_over(scene: Scene) -> None:
    """Two start at once: one speaks. Killed, then paused: the other speaks within 30 s, and nothing is sent twice."""
    for name in ("a", "b"):
        scene.start(name)
    scene.until(lambda: any("this detector speaks" in scene.log(name) for name in scene.detectors))
    scene.fault("m3", "79")
    scene.until(lambda: len(scene.sent()) > 0)
    first = scene.sent()[0][0]
    second = "b" if first == "a" else "a"
    assert scene.sent() == [[first, "m3", "crit", "begun"]]
    scene.until(lambda: "standing by" in scene.log(second))
    scene.detectors[first].kill()
    scene.detectors[first].wait()
    killed = time.monotonic()
    scene.fault("m5", "79")
    scene.until(lambda: len(scene.sent()) > 1)
    assert time.monotonic() - killed < TAKEOVER_S
    assert scene.sent()[1:] == [[second, "m5", "crit", "begun"]]
    scene.start(first)
    scene.until(lambda: scene.log(first).count("standing by") == 1)
    paused = scene.detectors[second]
    paused.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    scene.fault("m7", "79")
    scene.until(lambda: len(scene.sent()) > 2)
    assert time.monotonic() - stopped < TAKEOVER_S
    paused.send_signal(signal.SIGCONT)
    scene.until(lambda: "another detector speaks now" in scene.log(second))
    scene.fault("m1", "79")
    scene.until(lambda: len(scene.sent()) > 3)
    time.sleep(3)
    assert scene.sent()[2:] == [[first, "m7", "crit", "begun"], [first, "m1", "crit", "begun"]]
    with closing(open_store(scene.place)) as plain:
        kept: Store = Signed(plain, scene.key)
        said = [(row["machine"], row["level"]) for row in kept.read("verdict").to_pylist()]
    assert sorted(said) == [(name, "crit") for name in ("m1", "m3", "m5", "m7")]
    shown = status(scene.place)
    assert shown["lease"]["holder"].split("-")[-2] == str(scene.detectors[first].pid)
    assert (shown["lease"]["lapsed"], shown["lease"]["term"] >= 3) == (False, True)


def status(place: str) -> dict[str, Any]:
    """What `peerwatch status --json` prints."""
    words = [sys.executable, "-m", "cli.main", "status", "--json", "--store", place]
    out = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_stop_hands_the_lease_over_at_once(tmp_path: Path) -> None:
    """Who is stopped gives the lease back; a detector without standby is refused beside those with."""
    scene = Scene(tmp_path, str(tmp_path / "s.db"), QUICKLY)
    try:
        scene.start("a")
        scene.until(lambda: "this detector speaks" in scene.log("a"))
        scene.start("lone", standby=False)
        assert scene.detectors.pop("lone").wait(30) == 1
        assert "start this one with --standby" in scene.log("lone")
        scene.start("b")
        scene.until(lambda: "standing by" in scene.log("b"))
        scene.detectors["a"].terminate()
        scene.detectors.pop("a").wait(30)
        assert scene.until(lambda: "this detector speaks" in scene.log("b")) < 13
    finally:
        scene.end()
