"""A scene for tests of the whole detector: a store fed with a healthy fleet, and detectors as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from store.open import open_store
from store.schema.sample import Batch, Sample
from store.schema.time import SECOND
from store.signed import key_of
from tests.cli.conftest import ROOT

MACHINES = 9
SLOWLY, QUICKLY = 1.0, 0.35
PROGRAM = """
import sys
from detector.service import lease
for name in ("BEAT_S", "HOLD_S", "SETTLE_S", "TAKEOVER_S"):
    setattr(lease, name, getattr(lease, name) * {pace})
{more}
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
        self.ended = threading.Event()
        self.ahead = 0
        """Seconds by which the clocks of all machines are ahead."""
        with closing(open_store(place, create=True)) as store:
            now = self.now()
            store.write([batch for back in range(120, 0, -1) for batch in self.readings(now - back * SECOND)])
        self.feeder = threading.Thread(target=self.feed)
        self.feeder.start()

    def now(self) -> int:
        """The machines' clock, Unix ns."""
        return time.time_ns() + self.ahead * SECOND

    def readings(self, at: int) -> list[Batch]:
        """A second of the fleet."""
        clocks = {n: 1.7e9 + 1e6 * ((at // SECOND + n) % 5) for n in range(MACHINES)}
        rows = {n: Sample("gpu", {"gpu": "0", "sm_clock_hertz": clock}) for n, clock in clocks.items()}
        return [Batch(f"m{n}", at, (row,)) for n, row in rows.items()]

    def feed(self) -> None:
        """A reading a second of each machine, until the scene ends."""
        with closing(open_store(self.place)) as store:
            while not self.ended.wait(1.0):
                store.write(self.readings(self.now()))

    def fault(self, machine: str, code: str) -> None:
        """An Xid of a machine: a verdict at once."""
        values: dict[str, Any] = {"source": "kernel_log", "code": code, "severity": "crit", "message": f"Xid {code}"}
        with closing(open_store(self.place)) as store:
            store.write([Batch(machine, self.now(), (Sample("event", {**values, "device": "gpu:0"}),))])

    def start(
        self, name: str, *, standby: bool = True, env: Mapping[str, str] | None = None, more: str = ""
    ) -> subprocess.Popen[str]:
        """A detector with a state folder of its own, as on another host; its command sink writes what it is sent."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        config, out = folder / "p.toml", self.folder / "sent"
        script = f"printf '%s\\n' \"{name} $PEERWATCH_MACHINE $PEERWATCH_LEVEL $PEERWATCH_EVENT\" >> {out}"
        run = json.dumps(["/bin/sh", "-c", script])
        config.write_text(
            f'store = "{self.place}"\nsigning_key_file = "{self.folder}/signing.key"\n'
            f'[detector]\nstandby = {str(standby).lower()}\n[alerts]\nsinks = ["command", "log"]\nblind_seconds = 10\n'
            f'state_folder = "{folder}/alerts"\n[alerts.command]\nrun = {run}\ndry_run = false\nmost_share = 0.9\n'
            'levels = ["crit", "ok"]\n'
        )
        words = [sys.executable, "-c", PROGRAM.format(pace=self.pace, more=more), "detector", "--config", str(config)]
        with (folder / "log").open("a") as log:
            self.detectors[name] = subprocess.Popen(
                words, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, stderr=log, text=True
            )
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
        self.ended.set()
        for detector in self.detectors.values():
            detector.send_signal(signal.SIGCONT)
            detector.terminate()
        for detector in self.detectors.values():
            detector.wait(30)
        self.feeder.join()
