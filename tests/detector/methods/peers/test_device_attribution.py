"""Which device of a machine is named where the ranks of several show its fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from detector.methods.peers.device_attribution import attribute_to_gpu
from detector.model.verdict import Finding, Verdict
from store.schema.time import SECOND

NOW = 1_700_000_000 * SECOND
METRICS = ["sm_clock_hertz", "temperature_celsius"]


def panel(**deviations: tuple[float, ...]) -> Any:
    """The table `gpu` of two machines, m3 and m4, of three GPUs each; the deviations of a metric on m4."""
    rows = [[0.0, 0.1, 0.2, *deviations.get(metric, (0.1, 0.0, 0.1))] for metric in METRICS]
    entities = [(machine, f"gpu:{at}") for machine in ("m3", "m4") for at in range(3)]
    window = SimpleNamespace(table="gpu", metrics=METRICS, entities=entities)
    return SimpleNamespace(window=window, deviation=np.array(rows, np.float32))


def named(machine: str, **deviations: tuple[float, ...]) -> tuple[str | None, str]:
    """Device and text of a straggler, GPU 0 of this machine, with these deviations on m4."""
    text = f"{machine} GPU 0 is the straggler"
    verdict = Verdict(NOW, "run", machine, "gpu:0", "progress", "nccl.active_ratio", 2.4, NOW - 9, "warn", text)
    said = attribute_to_gpu(Finding(verdict, False, 1.3), {"gpu": panel(**deviations)}).verdict
    return said.device, said.message


@pytest.mark.parametrize(
    ("machine", "deviations", "gpu"),
    [
        ("m4", {"sm_clock_hertz": (-0.3, 0.2, -3.7)}, 2),
        ("m3", {"sm_clock_hertz": (-0.3, 0.2, -3.7)}, 0),
        ("m4", {"sm_clock_hertz": (-0.3, -2.1, -3.7)}, 0),
        ("m4", {"sm_clock_hertz": (0.1, 0.2, 3.7)}, 0),
        ("m4", {"temperature_celsius": (0.4, 0.2, 3.7)}, 0),
    ],
)
def test_the_gpu_that_alone_lost_capacity_is_named(
    machine: str, deviations: dict[str, tuple[float, ...]], gpu: int
) -> None:
    """It has a lower clock than its peers; not two of them, a higher one, heat, or a GPU of another machine."""
    assert named(machine, **deviations) == (f"gpu:{gpu}", f"{machine} GPU {gpu} is the straggler")
