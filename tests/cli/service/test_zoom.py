"""The running detector orders a zoom, and `peerwatch show` draws its readings."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np

from detector.config import Config
from detector.service.runner import Runner
from store.schema.sample import Batch, Sample
from store.sqlite.embedded import Embedded
from store.zoom_requests import FileZoomRequests, ZoomKey, ZoomRequest
from tests.cli.conftest import SECOND, run
from tests.cli.fleet.test_show import BEGIN, ONSET, place

__all__ = ["place"]


def test_a_zoom_is_drawn(place: Path) -> None:
    """`show` draws each device and names those that move after the others; the order is no line of its own."""
    store = Embedded(place)
    rng = np.random.default_rng(4)
    load = np.convolve(rng.normal(0, 60, 400), np.ones(5), "same")
    rows = [
        Sample("gpu_zoom", {"gpu": gpu, "power_watts": 500 + float(load[n + 20 - late])}, ONSET + n * SECOND // 20)
        for n in range(200)
        for gpu, late in (("0", 0), ("1", 3), ("2", 0), ("3", 0))
    ]
    order = ZoomRequest(ONSET - SECOND, "gpu", 20.0, ONSET + 9 * SECOND)
    store.write([Batch("m3", ONSET, (*rows, order.sample()))])
    store.close()
    shown = run("show", "m3", "--store", place).stdout
    assert "zoom on power draw, 20 readings a second for 10 s from +0 s" in shown
    (late,) = [line for line in shown.splitlines() if line.startswith("gpu:1 ") and "the others" in line]
    assert late.endswith("0.15 s after the others")
    assert "event zoom" not in shown
    (zoom,) = json.loads(run("show", "m3", "--store", place, "--json").stdout)["closeups"]
    assert (zoom["metric"], zoom["step_seconds"]) == ("gpu.power_watts", 0.05)
    assert [one["behind_seconds"] for one in zoom["devices"]][1] == 0.15
    assert len(zoom["devices"][2]["values"]) == 200
    page = place.with_suffix(".html")
    assert run("report", "verdict", "m3", "--html", page, "--store", place).returncode == 0
    assert "<h2>Zoom on power draw, 20 readings" in page.read_text()
    assert "0.15 s after the others\n" in page.read_text()


def test_a_suspect_is_asked_for(tmp_path: Path) -> None:
    """The order is in the store before any verdict, for the agent of the suspect and for no other."""
    store, rng = Embedded(tmp_path / "s.db"), np.random.default_rng(6)
    watts = 500 + rng.normal(0, 4, (250, 8))
    watts[225:, 3] += 220
    rows = [
        Batch(f"m{machine}", BEGIN + second * SECOND, (Sample("gpu", {"gpu": "0", "power_watts": value}),))
        for second, row in enumerate(watts.tolist())
        for machine, value in enumerate(row)
    ]
    store.write(rows)
    end = BEGIN + 249 * SECOND
    runner = Runner(store, Config(), end)
    assert runner.catch_up(end, threading.Event()) == []
    runner.request_zoom(end)
    runner.request_zoom(end + SECOND)
    (order,) = FileZoomRequests(tmp_path / "s.db", ZoomKey("m3")).read(BEGIN)
    assert (order.source, order.time, order.until) == ("gpu", end, end + 20 * SECOND)
    assert store.read("event").num_rows == 1
    store.close()
