"""A zoom as it is drawn: on one grid, counters as rates, and which device moves before the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.explain.zoom_view import closeups
from tests.detector.conftest import SECOND, START, Memory


def table(curves: dict[str, Any], machine: str = "m3", begin: float = 0.0, seconds: float = 12.0) -> pa.Table:
    """Readings of some GPUs, twenty a second, each a few milliseconds off; a curve is a function of seconds."""
    rng = np.random.default_rng(len(curves))
    parts = []
    for gpu, (watts, sent) in curves.items():
        at = begin + np.arange(0, seconds, 0.05) + rng.uniform(0, 0.004)
        parts.append(
            pa.table(
                {
                    "time": START + (at * SECOND).astype(np.int64),
                    "machine": [machine] * len(at),
                    "gpu": [gpu] * len(at),
                    "power_watts": watts(at) + rng.normal(0, 3, len(at)),
                    "pcie_transmit_bytes_total": 1e7 * sent(at),
                }
            )
        )
    return pa.concat_tables(parts)


def wave(late: float, swing: float = 90.0) -> Any:
    """Power that follows iterations of 1.3 s, so many seconds late, and a steady traffic of 3 GB a second."""
    phase = 2 * np.pi / 1.3
    return (
        lambda at: 400 + swing * np.sin(phase * (at - late)) + 31 * np.sin(2.7 * phase * (at - late)),
        lambda at: 300 * at,
    )


def test_who_moves_after_the_others() -> None:
    """The device that is late is shown with its lag; what moves on its own is not ordered."""
    curves = {"0": wave(0.0), "1": wave(0.0), "2": wave(0.2), "3": wave(0.0)}
    alone = (lambda at: 400 + 90 * np.sign(np.sin(17 * at * at)), lambda at: 300 * at)
    store = Memory({"gpu_zoom": table({**curves, "4": alone})})
    found = closeups(store, "m3", "gpu.power_watts", (0, 2 * START))
    first = found[0]
    assert first.key == "gpu.power_watts"
    assert first.devices == ("gpu:0", "gpu:1", "gpu:2", "gpu:3", "gpu:4")
    assert first.step_s == pytest.approx(0.05, rel=0.01)
    assert first.behind_s[2] == pytest.approx(0.2, abs=0.06)
    assert all(abs(first.behind_s[at]) <= 0.06 for at in (0, 1, 3))
    assert math.isnan(first.behind_s[4])


def test_counters_are_rates() -> None:
    """A counter of what swings is drawn as it swings, also where it begins again."""
    watts = wave(0.0)[0]

    def sent(at: Any) -> Any:
        units = np.concatenate([[0.0], np.cumsum(watts(at)[:-1] * np.diff(at))])
        return np.where(units > 2000, units - 2000, units)

    store = Memory({"gpu_zoom": table({"0": (watts, sent), "1": (watts, sent)})})
    found = {one.key: one for one in closeups(store, "m3", "gpu.pcie_transmit_bytes_total", (0, 2 * START))}
    rate, power = (found[f"gpu.{name}"].values for name in ("pcie_transmit_bytes_total", "power_watts"))
    assert np.abs(rate[:, 1:-1] / 1e7 - power[:, 1:-1]).max() < 60
    assert rate.min() > 2e9


def test_the_longest_look_of_this_machine() -> None:
    """Another machine's, and a shorter one a minute before, are left out; too few readings are nothing."""
    long, short = table({"0": wave(0.0)}, begin=100.0), table({"0": wave(0.0)}, seconds=4.0)
    other = table({"7": wave(0.0)}, "m8", begin=30.0, seconds=30.0)
    (found,) = closeups(Memory({"gpu_zoom": pa.concat_tables([long, short, other])}), "m3", "x", (0, 2 * START))
    assert (found.devices, found.begin >= START + 100 * SECOND) == (("gpu:0",), True)
    assert found.values.shape[1] == pytest.approx(12 * 20, abs=2)
    few = table({"0": wave(0.0)}, seconds=1.5)
    assert closeups(Memory({"gpu_zoom": few}), "m3", "x", (0, 2 * START)) == ()
    assert closeups(Memory({"gpu": short}), "m3", "x", (0, 2 * START)) == ()


@given(st.integers(-6, 6), st.integers(0, 10**6))
def test_a_shift_is_found_to_a_bin(late: int, seed: int) -> None:
    """The shift of noise that two devices share is found to a bin."""
    rng = np.random.default_rng(seed)
    noise = np.convolve(rng.normal(0, 40, 400), np.ones(4), "same")
    at = np.arange(240)
    parts = [
        pa.table(
            {
                "time": START + at * (SECOND // 20),
                "machine": ["m1"] * 240,
                "gpu": [gpu] * 240,
                "power_watts": 500 + noise[at + 40 - shift],
            }
        )
        for gpu, shift in (("0", 0), ("1", late))
    ]
    (found,) = closeups(Memory({"gpu_zoom": pa.concat_tables(parts)}), "m1", "gpu.power_watts", (0, 2 * START))
    assert found.behind_s == pytest.approx((-late / 20, late / 20), abs=1e-9)


def test_machines_that_move_alike_and_one_that_does_not() -> None:
    """A consequence moves as its cause, whatever their clocks say; a fault of its own does not."""
    rng = np.random.default_rng(8)
    bursts, others = (np.convolve(rng.normal(0, 70, 500), np.ones(6), "same") for _ in range(2))

    def of(noise: Any, clock: float) -> Any:
        return lambda at: 500 + noise[((at - clock) * 20).astype(int) + 60], lambda at: 300 * at

    cause, effect = table({"0": of(bursts, 0.0)}), table({"0": of(bursts, 0.4), "1": of(bursts, 0.4)}, "m5")
    own, short = table({"0": of(others, 0.0)}, "m7"), table({"0": of(bursts, 0.0)}, "m8", seconds=2.5)
    store = Memory({"gpu_zoom": pa.concat_tables([cause, effect, own, short])})
    beside = dict(closeups(store, "m3", "gpu.power_watts", (0, 2 * START))[0].beside)
    assert set(beside) == {"m5", "m7"}
    assert beside["m7"] < 0.4 < 0.9 < beside["m5"]
