"""`peerwatch detector --standby`: of two detectors on one store one speaks, whatever happens to the other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.open import open_store
from store.schema.contract import Store
from store.signed import Signed
from tests.cli.conftest import ROOT
from tests.cli.service.scene import QUICKLY, SLOWLY, Scene
from tests.servers import influxd

TAKEOVER_S = 30.0


@pytest.fixture(
    params=[
        ("sqlite", QUICKLY),
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
    """One of two detectors speaks; the other takes over within 30 s of its death or pause and sends nothing twice."""
    for name in ("a", "b"):
        scene.start(name)
    scene.until(lambda: any("this detector speaks" in scene.log(name) for name in scene.detectors))
    scene.fault("m3", "79")
    scene.until(lambda: len(scene.sent()) > 0)
    first = scene.sent()[0][0]
    second = "b" if first == "a" else "a"
    assert scene.sent() == [[first, "m3", "crit", "begun"]]
    scene.until(lambda: delivered(scene) == {"m3"})  # a kill before that row would leave it to be sent again
    scene.until(lambda: "standing by" in scene.log(second))
    scene.detectors[first].kill()
    scene.detectors[first].wait()
    killed = time.monotonic()
    scene.fault("m5", "79")
    scene.until(lambda: len(scene.sent()) > 1)
    assert time.monotonic() - killed < TAKEOVER_S
    assert scene.sent()[1:] == [[second, "m5", "crit", "begun"]]
    scene.until(lambda: delivered(scene) == {"m3", "m5"})
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
        signed: Store = Signed(plain, scene.key)
        said = [(row["machine"], row["level"]) for row in signed.read("verdict").to_pylist()]
    assert sorted(said) == [(name, "crit") for name in ("m1", "m3", "m5", "m7")]
    shown = status(scene.folder / first / "p.toml")
    assert shown["lease"]["holder"].split("-")[-2] == str(scene.detectors[first].pid)
    assert (shown["lease"]["lapsed"], shown["lease"]["term"] >= 3) == (False, True)


def delivered(scene: Scene) -> set[str]:
    """Machines with an alert that the store knows to be delivered to the command."""
    with closing(open_store(scene.place)) as store:
        return {row["machine"] for row in store.read("delivery").to_pylist() if row["sink"] == "command"}


def status(config: Path) -> dict[str, Any]:
    """What `peerwatch status --json` prints."""
    words = [sys.executable, "-m", "cli.main", "status", "--json", "--config", str(config)]
    out = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_stop_hands_the_lease_over_at_once(tmp_path: Path) -> None:
    """A detector that is stopped gives the lease back; one without standby is refused beside those with it."""
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
