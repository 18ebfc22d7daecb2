"""`peerwatch detector` with a command sink: a verdict that was written without its key drains no machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cli.config import Settings, signing_key
from store.schema.sample import Batch, Sample
from store.signed import Signed
from store.sqlite.embedded import Embedded
from tests.cli.conftest import ROOT, SECOND

MACHINES = 12


def judged(config: Path, until: Path, seconds: float) -> str:
    """What a detector says that runs for so long, or until a file is there."""
    words = [sys.executable, "-m", "cli.main", "detector", "--config", str(config)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    detector = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not until.exists():
        time.sleep(0.1)
    detector.send_signal(signal.SIGTERM)
    said = detector.communicate(timeout=60)[1]
    assert detector.returncode == 0, said
    return said


def verdict(at: int) -> Batch:
    """A grave verdict on one machine."""
    values: dict[str, Any] = {"task": "all", "device": "gpu:0", "kind": "evidence", "metric": "event.xid", "score": 9.0}
    values |= {"since": at, "level": "crit", "message": "GPU fell off the bus"}
    return Batch("m05", at, (Sample("verdict", values),))


def test_a_forged_verdict_drains_nothing(tmp_path: Path) -> None:
    """The command of a restarted detector runs for a verdict with its signature, and not for one without."""
    place, drained = tmp_path / "s.db", tmp_path / "drained"
    config = tmp_path / "p.toml"
    command = f'["/usr/bin/touch", "{drained}"]'
    config.write_text(
        f'store = "{place}"\n[alerts]\nsinks = ["command"]\n[alerts.command]\nrun = {command}\ndry_run = false\n'
        "most_share = 0.5\n"
    )
    store, now = Embedded(place), time.time_ns()
    for back in range(60, -60, -1):
        values = Sample("host", {"cpu_utilization_ratio": 0.5})
        store.write([Batch(f"m{n:02d}", now - back * SECOND, (values,)) for n in range(MACHINES)])
    judged(config, place.with_suffix(".key"), 60)  # its key and its delivery log exist from now on
    store.write([verdict(time.time_ns() - 20 * SECOND)])
    assert "lack this detector's signature" in judged(config, drained, 6)
    assert not drained.exists()
    Signed(store, signing_key(str(place), Settings(), False)).write([verdict(time.time_ns() - 20 * SECOND)])
    judged(config, drained, 30)
    assert drained.exists()
    store.close()
