"""`peerwatch show` draws what an agent read many times a second."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from store.embedded import Embedded
from store.orders import Order
from store.sample import Batch, Sample
from tests.cli.conftest import SECOND, run
from tests.cli.test_show import ONSET, place

__all__ = ["place"]


def test_a_closer_look_is_drawn(place: Path) -> None:
    """Device by device, with who moves after the others; the order itself is no event worth a line."""
    store = Embedded(place)
    rng = np.random.default_rng(4)
    load = np.convolve(rng.normal(0, 60, 400), np.ones(5), "same")
    rows = [
        Sample("gpu_zoom", {"gpu": gpu, "power_watts": 500 + float(load[n + 20 - late])}, ONSET + n * SECOND // 20)
        for n in range(200)
        for gpu, late in (("0", 0), ("1", 3), ("2", 0), ("3", 0))
    ]
    order = Order(ONSET - SECOND, "gpu", 20.0, ONSET + 9 * SECOND)
    store.write([Batch("m3", ONSET, (*rows, order.sample()))])
    store.close()
    shown = run("show", "m3", "--store", place).stdout
    assert "closer look at gpu.power_watts, 20 readings a second for 10 s from +0 s" in shown
    (late,) = [line for line in shown.splitlines() if line.startswith("gpu:1 ") and "the others" in line]
    assert late.endswith("0.15 s after the others")
    assert "event zoom" not in shown
    (told,) = json.loads(run("show", "m3", "--store", place, "--json").stdout)["closeups"]
    assert (told["metric"], told["step_seconds"]) == ("gpu.power_watts", 0.05)
    assert [one["behind_seconds"] for one in told["devices"]][1] == 0.15
    assert len(told["devices"][2]["values"]) == 200
